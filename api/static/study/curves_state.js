// The curves of one metric that a study's page draws: whose, and their points. Methods that may change a line return
// whether they did.

/** @import { CurveView, NewMetrics } from "../answers.d.ts" */
/** @import { Line } from "../charts/curves.js" */

export class CurvesState {
  /**
   * At most `most` curves are drawn at a time.
   * @param {number} most
   */
  constructor(most) {
    this.most = most;
    this.metric = ""; // name of the metric whose curves are drawn
    /** @type {Set<string>} */
    this.metricNames = new Set();
    /** @type {number[]} numbers of the trials whose curves are drawn */
    this.leading = [];
    /** @type {Map<number, Line>} of the chosen metric, by number */
    this.lines = new Map();
  }

  /** Whether no more curves are drawn, as there are enough. */
  get hasMost() {
    return this.leading.length >= this.most;
  }

  /**
   * Note the names of the metrics among which a user chooses.
   * @param {Record<string, unknown>} values by name
   */
  noteNames(values) {
    for (const name of Object.keys(values)) this.metricNames.add(name);
  }

  /**
   * Forget the curves of the metric that was chosen before; they are drawn until the new ones have come.
   * @param {string} name
   */
  choose(name) {
    this.metric = name;
    this.lines.clear();
  }

  /**
   * Draw the curves of these trials, and forget those of others.
   * @param {number[]} leading
   * @returns {boolean}
   */
  setLeading(leading) {
    this.leading = leading;
    const drawn = this.lines.size;
    for (const number of this.lines.keys()) if (!leading.includes(number)) this.lines.delete(number);
    return this.lines.size < drawn;
  }

  /**
   * Draw the curve of a trial that has begun to run, if there is room among those that are drawn.
   * @param {number} number
   */
  lead(number) {
    if (!this.leading.includes(number) && !this.hasMost) this.leading.push(number);
  }

  /**
   * Keep curves of the metric `name`, unless another one has been chosen since they were asked for.
   * @param {string} name
   * @param {CurveView[]} found
   * @param {(number: number) => string} stateOf the state of the trial with a number
   * @returns {boolean}
   */
  keep(name, found, stateOf) {
    if (name !== this.metric) return false;
    for (const { trial_id: id, number, step, value } of found) {
      const points = step.map((at, index) => /** @type {Line["points"][number]} */ ([at, value[index]]));
      this.lines.set(number, { trial: { id, number, state: stateOf(number) }, points });
    }
    return true;
  }

  /**
   * @param {{number: number, state: string}} trial
   * @returns {boolean}
   */
  setState({ number, state }) {
    const line = this.lines.get(number);
    if (!line || line.trial.state === state) return false;
    line.trial = { ...line.trial, state };
    return true;
  }

  /**
   * Add an evaluation to a line that is drawn. Those between come with the next refresh of the curves.
   * @param {number} number
   * @param {NewMetrics} evaluation
   * @returns {boolean}
   */
  extend(number, { step, values }) {
    const line = this.lines.get(number);
    const value = values[this.metric];
    if (!line || value === null || !Number.isFinite(value) || step <= (line.points.at(-1)?.[0] ?? -1)) return false;
    line.points.push([step, value]);
    return true;
  }
}
