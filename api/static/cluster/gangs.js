// The table of gangs: who runs where, and why there.

import { aside, card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { setState } from "../elements/marks.js";
import { count, duration, percent } from "../format.js";
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
  { name: "Busy", numeric: true, title: "how busy its first rank was in the last minute" },
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
      scrolling("gangs", "scroll list stacks", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      const { gangs } = state.cluster;
      setText(beside, gangs.length ? "hover over a gang to highlight its devices" : "");
      fillRows(body, gangs, {
        columns: COLUMNS,
        empty: "No gang is running.",
        keyOf: (gang) => gang.key,
        create,
        update: (row, gang) => {
          setState(row.state, gang.state);
          setText(row.busy, busyWords(gang));
          row.busy.classList.toggle("idle", gang.idle_seconds > 0);
        },
      });
    },
  };
}

/**
 * The devices, with a comma between them. Lines break only behind commas.
 * @param {string[]} devices
 * @returns {(Node | string)[]}
 */
function deviceNames(devices) {
  return devices.flatMap((name, at) => [
    at ? " " : "",
    h("span", { class: "whole" }, at < devices.length - 1 ? `${name},` : name),
  ]);
}

/**
 * @param {GangView} gang
 * @returns {string}
 */
function busyWords({ busy_share: share, idle_seconds: idle }) {
  return idle ? `${percent(share)}, idle for ${duration(idle)}` : percent(share);
}

/** @param {GangView} gang */
function create(gang) {
  const state = h("td");
  const busy = h("td", { class: "num", "data-label": "busy" });
  const row = h(
    "tr",
    {},
    h("td", {}, h("span", { class: `swatch ${gangColour(gang)}` }), trialLink(gang)),
    h("td", {}, studyLink(gang)),
    state,
    h("td", { class: "num", "data-label": "ranks" }, count(gang.devices.length)),
    h("td", { class: "num", "data-label": "MiB per rank" }, count(gang.mib_per_rank)),
    busy,
    h("td", {}, h("div", { class: "device-names" }, deviceNames(gang.devices))),
    h("td", { class: "wrap muted" }, gang.placement_reason),
  );
  return { node: linked(row, gang), state, busy };
}
