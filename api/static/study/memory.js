// Predicted against measured peak memory of one rank, a point for each attempt: the chart and its summary in words.

import { Against } from "../charts/against.js";
import { head } from "../charts/chart.js";
import { aside, card, chartBox } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { count, mib, mibWords, num, plural, toMib } from "../format.js";
import { required } from "../required.js";

/** @import { LearnedMemory, Summary } from "../answers.d.ts" */
/** @import { Open } from "../charts/chart.js" */
/** @import { Pointed } from "../charts/points.js" */
/** @import { Panel } from "../page.js" */
/** @import { Peak, StudyContext } from "./state.js" */

// An arrow up from a bar: the attempt needs more than this.
const MORE = "M-1 .3H1V-.15H.3V-1.3H.85L0 -2.4L-.85 -1.3H-.3V-.15H-1Z";

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function memoryPanel({ state, feeds, open }) {
  const box = chartBox(
    "memory",
    "Predicted against measured peak memory of each attempt; the text below summarises it",
  );
  const [errors, failures, learned] = ["errors", "failures", "learned"].map((name) =>
    h("span", { id: `memory-${name}` }),
  );
  const legend = h(
    "div",
    { class: "legend" },
    h("span", { class: "line diagonal" }, "as predicted"),
    errors,
    failures,
    learned,
  );
  const chart = new Memory(box, open);

  return {
    card: card(
      { id: "memory", title: "Peak memory", span: 4, beside: aside(null, "predicted against measured") },
      h("div", { class: "body" }, box),
      legend,
    ),
    shows: ["study", "peaks"],
    needs: "peaks",
    seen: () => feeds.wantPeaks(),
    restMs: 500,
    draw() {
      const { summary } = state.study;
      chart.update(state.peaks);
      setText(errors, errorWords(summary));
      setText(failures, failureWords(summary));
      setText(learned, learnedWords(summary.learned));
    },
  };
}

class Memory extends Against {
  /**
   * @param {HTMLElement} box
   * @param {Open} open
   */
  constructor(box, open) {
    super(box, "An attempt appears here once its peak memory has been measured.", open, {
      axes: ["predicted MiB per rank", "measured MiB per rank"],
      words: num,
    });
  }

  /**
   * @param {Record<string, any>} peak
   * @returns {[number | null, number | null]}
   */
  both(peak) {
    return [peak.predicted_mib, peak.measured_mib];
  }

  /**
   * @param {Pointed} trial
   * @returns {[string, string]}
   */
  mark(trial) {
    return trial.peak.lower_bound ? [MORE, this.pen.colour("failed")] : super.mark(trial);
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    const { peak } = trial;
    const off = percent(peak);
    const words = peak.lower_bound
      ? `predicted ${mib(peak.predicted_mib)}, needs more than ${mib(peak.measured_mib)} MiB (+${off.toFixed(0)} %)`
      : `predicted ${mib(peak.predicted_mib)}, measured ${mib(peak.measured_mib)} MiB (${off >= 0 ? "+" : ""}${off.toFixed(1)} %)`;
    const which =
      trial.attempt > 1 || peak.lower_bound
        ? `, attempt ${peak.attempt}${peak.lower_bound ? " out of memory" : ""}`
        : "";
    return [head(trial, which), h("div", {}, words), h("div", {}, `reserved ${mibWords(peak.reserved_mib)}`)];
  }
}

/**
 * Measured peak, or lower bound, minus the predicted peak, in percent of the predicted peak.
 * @param {Peak} peak
 * @returns {number}
 */
function percent(peak) {
  const [predicted, measured] = [required(peak.predicted_mib), required(peak.measured_mib)];
  return (100 * (measured - predicted)) / predicted;
}

/**
 * Median and worst error of the last exactly measured attempt of each trial, or why there is none, or an empty string.
 * @param {Pick<Summary, "prediction_error_pct" | "out_of_memory" | "is_uneven">} summary
 * @returns {string}
 */
export function errorWords({ prediction_error_pct: error, out_of_memory: failed, is_uneven: isUneven }) {
  if (isUneven) return "Predicted for the largest samples, so most steps need less.";
  if (error.median === null || error.max === null) return "";
  const which = failed?.attempts ? "Attempts that had enough memory: median" : "Median";
  return `${which} error ${error.median.toFixed(1)} %, worst ${error.max.toFixed(1)} %, by tensors.`;
}

/**
 * Attempts that ran out of memory, whose need is only known to be more than predicted, or an empty string.
 * @param {Pick<Summary, "out_of_memory">} summary
 * @returns {string}
 */
export function failureWords({ out_of_memory: failed }) {
  if (!failed.attempts || failed.least_excess_pct === null) return "";
  return `${plural(failed.attempts, "attempt")} out of memory: the worst needed at least ${excessWords(failed.least_excess_pct)} predicted.`;
}

/**
 * Memory that is added to the next predictions of each family and layout, beyond trace and margin, or an empty string.
 * @param {LearnedMemory[]} families
 * @returns {string}
 */
export function learnedWords(families) {
  const known = families.filter((family) => family.num_trials);
  if (!known.length) return "";
  const raised = known.filter((family) => family.extra_bytes);
  if (!raised.length) return `Learned from ${plural(numTrials(known), "trial")}: the constant margin is enough.`;
  const words = raised.map(
    (family) =>
      `+${mib(toMib(family.extra_bytes))} MiB from ${plural(family.num_trials, "trial")} of a family with layout ${family.layout} (study ${family.studies.join(", ")})`,
  );
  return `Learned: ${words.join("; ")}${raised.length < known.length ? "; for others the constant margin is enough" : ""}.`;
}

/**
 * @param {LearnedMemory[]} families
 * @returns {number}
 */
function numTrials(families) {
  return families.reduce((total, family) => total + family.num_trials, 0);
}

/**
 * How much more was needed than predicted, as the beginning of a phrase: percents above some hundred say nothing.
 * @param {number} percent
 * @returns {string}
 */
function excessWords(percent) {
  return percent < 100 ? `${percent.toFixed(0)} % more than` : `${count(Math.floor(1 + percent / 100))} times the MiB`;
}
