// Predicted against measured, a point for each attempt, around the line of perfect prediction.

import { required } from "../required.js";
import { asFound } from "./axes.js";
import { Points } from "./points.js";
import { extent, oneTwoFive } from "./scales.js";

/** @import { Open, Plot } from "./chart.js" */
/** @import { Pointed } from "./points.js" */

/** A point is a trial with one measured attempt in `peak`, and has an id of its own. Both axes have the same range. */
export class Against extends Points {
  /**
   * `axes`: names of both axes. `isLog`: whether they are logarithmic. `words`: a number on an axis as text.
   * @param {HTMLElement} box
   * @param {string} blank
   * @param {Open} open
   * @param {{axes: [string, string], isLog?: boolean, words: (value: number) => string}} options
   */
  constructor(box, blank, open, { axes, isLog = false, words }) {
    super(box, blank, open);
    this.names = axes;
    this.isLog = isLog;
    this.words = words;
  }

  /**
   * [predicted, measured] of an attempt; null in either where it is unknown. Overridden.
   * @param {Record<string, any>} _peak
   * @returns {[number | null, number | null]}
   */
  both(_peak) {
    return [null, null];
  }

  /**
   * `peaks`: trial id → {trial_id, number, state, attempts}.
   * @param {Map<number, {trial_id: number, number: number, state: string, attempts: Record<string, any>[]}>} peaks
   */
  update(peaks) {
    const points = [];
    for (const { trial_id, number, state, attempts } of peaks.values()) {
      for (const peak of attempts)
        if (this.both(peak).every((value) => value))
          points.push({ id: `${trial_id}/${peak.attempt}`, number, state, attempt: attempts.length, peak });
    }
    this.refresh(points);
  }

  /** @returns {[number, number]} */
  range() {
    const [low, high] = extent(this.trials.flatMap(({ peak }) => this.both(peak).map(required)));
    return this.isLog ? [low / 1.4, high * 1.4] : [0, high * 1.12];
  }

  plan() {
    if (!this.trials.length) return null;
    const scale = { range: () => this.range(), ...(this.isLog ? { distr: 3 } : {}) };
    const axis = {
      values: (/** @type {unknown} */ _, /** @type {number[]} */ splits) => splits.map(this.words),
      ...(this.isLog ? { splits: () => oneTwoFive(...this.range()), filter: asFound } : {}),
    };
    const opts = this.options({
      padding: [8, 14, 0, 0],
      scales: { x: { time: false, ...scale }, y: scale },
      axes: [this.axis(this.names[0], axis), this.axis(this.names[1], { ...axis, size: this.isLog ? 54 : 44 })],
      series: [{}, { stroke: this.pen.colour("faint"), width: 1.5, dash: [5, 5], points: { show: false } }],
    });
    const ends = this.isLog ? this.range() : [0, this.range()[1]];
    return { opts, data: [ends, ends] };
  }

  /**
   * @param {Plot} plot
   * @param {Pointed} trial
   * @returns {[number, number]}
   */
  pixelsOf(plot, { peak }) {
    const [predicted, measured] = this.both(peak).map(required);
    return [plot.valToPos(predicted, "x", true), plot.valToPos(measured, "y", true)];
  }
}
