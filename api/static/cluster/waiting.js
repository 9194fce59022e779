// The table of waiting trials, and why each waits.

import { aside, card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { setState } from "../elements/marks.js";
import { count, duration, plural } from "../format.js";
import { studyLink, trialLink } from "./links.js";

/** @import { WaitingView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { ClusterContext } from "./links.js" */

const COLUMNS = [
  { name: "Trial" },
  { name: "Study" },
  { name: "State" },
  { name: "Ranks", numeric: true },
  { name: "MiB per rank", numeric: true },
  { name: "Starts in", numeric: true },
  { name: "Lacks" },
  { name: "Why it waits" },
];

/**
 * @param {ClusterContext} context
 * @returns {Panel}
 */
export function waitingPanel({ state }) {
  const beside = aside("waiting");
  const body = h("tbody", { id: "waiting" });

  return {
    card: card(
      { id: "waiting", title: "Waiting", beside },
      scrolling("waiting", "scroll list stacks", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      const { waiting, num_waiting: all } = state.cluster;
      const shown = all > waiting.length ? `the first ${count(waiting.length)} of ` : "";
      setText(beside, all ? `${shown}${plural(all, "trial")}` : "");
      fillRows(body, waiting, {
        columns: COLUMNS,
        empty: "No trial is waiting.",
        keyOf: (item) => String(item.trial_id),
        create,
        update,
      });
    },
  };
}

/** @param {WaitingView} item */
function create(item) {
  const cells = {
    state: h("td"),
    ranks: h("td", { class: "num", "data-label": "ranks" }),
    reserved: h("td", { class: "num", "data-label": "MiB per rank" }),
    starts: h("td", { class: "num", "data-label": "starts in" }),
    lacks: h("td", { "data-label": "lacks" }),
    reason: h("td", { class: "wrap" }),
  };
  const { state, ranks, reserved, starts, lacks, reason } = cells;
  const [trial, study] = [h("td", {}, trialLink(item)), h("td", {}, studyLink(item))];
  return { node: h("tr", {}, trial, study, state, ranks, reserved, starts, lacks, reason), ...cells };
}

/**
 * @param {ReturnType<typeof create>} row
 * @param {WaitingView} item
 */
function update(row, item) {
  setState(row.state, item.state);
  setText(row.ranks, item.num_ranks ? count(item.num_ranks) : "–");
  setText(row.reserved, item.reserved_mib ? count(item.reserved_mib) : "–");
  setText(row.starts, item.starts_in_seconds === null ? "–" : duration(item.starts_in_seconds));
  setText(row.lacks, item.blocked);
  setText(row.reason, item.reason);
}
