// Trials by two of several objectives, with the Pareto front.

import { h } from "../elements/dom.js";
import { objectiveValue } from "../format.js";
import { clamped, objectiveAxis, objectiveOptions } from "./axes.js";
import { head, steppedPaths } from "./chart.js";
import { Points } from "./points.js";

/** @import { FrontView } from "../answers.d.ts" */
/** @import { ObjectiveAxis } from "./axes.js" */
/** @import { Open, Plot } from "./chart.js" */
/** @import { Pointed } from "./points.js" */

export class Front extends Points {
  /**
   * @param {HTMLElement} box
   * @param {Open} open
   */
  constructor(box, open) {
    super(box, "Trials appear here once all objectives of one are known.", open);
    /** @type {string[]} */
    this.metrics = [];
    /** @type {string[]} */
    this.directions = [];
    /** @type {number[]} indices of the two objectives that are drawn, across and up */
    this.chosen = [];
    /** @type {ObjectiveAxis[]} of these two */
    this.axes = [];
  }

  /** Most trials beyond the end of one of the two axes. */
  get numOutside() {
    return Math.max(0, ...this.axes.map((axis) => axis.numOutside));
  }

  /**
   * Draw the trials by two objectives.
   * @param {FrontView} found
   * @param {number} across index of an objective in it
   * @param {number} up
   */
  update(found, across, up) {
    this.metrics = found.metrics;
    this.directions = found.directions;
    this.chosen = [across, up];
    this.trials = found.number.map((number, index) => ({
      id: number,
      number,
      state: found.state[index],
      values: found.values[index],
      isOnFront: found.on_front[index],
    }));
    this.axes = this.chosen.map((index) =>
      objectiveAxis(
        found.metrics[index],
        found.values.map((values) => values[index]),
        found.directions[index],
      ),
    );
    this.keepLit();
    this.rebuild();
  }

  plan() {
    if (!this.trials.length) return null;
    const { directions } = this;
    const [across, up] = this.chosen;
    const edge = staircase(
      this.trials.filter((trial) => trial.isOnFront).map(({ values }) => [values[across], values[up]]),
      [directions[across], directions[up]],
    );
    const options = this.axes.map((axis) => objectiveOptions(() => axis));
    const opts = this.options({
      padding: [8, 18, 0, 0],
      scales: { x: { time: false, ...options[0].scale }, y: options[1].scale },
      axes: [this.axis(this.name(across), options[0].axis), this.axis(this.name(up), { size: 56, ...options[1].axis })],
      series: [
        {},
        {
          stroke: this.pen.colour("best"),
          width: 2,
          paths: steppedPaths(directions[across] === "minimize" ? 1 : -1),
          points: { show: false },
        },
      ],
    });
    return { opts, data: [edge.map(([x]) => x), edge.map(([, y]) => y)] };
  }

  /**
   * @param {number} index of an objective
   * @returns {string}
   */
  name(index) {
    return `${this.metrics[index]} (${this.directions[index] === "minimize" ? "less" : "more"} is better)`;
  }

  /**
   * @param {Plot} plot
   * @param {Pointed} trial
   * @returns {[number, number]}
   */
  pixelsOf(plot, { values }) {
    const [x, y] = this.chosen.map((index, at) => clamped(this.axes[at], values[index]));
    return [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
  }

  /** @param {Plot} plot */
  draw(plot) {
    const scale = devicePixelRatio;
    const marked = [...this.trials].sort((a, b) => Number(a.isOnFront) - Number(b.isOnFront));
    for (const trial of marked) {
      if (trial === this.lit) continue;
      const [x, y] = this.pixelsOf(plot, trial);
      const radius = (trial.isOnFront ? 5 : 2.6) * scale;
      this.pen.stamp(plot.ctx, ...this.mark(trial), x, y, radius, trial.isOnFront ? 1 : 0.4);
    }
    if (this.lit) this.pen.stamp(plot.ctx, ...this.mark(this.lit), ...this.pixelsOf(plot, this.lit), 7 * scale);
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    const lines = this.metrics.map((name, index) =>
      h("div", {}, `${name} ${objectiveValue(name, trial.values[index])}`),
    );
    return [head(trial, trial.isOnFront ? ", on the front" : ""), ...lines];
  }
}

/**
 * The corners of the region that points dominate in two directions, by the first value: those not dominated in both.
 * @param {[number, number][]} points
 * @param {[string, string]} directions
 * @returns {[number, number][]}
 */
export function staircase(points, [across, up]) {
  const [signX, signY] = [across, up].map((direction) => (direction === "minimize" ? 1 : -1));
  const ordered = [...points].sort((a, b) => signX * (a[0] - b[0]) || signY * (a[1] - b[1]));
  /** @type {[number, number][]} */
  const kept = [];
  for (const point of ordered) {
    const last = kept.at(-1);
    if (!last || signY * point[1] < signY * last[1]) kept.push(point);
  }
  return kept.sort((a, b) => a[0] - b[0]);
}
