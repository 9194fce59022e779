// Objective by trial number, with the best value so far.

import { h } from "../elements/dom.js";
import { count, metric } from "../format.js";

import { clamped, objectiveAxis, objectiveOptions } from "./axes.js";
import { head, steppedPaths, wholeNumbers } from "./chart.js";
import { Points } from "./points.js";
import { bestSoFar, byNumber } from "./series.js";

/** @import { Objective } from "../objectives.js" */

/** @import { Open, Plot } from "./chart.js" */
/** @import { Pointed } from "./points.js" */

/**
 * A trial in the history.
 * @typedef {{id: number, number: number, state: string, step: number, value: number | null}} Point
 */

const BELOW = 0.1; // share of the height, below the values, for trials without one

/** Objective by trial number. Trials that ended without a value are drawn along the bottom. */
export class History extends Points {
  /**
   * `reasonOf(trial)` says why a trial has no value, or returns an empty string.
   * @param {HTMLElement} box
   * @param {Open} open
   * @param {(trial: {number: number}) => string} reasonOf
   */
  constructor(box, open, reasonOf) {
    super(box, "Values appear here as soon as a trial reports.", open);
    this.reasonOf = reasonOf;
    /** @type {Point[]} */
    this.trials = [];
    this.num = 0; // trials of the study
    this.unit = "step";
    /** @type {Objective} */
    this.objective = { metric: "", direction: "maximize" };
    this.shown = this.values; // the axis of the objective that is drawn
  }

  /**
   * Draw `trials`: all `num` trials of the study, or some of them.
   * @param {Point[]} trials
   * @param {number} num
   * @param {Objective} objective
   * @param {string} [unit] of steps
   */
  update(trials, num, objective, unit = "step") {
    this.num = num;
    this.unit = unit;
    const isRenamed = this.objective.metric !== objective.metric;
    this.objective = objective;
    this.trials = trials;
    const before = this.shown;
    this.shown = this.values;
    if (isRenamed || before.log !== this.shown.log) this.rebuild();
    this.refresh(trials);
  }

  plan() {
    if (!this.trials.some((trial) => trial.value !== null)) return null;
    const ordered = byNumber(this.trials);
    const options = objectiveOptions(() => this.shown, BELOW);
    const opts = this.options({
      padding: [8, 20, 0, 0],
      scales: {
        x: { time: false, range: () => [-0.5, Math.max(this.num - 1, 4) + 0.5] },
        y: options.scale,
      },
      axes: [
        this.axis("trial", { values: wholeNumbers }),
        this.axis(this.objective.metric, { size: 48, ...options.axis }),
      ],
      series: [
        {},
        {
          stroke: this.pen.colour("best"),
          width: 2,
          paths: steppedPaths(1),
          points: { show: false },
          spanGaps: true,
        },
      ],
    });
    return {
      opts,
      data: [
        ordered.map((trial) => trial.number),
        bestSoFar(/** @type {Point[]} */ (ordered), this.objective.direction),
      ],
    };
  }

  /** The axis of the objective; see `objectiveAxis`. */
  get values() {
    const values = this.trials.flatMap((trial) => (trial.value === null ? [] : [trial.value]));
    return objectiveAxis(this.objective.metric, values, this.objective.direction);
  }

  /**
   * @param {Plot} plot
   * @param {Pointed} trial
   * @returns {[number, number] | null}
   */
  pixelsOf(plot, trial) {
    const x = plot.valToPos(trial.number, "x", true);
    if (trial.value !== null) return [x, plot.valToPos(clamped(this.shown, trial.value), "y", true)];
    if (!["FAILED", "INFEASIBLE", "CANCELLED", "PRUNED"].includes(trial.state)) return null;
    return [x, plot.bbox.top + plot.bbox.height - 9 * devicePixelRatio];
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    const lines = [head(trial)];
    if (trial.value !== null)
      lines.push(h("div", {}, `${this.objective.metric} ${metric(trial.value)} at ${this.unit} ${count(trial.step)}`));
    else if (this.reasonOf(trial)) lines.push(h("div", {}, this.reasonOf(trial).slice(0, 160)));
    return lines;
  }
}
