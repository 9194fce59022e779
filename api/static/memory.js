// Predicted against measured peak memory of one rank, a point for each attempt: the chart, and what it shows in words.

import { Points, colour, head } from "./charts.js";
import { h } from "./dom.js";
import { mibWords, num, plural, toMib } from "./format.js";

// An arrow up from a bar: it needs more than this.
const MORE = new Path2D("M-1 .3H1V-.15H.3V-1.3H.85L0 -2.4L-.85 -1.3H-.3V-.15H-1Z");

/** The attempts of a trial, as the API tells them, in MiB. */
export function asPeaks({ attempts }) {
  return attempts.map((peak) => ({ ...peak, predicted_mib: toMib(peak.predicted_bytes), measured_mib: toMib(peak.measured_bytes) }));
}

/** With the line of a perfect prediction. A point is a trial with one of its `peak`s; its id tells them apart. */
export class Memory extends Points {
  constructor(box, open) {
    super(box, "Each attempt appears here once its peak memory has been measured.", open);
  }

  /** `peaks`: trial id → its attempts. */
  update(trials, peaks) {
    const points = [];
    for (const [id, attempts] of peaks) {
      if (!trials.has(id)) continue;
      for (const peak of attempts) points.push({ ...trials.get(id), id: `${id}/${peak.attempt}`, peak });
    }
    this.refresh(points);
  }

  top() {
    return Math.max(...this.trials.map(({ peak }) => Math.max(peak.predicted_mib, peak.measured_mib))) * 1.12;
  }

  plan() {
    if (!this.trials.length) return null;
    const top = this.top();
    const axis = { values: (_, splits) => splits.map(num) };
    const opts = {
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 14, 0, 0],
      scales: { x: { time: false, range: () => [0, this.top()] }, y: { range: () => [0, this.top()] } },
      axes: [this.axis("predicted MiB per rank", axis), this.axis("measured MiB per rank", { ...axis, size: 44 })],
      series: [{}, { stroke: colour("faint"), width: 1.5, dash: [5, 5], points: { show: false } }],
      hooks: { draw: [(plot) => this.draw(plot)] },
    };
    return { opts, data: [[0, top], [0, top]] };
  }

  place(plot, { peak }) {
    return [plot.valToPos(peak.predicted_mib, "x", true), plot.valToPos(peak.measured_mib, "y", true)];
  }

  mark(trial) {
    return trial.peak.lower_bound ? [MORE, colour("failed")] : super.mark(trial);
  }

  describe(trial) {
    const { peak } = trial;
    const off = percent(peak);
    const words = peak.lower_bound
      ? `predicted ${peak.predicted_mib.toFixed(1)}, needs more than ${peak.measured_mib.toFixed(1)} MiB (+${off.toFixed(0)} %)`
      : `predicted ${peak.predicted_mib.toFixed(1)}, measured ${peak.measured_mib.toFixed(1)} MiB (${off >= 0 ? "+" : ""}${off.toFixed(1)} %)`;
    const which = trial.attempt > 1 || peak.lower_bound ? `, attempt ${peak.attempt}${peak.lower_bound ? " out of memory" : ""}` : "";
    return [head(trial, which), h("div", {}, words), h("div", {}, `reserved ${mibWords(peak.reserved_mib)}`)];
  }
}

/** Of what was predicted: how much more was measured, or is needed at least. */
function percent(peak) {
  return (100 * (peak.measured_mib - peak.predicted_mib)) / peak.predicted_mib;
}

/** The median and worst error where it is exact, of the last such attempt of each trial, or an empty string. */
export function errorWords(peaks) {
  const errors = [...peaks.values()]
    .map((attempts) => attempts.filter((peak) => !peak.lower_bound).at(-1))
    .filter((peak) => peak)
    .map((peak) => (100 * Math.abs(peak.measured_mib - peak.predicted_mib)) / peak.measured_mib)
    .sort((a, b) => a - b);
  if (!errors.length) return "";
  const middle = errors.length >> 1;
  const median = errors.length % 2 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
  return `Median error ${median.toFixed(1)} %, worst ${errors.at(-1).toFixed(1)} %.`;
}

/** What is only known to be more than predicted, or an empty string. */
export function failureWords(peaks) {
  const failed = [...peaks.values()].flat().filter((peak) => peak.lower_bound);
  if (!failed.length) return "";
  return `${plural(failed.length, "attempt")} out of memory: the worst needed at least ${Math.max(...failed.map(percent)).toFixed(0)} % more than predicted.`;
}

/** What the next candidates are predicted with, beyond trace and margin. */
export function lessonWords(lessons) {
  const taught = lessons.filter((lesson) => lesson.num_trials);
  if (!taught.length) return "";
  const raised = taught.filter((lesson) => lesson.extra_bytes);
  if (!raised.length) return `Learned of ${plural(sum(taught), "trial")}: the constant margin is enough.`;
  const said = raised.map((lesson) => `+${toMib(lesson.extra_bytes).toFixed(1)} MiB from ${plural(lesson.num_trials, "trial")} of a family (study ${lesson.studies.join(", ")})`);
  return `Learned: ${said.join("; ")}${raised.length < taught.length ? "; for others the constant margin is enough" : ""}.`;
}

function sum(lessons) {
  return lessons.reduce((total, lesson) => total + lesson.num_trials, 0);
}
