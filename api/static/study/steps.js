// Predicted against measured seconds of an optimizer step, a point for each attempt: the chart and its summary in words.

import { Against } from "../charts/against.js";
import { head } from "../charts/chart.js";
import { aside, card, chartBox } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { stepWords } from "../format.js";

/** @import { Summary } from "../answers.d.ts" */
/** @import { Open } from "../charts/chart.js" */
/** @import { Pointed } from "../charts/points.js" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/** @type {[string, string]} */
const AXES = ["predicted step", "measured step"];

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function stepsPanel({ state, feeds, open }) {
  const box = chartBox(
    "steps",
    "Predicted against measured seconds of an optimizer step of each attempt; the text below summarises it",
  );
  const errors = h("span", { id: "steps-errors" });
  const diagonal = h("span", { class: "line diagonal" }, "as predicted");
  const body = h("div", { class: "body" }, box);
  const chart = new Steps(box, open);

  return {
    card: card(
      { id: "steps", title: "Step time", span: 4, beside: aside(null, "predicted against measured") },
      body,
      h("div", { class: "legend" }, diagonal, errors),
    ),
    shows: ["study", "peaks"],
    needs: "peaks",
    seen: () => feeds.wantPeaks(),
    restMs: 500,
    draw() {
      const words = stepErrorWords(state.study.summary, state.peaks);
      setText(errors, words);
      // Without any prediction, one line says why, and there is nothing to draw.
      body.hidden = diagonal.hidden = words !== "" && state.study.summary.step_error_pct.median === null;
      if (!body.hidden) chart.update(state.peaks);
    },
  };
}

class Steps extends Against {
  /**
   * @param {HTMLElement} box
   * @param {Open} open
   */
  constructor(box, open) {
    super(box, "An attempt appears here once its steps have been timed, if the speed of its devices is known.", open, {
      axes: AXES,
      isLog: true,
      words: stepWords,
    });
  }

  /**
   * @param {Record<string, any>} peak
   * @returns {[number | null, number | null]}
   */
  both(peak) {
    return [peak.predicted_step_seconds, peak.measured_step_seconds];
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    const { peak } = trial;
    const times = peak.measured_step_seconds / peak.predicted_step_seconds;
    const words = `predicted ${stepWords(peak.predicted_step_seconds)}, measured ${stepWords(peak.measured_step_seconds)} (× ${times.toFixed(2)})`;
    return [head(trial, trial.attempt > 1 ? `, attempt ${peak.attempt}` : ""), h("div", {}, words)];
  }
}

/**
 * Median and worst error of the last timed attempt of each trial, or why there is none. `peaks`: see `Against`.
 * @param {Pick<Summary, "step_error_pct">} summary
 * @param {Map<number, {attempts: Record<string, any>[]}>} peaks
 * @returns {string}
 */
export function stepErrorWords({ step_error_pct: error }, peaks) {
  if (error.median !== null && error.max !== null)
    return `Median error ${error.median.toFixed(0)} %, worst ${error.max.toFixed(0)} %. Predictions are for a gang alone on its host.`;
  const timed = [...peaks.values()].flatMap(({ attempts }) =>
    attempts.map((peak) => peak.measured_step_seconds).filter(Boolean),
  );
  if (!timed.length) return "";
  const range = [...new Set([Math.min(...timed), Math.max(...timed)].map(stepWords))].join(" to ");
  return `Measured: ${range}. None was predicted, as the speed of these devices was not known yet: it is measured when no study runs, or by “scamp calibrate”.`;
}
