// The table of gangs: who runs where, and why there.

import { aside, card, emptyRow, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { setState } from "../elements/marks.js";
import { count } from "../format.js";
import { gangColour, linked, studyLink, trialLink } from "./links.js";

/** @import { GangView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { ClusterContext } from "./links.js" */

const COLUMNS = [
  { name: "Trial" },
  { name: "Study" },
  { name: "State" },
  { name: "Ranks", numeric: true },
  { name: "MiB per rank", numeric: true },
  { name: "Devices" },
  { name: "Reason for placement" },
];

/**
 * @param {ClusterContext} context
 * @returns {Panel}
 */
export function gangsPanel({ state }) {
  const beside = aside("gangs");
  const body = h("tbody", { id: "gangs" });

  return {
    card: card(
      { id: "gangs", title: "Gangs", beside },
      scrolling("gangs", "scroll list", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      const { gangs } = state.cluster;
      setText(beside, gangs.length ? "hover over a gang to highlight its devices" : "");
      keyed(
        body,
        gangs.length ? gangs : [null],
        (gang) => gang?.key ?? "none",
        create,
        (row, gang) => gang && setState(row.children[2], gang.state),
      );
    },
  };
}

/**
 * @param {GangView | null} gang
 * @returns {HTMLTableRowElement}
 */
function create(gang) {
  if (!gang) return emptyRow(COLUMNS, "No gang is running.");
  const row = h(
    "tr",
    {},
    h("td", {}, h("span", { class: `swatch ${gangColour(gang)}` }), trialLink(gang)),
    h("td", { class: "wrap" }, studyLink(gang)),
    h("td"),
    h("td", { class: "num" }, count(gang.devices.length)),
    h("td", { class: "num" }, count(gang.mib_per_rank)),
    h("td", { class: "wrap" }, gang.devices.join(", ")),
    h("td", { class: "wrap muted" }, gang.placement_reason),
  );
  return linked(row, gang);
}
