// Which controller leads, and the last errors that it survived.

import { aside, card, emptyRow, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
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
      scrolling("controller", "scroll list", h("table", { class: "plain" }, tableHead(COLUMNS), body)),
    ),
    shows: ["cluster"],
    draw() {
      setText(beside, leaderWords(state.cluster));
      const errors = state.cluster.controller?.errors ?? [];
      keyed(
        body,
        errors.length ? errors : [null],
        (error) => (error ? `${error.first_at} ${error.study_id} ${error.doing} ${error.error}` : "none"),
        create,
        update,
      );
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

/**
 * @param {ContainedView | null} error
 * @returns {HTMLTableRowElement}
 */
function create(error) {
  if (!error) return emptyRow(COLUMNS, "No error of ScaMP's own code is known.");
  const study =
    error.study_id === null ? "–" : h("a", { href: `/studies/${error.study_id}` }, `Study ${error.study_id}`);
  return h(
    "tr",
    {},
    h("td"),
    h("td", { class: "num" }),
    h("td", {}, study),
    h(
      "td",
      { class: "wrap" },
      `Could not ${error.doing}: ${error.error}. The next cycle tries again; see the controller's log.`,
    ),
  );
}

/**
 * @param {HTMLTableRowElement} row
 * @param {ContainedView | null} error
 */
function update(row, error) {
  if (!error) return;
  setText(row.children[0], dateTime(error.last_at));
  setText(row.children[1], count(error.times));
}
