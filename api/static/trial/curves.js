// The curves of a trial: a chart for each metric, the objective first.

import { Curves } from "../charts/curves.js";
import * as api from "../client.js";
import { aside, card } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { stepUnit } from "../format.js";

/** @import { CurveView, EventView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

const POINTS = 1000;

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function curvesPanel({ state, page }) {
  const beside = aside("curves");
  const box = h(
    "div",
    { class: "body grid", id: "curves" },
    h("p", { class: "muted" }, "Curves appear here as the trial reports."),
  );
  /** @type {Map<string, Curves>} by the name of the metric */
  const charts = new Map();
  const load = () => api.curves(state.studyId, [state.number], { points: POINTS }, (found) => state.keepCurves(found));
  const refresh = page.refresher(load);
  const refreshMine = (/** @type {EventView} */ event) => state.isMine(event) && refresh("curves");

  /** @param {string} name */
  function figure(name) {
    const chart = h("div", {
      class: "chart short",
      role: "img",
      "aria-label": `${name} by ${stepUnit(state.study.spec)}`,
    });
    const node = h("figure", { class: "span-6" }, chart);
    charts.set(name, new Curves(chart, { blank: `No finite value of ${name} yet.` }));
    return node;
  }

  return {
    card: card({ id: "curves", title: "Curves", span: 8, beside }, box),
    shows: ["curves"],
    restMs: 300,
    draw() {
      const { trial } = state;
      if (!state.curves.length) return;
      const ordered = objectiveFirst(state.curves, state.study.spec.objective.metric);
      setText(beside, ordered[0].resumed.length ? "dashed: a later attempt resumed here" : "");
      keyed(
        box,
        ordered.map((curve) => curve.metric),
        (name) => name,
        figure,
      );
      for (const { metric: name, step, value, resumed } of ordered) {
        charts.get(name)?.update([{ trial, points: step.map((at, index) => [at, value[index]]) }], {
          name,
          unit: stepUnit(state.study.spec),
          marks: resumed,
        });
      }
    },
    load,
    on: { attempt: refreshMine, metrics: refreshMine },
  };
}

/**
 * Curves in the order of their names, but that of the objective first.
 * @param {CurveView[]} curves
 * @param {string} objective
 * @returns {CurveView[]}
 */
export function objectiveFirst(curves, objective) {
  return [...curves].sort(
    (a, b) => Number(b.metric === objective) - Number(a.metric === objective) || (a.metric < b.metric ? -1 : 1),
  );
}
