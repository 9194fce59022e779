// A slice: the objective by one parameter, a point for each trial.

import { h } from "../elements/dom.js";
import { metric, num, paramValue } from "../format.js";
import { clamped, objectiveAxis, share, ticks } from "./axes.js";
import { head } from "./chart.js";
import { Points } from "./points.js";
import { padded } from "./scales.js";

const JITTER = 0.55; // share of its place over which the trials with one choice are spread
const LANE = 0.07; // share of the width, at the left, for trials without the parameter

export class Slice extends Points {
  constructor(box, open) {
    super(box, "Points appear here once trials have a value.", open);
    this.parameter = null;
  }

  /** `axis`: one of CandidatesView of the API, which is `found`. */
  update(axis, found, { metric: name, direction }) {
    this.parameter = axis;
    this.objective = objectiveAxis(name, found.value, direction);
    this.hasMissing = axis?.place.includes(null) ?? false;
    this.trials = found.number.map((number, index) => ({
      id: number,
      number,
      state: found.state[index],
      value: found.value[index],
      place: axis?.place[index] ?? null,
    }));
    if (this.lit) this.lit = this.trials.find((trial) => trial.id === this.lit.id) ?? null;
    this.rebuild();
  }

  /** Share of the width, 0 to 1, at which a trial is drawn. */
  x(trial) {
    const left = this.hasMissing ? LANE + 0.03 : 0.02;
    if (trial.place === null) return LANE / 2 + LANE * 0.5 * (spread(trial.number) - 0.5);
    let at = share(this.parameter, trial.place);
    if (this.parameter.choices) at += (JITTER * (spread(trial.number) - 0.5)) / this.parameter.choices.length;
    return left + at * (0.98 - left);
  }

  plan() {
    if (!this.trials.length || !this.parameter) return null;
    const left = this.hasMissing ? LANE + 0.03 : 0.02;
    const marks = ticks(this.parameter, Math.max(2, Math.floor(this.size().width / 80)));
    const named = [
      ...(this.hasMissing ? [{ x: LANE / 2, text: "none" }] : []),
      ...marks.map(({ at, text }) => ({ x: left + at * (0.98 - left), text: text.slice(0, 14) })),
    ];
    const { low, high } = this.objective;
    const opts = {
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 14, 0, 0],
      scales: { x: { time: false, range: () => [0, 1] }, y: { range: () => padded(low, high) } },
      axes: [
        this.axis(this.parameter.name, {
          splits: () => named.map(({ x }) => x),
          values: () => named.map(({ text }) => text),
        }),
        this.axis(this.objective.name, { size: 48, values: (_, splits) => splits.map(num) }),
      ],
      series: [{}, { points: { show: false } }],
      hooks: { draw: [(plot) => this.draw(plot)] },
    };
    return {
      opts,
      data: [
        [0, 1],
        [null, null],
      ],
    };
  }

  place(plot, trial) {
    return [plot.valToPos(this.x(trial), "x", true), plot.valToPos(clamped(this.objective, trial.value), "y", true)];
  }

  describe(trial) {
    const { parameter: axis } = this;
    const value = trial.place === null ? "none" : paramValue(axis.choices ? axis.choices[trial.place] : trial.place);
    return [
      head(trial),
      h("div", {}, `${axis.name} ${value}`),
      h("div", {}, `${this.objective.name} ${metric(trial.value)}`),
    ];
  }
}

/** A number from 0 to 1 that is always the same for a trial, and different from those of its neighbours. */
function spread(number) {
  return (number * 0.618034) % 1;
}
