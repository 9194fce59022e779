// Which controller leads, and the last errors that it survived.

import { aside, card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { count, dateTime } from "../format.js";

/** @import { ClusterView, ContainedView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { ClusterContext } from "./links.js" */

const COLUMNS = [
  { name: "Last time" },
  { name: "Times", numeric: true },
  { name: "Study" },
  { name: "What failed, and why" },
];

/**
 * @param {ClusterContext} context
 * @returns {Panel}
 */
export function controllerPanel({ state }) {
  const beside = aside("controller");
  const body = h("tbody", { id: "errors" });

  return {
    card: card(
      { id: "controller", title: "Controller", beside },
      scrolling("controller", "scroll list stacks", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      setText(beside, leaderWords(state.cluster));
      fillRows(body, state.cluster.controller?.errors ?? [], {
        columns: COLUMNS,
        empty: "No error of ScaMP's own code is known.",
        keyOf: (error) => `${error.first_at} ${error.study_id} ${error.doing} ${error.error}`,
        create,
        update,
      });
    },
  };
}

/**
 * @param {ClusterView} cluster
 * @returns {string}
 */
function leaderWords({ controller, controller_alive: isAlive }) {
  if (!controller) return "none has reported yet";
  return `process ${controller.pid} on ${controller.host} ${isAlive ? "leads" : "led"} since ${dateTime(controller.since)}`;
}

/** @param {ContainedView} error */
function create(error) {
  const [last, times] = [h("td"), h("td", { class: "num", "data-label": "times" })];
  const study =
    error.study_id === null ? "–" : h("a", { href: `/studies/${error.study_id}` }, `Study ${error.study_id}`);
  const words = `Could not ${error.doing}: ${error.error}. The next cycle tries again; see the controller's log.`;
  return { node: h("tr", {}, last, times, h("td", {}, study), h("td", { class: "wrap" }, words)), last, times };
}

/**
 * @param {ReturnType<typeof create>} row
 * @param {ContainedView} error
 */
function update(row, error) {
  setText(row.last, dateTime(error.last_at));
  setText(row.times, count(error.times));
}
