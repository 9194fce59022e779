// A slice: the objective by one parameter, or two parameters against each other, a point for each trial.

import { h } from "../elements/dom.js";
import { metric, paramValue } from "../format.js";
import { shape } from "../states.js";
import { required } from "../required.js";
import { clamped, objectiveAxis, objectiveOptions, shareOf, ticks } from "./axes.js";
import { head } from "./chart.js";
import { Points } from "./points.js";

/** @import { AxisView, CandidatesView } from "../answers.d.ts" */
/** @import { Objective } from "../objectives.js" */
/** @import { Open, Plot } from "./chart.js" */
/** @import { Pointed } from "./points.js" */

const JITTER = 0.55; // share of its place over which the trials with one choice are spread
const LANE = 0.07; // share of the axis, at its beginning, for trials without the parameter

export class Slice extends Points {
  /**
   * @param {HTMLElement} box
   * @param {Open} open
   */
  constructor(box, open) {
    super(box, "Points appear here once trials have a value.", open);
    /** @type {Lane | null} */
    this.across = null;
    /** @type {Lane | null} null: the objective goes up */
    this.up = null;
    this.objective = objectiveAxis("", [], "maximize");
  }

  /**
   * Draw the trials by one parameter, or by two.
   * @param {AxisView | null} across
   * @param {AxisView | null} up null: the objective goes up; otherwise the colour says how good a trial is
   * @param {CandidatesView} found
   * @param {Objective} objective
   */
  update(across, up, found, { metric: name, direction }) {
    this.across = across && new Lane(across);
    this.up = up && new Lane(up);
    this.objective = objectiveAxis(name, found.value, direction);
    this.trials = found.number.map((number, index) => ({
      id: number,
      number,
      state: found.state[index],
      value: found.value[index],
      rank: found.rank[index],
      across: across?.place[index] ?? null,
      up: up?.place[index] ?? null,
    }));
    if (up) this.trials.sort((a, b) => b.rank - a.rank); // the best are drawn last
    this.keepLit();
    this.rebuild();
  }

  plan() {
    if (!this.trials.length || !this.across) return null;
    const { width, height } = this.size();
    const options = objectiveOptions(() => this.objective);
    const objective = this.axis(this.objective.name, { size: 48, ...options.axis });
    const upwards = this.up && this.axis(this.up.name, { size: 62, ...this.up.marks(Math.floor(height / 34), 8) });
    const opts = this.options({
      padding: [8, 14, 0, 0],
      scales: {
        x: { time: false, range: () => [0, 1] },
        y: this.up ? { range: () => [0, 1] } : options.scale,
      },
      axes: [this.axis(this.across.name, this.across.marks(Math.floor(width / 80), 14)), upwards ?? objective],
      series: [{}, { points: { show: false } }],
    });
    return {
      opts,
      data: [
        [0, 1],
        /** @type {unknown[]} */ ([null, null]),
      ],
    };
  }

  /**
   * @param {Plot} plot
   * @param {Pointed} trial
   * @returns {[number, number]}
   */
  pixelsOf(plot, trial) {
    const x = required(this.across).at(trial.across, spread(trial.number, 0.618034));
    const y = this.up ? this.up.at(trial.up, spread(trial.number, 0.754878)) : clamped(this.objective, trial.value);
    return [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
  }

  /**
   * @param {Pointed} trial
   * @returns {[string, string]}
   */
  mark(trial) {
    return this.up ? [shape("COMPLETED"), this.pen.colour(colourOf(trial.rank))] : super.mark(trial);
  }

  /**
   * @param {Pointed} trial
   * @returns {HTMLElement[]}
   */
  describe(trial) {
    return [
      head(trial),
      ...placeWords(this.across, trial.across),
      ...placeWords(this.up, trial.up),
      h("div", {}, `${this.objective.name} ${metric(trial.value)}`),
    ];
  }
}

/**
 * Colour of a trial by the share of trials that are better.
 * @param {number} rank
 * @returns {string}
 */
export function colourOf(rank) {
  if (rank < 0.1) return "best";
  return rank < 0.5 ? "running" : "faint";
}

/** An axis from 0 to 1, with room at its beginning for trials without the parameter, if there are some. */
class Lane {
  /** @param {AxisView} axis */
  constructor(axis) {
    this.axis = axis;
    this.name = axis.name;
    this.hasMissing = axis.place.includes(null);
    this.low = this.hasMissing ? LANE + 0.03 : 0.02;
  }

  /**
   * @param {number} at
   * @returns {number}
   */
  scaled(at) {
    return this.low + at * (0.98 - this.low);
  }

  /**
   * Where a place is drawn. Those of one choice are apart by their `spread`, 0 to 1.
   * @param {number | null} place
   * @param {number} spread
   * @returns {number}
   */
  at(place, spread) {
    if (place === null) return LANE / 2 + LANE * 0.5 * (spread - 0.5);
    const width = this.axis.choices ? JITTER / this.axis.choices.length : 0;
    return this.scaled(shareOf(this.axis, place) + width * (spread - 0.5));
  }

  /**
   * Ticks for uPlot: at most `most`, with words of at most `letters` letters.
   * @param {number} most
   * @param {number} letters
   */
  marks(most, letters) {
    const found = ticks(this.axis, Math.max(2, most)).map(({ at, text }) => [this.scaled(at), text.slice(0, letters)]);
    const all = this.hasMissing ? [[LANE / 2, "none"], ...found] : found;
    return { splits: () => all.map(([at]) => at), values: () => all.map(([, text]) => text) };
  }

  /**
   * @param {number | null} place
   * @returns {string}
   */
  words(place) {
    if (place === null) return "none";
    return paramValue(this.axis.choices ? this.axis.choices[place] : place);
  }
}

/**
 * A line of a tooltip; none without a parameter.
 * @param {Lane | null} lane
 * @param {number | null} place
 * @returns {HTMLElement[]}
 */
function placeWords(lane, place) {
  return lane ? [h("div", {}, `${lane.name} ${lane.words(place)}`)] : [];
}

/**
 * A number from 0 to 1 that is always the same for a trial, and far from those of its neighbours.
 * @param {number} number
 * @param {number} step
 * @returns {number}
 */
function spread(number, step) {
  return (number * step) % 1;
}
