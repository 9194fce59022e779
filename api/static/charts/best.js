// The best value so far of several studies, by the number of their trials.

import { objectiveAxis, objectiveOptions } from "./axes.js";
import { Chart, steppedPaths, wholeNumbers } from "./chart.js";
import { aligned } from "./series.js";

/**
 * The best values so far of one study, by number of trials; `colour` is a name of the theme.
 * @typedef {{name: string, colour: string, points: [number, number][]}} BestLine
 */

export class BestLines extends Chart {
  /** @param {HTMLElement} box */
  constructor(box) {
    super(box, "Lines appear here as soon as a trial of a chosen study has completed.");
    /** @type {BestLine[]} */
    this.lines = [];
    this.metric = "";
    this.shown = objectiveAxis("", [], "");
  }

  /**
   * @param {BestLine[]} lines
   * @param {{metric: string, direction: string}} objective
   */
  update(lines, { metric, direction }) {
    this.lines = lines;
    this.metric = metric;
    const values = lines.flatMap(({ points }) => points.map(([, value]) => value));
    this.shown = objectiveAxis(metric, values, direction);
    this.rebuild();
  }

  plan() {
    if (!this.lines.some(({ points }) => points.length)) return null;
    const values = objectiveOptions(() => this.shown);
    const opts = {
      legend: { show: false },
      padding: [8, 12, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: false }, y: values.scale },
      axes: [this.axis("trials", { values: wholeNumbers }), this.axis(this.metric, { size: 48, ...values.axis })],
      series: [{}, ...this.lines.map((line) => this.seriesOf(line))],
    };
    return { opts, data: aligned(this.lines) };
  }

  /** @param {BestLine} line */
  seriesOf({ name, colour, points }) {
    const stroke = this.pen.colour(colour);
    const isPoint = points.length === 1;
    return {
      label: name,
      stroke,
      width: 2,
      spanGaps: true,
      paths: steppedPaths(1),
      points: { show: isPoint, size: 7, fill: stroke },
    };
  }
}
