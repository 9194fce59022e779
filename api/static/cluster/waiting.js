// The table of waiting trials, and why each waits.

import { aside, card, emptyRow, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
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
      scrolling("waiting", "scroll list", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      const { waiting, num_waiting: all } = state.cluster;
      const shown = all > waiting.length ? `the first ${count(waiting.length)} of ` : "";
      setText(beside, all ? `${shown}${plural(all, "trial")}` : "");
      keyed(body, waiting.length ? waiting : [null], (item) => item?.trial_id ?? "none", create, update);
    },
  };
}

/**
 * @param {WaitingView | null} item
 * @returns {HTMLTableRowElement}
 */
function create(item) {
  if (!item) return emptyRow(COLUMNS, "No trial is waiting.");
  return h(
    "tr",
    {},
    h("td", {}, trialLink(item)),
    h("td", { class: "wrap" }, studyLink(item)),
    h("td"),
    h("td", { class: "num" }),
    h("td", { class: "num" }),
    h("td", { class: "num" }),
    h("td"),
    h("td", { class: "wrap" }),
  );
}

/**
 * @param {any} row as `create` returns it
 * @param {WaitingView | null} item
 */
function update(row, item) {
  if (!item) return;
  setState(row.children[2], item.state);
  setText(row.children[3], item.num_ranks ? count(item.num_ranks) : "–");
  setText(row.children[4], item.reserved_mib ? count(item.reserved_mib) : "–");
  setText(row.children[5], item.starts_in_seconds === null ? "–" : duration(item.starts_in_seconds));
  setText(row.children[6], item.blocked);
  setText(row.children[7], item.reason);
}
