// Trials by two of several objectives, with the Pareto front.

import { h } from "../elements/dom.js";
import { objectiveValue } from "../format.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";
import { clamped, objectiveAxis, objectiveOptions } from "./axes.js";
import { head } from "./chart.js";
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
    this.axes = null;
  }

  /**
   * Draw the trials by two objectives.
   * @param {FrontView} found
   * @param {number} across place of an objective in it
   * @param {number} up
   */
  update(found, across, up) {
    this.found = found;
    this.chosen = [across, up];
    this.trials = found.number.map((number, index) => ({
      id: number,
      number,
      state: found.state[index],
      values: found.values[index],
      isOnFront: found.on_front[index],
    }));
    this.axes = this.chosen.map((place) =>
      objectiveAxis(
        found.metrics[place],
        found.values.map((values) => values[place]),
        found.directions[place],
      ),
    );
    if (this.lit) this.lit = this.trials.find((trial) => trial.id === this.lit.id) ?? null;
    this.rebuild();
  }

  plan() {
    if (!this.trials.length) return null;
    const { directions } = this.found;
    const [across, up] = this.chosen;
    const edge = staircase(
      this.trials.filter((trial) => trial.isOnFront).map(({ values }) => [values[across], values[up]]),
      [directions[across], directions[up]],
    );
    const options = this.axes.map((axis) => objectiveOptions(() => axis));
    const opts = {
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 18, 0, 0],
      scales: { x: { time: false, ...options[0].scale }, y: options[1].scale },
      axes: [this.axis(this.name(across), options[0].axis), this.axis(this.name(up), { size: 56, ...options[1].axis })],
      series: [
        {},
        {
          stroke: this.pen.colour("best"),
          width: 2,
          paths: uPlot.paths.stepped({ align: directions[across] === "minimize" ? 1 : -1 }),
          points: { show: false },
        },
      ],
      hooks: { draw: [(/** @type {Plot} */ plot) => this.draw(plot)] },
    };
    return { opts, data: [edge.map(([x]) => x), edge.map(([, y]) => y)] };
  }

  /**
   * @param {number} place
   * @returns {string}
   */
  name(place) {
    return `${this.found.metrics[place]} (${this.found.directions[place] === "minimize" ? "less" : "more"} is better)`;
  }

  /**
   * @param {Plot} plot
   * @param {Pointed} trial
   * @returns {[number, number]}
   */
  place(plot, { values }) {
    const [x, y] = this.chosen.map((place, at) => clamped(this.axes[at], values[place]));
    return [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
  }

  /** @param {Plot} plot */
  draw(plot) {
    const scale = devicePixelRatio;
    const marked = [...this.trials].sort((a, b) => Number(a.isOnFront) - Number(b.isOnFront));
    for (const trial of marked) {
      if (trial === this.lit) continue;
      const [x, y] = this.place(plot, trial);
      const radius = (trial.isOnFront ? 5 : 2.6) * scale;
      this.pen.stamp(plot.ctx, ...this.mark(trial), x, y, radius, trial.isOnFront ? 1 : 0.4);
    }
    if (this.lit) this.pen.stamp(plot.ctx, ...this.mark(this.lit), ...this.place(plot, this.lit), 7 * scale);
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    const lines = this.found.metrics.map((name, place) =>
      h("div", {}, `${name} ${objectiveValue(name, trial.values[place])}`),
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
  const kept = [];
  for (const point of ordered) if (!kept.length || signY * point[1] < signY * kept.at(-1)[1]) kept.push(point);
  return kept.sort((a, b) => a[0] - b[0]);
}
