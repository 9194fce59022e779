// The Pareto front of a study with several objectives: trials by two of them, and the trials of the front as a table.

import { Front } from "../charts/front.js";
import * as api from "../client.js";
import { aside, card, chartBox, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { count, objectiveValue, paramsLine, plural } from "../format.js";
import { isSeveral } from "../objectives.js";

/** @import { FrontView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext, StudyState } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function frontPanel({ state, page, open }) {
  const beside = aside("front");
  const box = chartBox("front", "");
  const [across, up] = ["across", "up"].map((name) => h("select", { id: `front-${name}` }));
  const choice = h(
    "span",
    { class: "aside tools", hidden: true },
    h("label", { for: "front-up" }, "up"),
    up,
    h("label", { for: "front-across" }, "across"),
    across,
  );
  const outside = h("span");
  const list = scrolling("front", "front scroll");
  const edge = h("span", { class: "line" });
  const legend = h("div", { class: "legend" }, edge, h("span", {}, "large: on the front"), outside);
  const section = card(
    { id: "front", title: "Pareto front", beside: [beside, choice], hidden: true },
    h("div", { class: "body" }, box),
    legend,
    list,
  );
  const chart = new Front(box, open);
  /** @type {FrontView | null} */
  let found = null;
  const refresh = page.refresher(load, 5000);
  for (const select of [across, up]) select.addEventListener("change", () => state.changed("front"));

  async function load() {
    if (!isSeveral(state.study.spec)) return;
    found = await api.front(state.studyId);
    state.changed("front");
  }

  function drawChoice() {
    choice.hidden = found.metrics.length < 3;
    fillChoice(across, found.metrics, 0);
    fillChoice(up, found.metrics, 1);
  }

  return {
    card: section,
    shows: ["front", "study"],
    restMs: 500,
    draw() {
      section.hidden = !isSeveral(state.study.spec);
      if (section.hidden || !found) return;
      drawChoice();
      chart.update(found, Number(across.value), Number(up.value));
      const num = found.on_front.filter(Boolean).length;
      const part = found.number.length < found.num_trials ? `${count(found.number.length)} of ` : "";
      setText(beside, `${count(num)} on the front, ${part}${plural(found.num_trials, "trial")}`);
      setText(edge, found.metrics.length > 2 ? "front of these two objectives" : "Pareto front");
      const numOutside = Math.max(...chart.axes.map((axis) => axis.numOutside));
      setText(outside, numOutside ? `${plural(numOutside, "trial")} beyond the end of an axis, at its edge.` : "");
      const words = found.metrics.map((name, place) => `${found.directions[place]} ${name}`).join(" and ");
      box.setAttribute(
        "aria-label",
        `${plural(found.number.length, "trial")} by objectives: ${words}; ${num} on the Pareto front, which the table below lists. Arrow keys go from point to point, Enter opens a trial.`,
      );
      list.replaceChildren(tableOf(found.metrics, state));
      list.hidden = !state.study.summary.front.length;
    },
    load,
    on: {
      trial: () => isSeveral(state.study.spec) && refresh("trial"),
      metrics: () => isSeveral(state.study.spec) && refresh("metrics"),
    },
  };
}

/**
 * Fill a select with the objectives; at first the one at this place is chosen.
 * @param {HTMLSelectElement} select
 * @param {string[]} metrics
 * @param {number} first
 */
function fillChoice(select, metrics, first) {
  const isNew = !select.options.length;
  keyed(
    select,
    metrics.map((name, place) => ({ name, place })),
    ({ place }) => place,
    ({ name, place }) => h("option", { value: place }, name),
  );
  if (isNew) select.value = String(first);
}

/**
 * The trials of the front as a table.
 * @param {string[]} metrics
 * @param {StudyState} state
 * @returns {HTMLTableElement}
 */
function tableOf(metrics, { study, studyId }) {
  const columns = [
    { name: "#", numeric: true },
    ...metrics.map((name) => ({ name, numeric: true })),
    { name: "Parameters" },
    { name: "Plan" },
  ];
  const rows = study.summary.front.map(({ trial, values, params, plan }) =>
    h(
      "tr",
      {},
      h("td", { class: "num" }, h("a", { href: `/studies/${studyId}/trials/${trial}` }, count(trial))),
      values.map((value, place) => h("td", { class: "num value" }, objectiveValue(metrics[place], value))),
      h("td", { class: "wrap" }, paramsLine(params, study.spec.fixed)),
      h("td", {}, plan || "–"),
    ),
  );
  return h("table", { class: "plain" }, tableHead(columns), h("tbody", {}, rows));
}
