// Axes of parameters: where a value is on one, its ticks, and a range of objectives that outliers do not squash. An axis
// is that of the API, {name, choices, low, high, log, place}; places on it are numbers, of choices their index.

import { num, paramValue } from "../format.js";
import { oneTwoFive, padded, tickSize } from "./scales.js";

/**
 * The axis of a parameter, as AxisView of the API, or that of an objective, which has no `place`.
 * @typedef {object} Axis
 * @property {string} name
 * @property {any[] | null} choices null: numbers from `low` to `high`
 * @property {number} low
 * @property {number} high
 * @property {boolean} log
 * @property {(number | null)[]} [place] of each trial; null: it does not have the parameter
 */

/** @typedef {Axis & {numOutside: number}} ObjectiveAxis `numOutside`: values beyond the ends */

/**
 * Share of the axis, 0 to 1, at which a place is drawn.
 * @param {Axis} axis
 * @param {number} place
 * @returns {number}
 */
export function shareOf(axis, place) {
  if (axis.choices) return (place + 0.5) / Math.max(1, axis.choices.length);
  if (!(axis.high > axis.low)) return 0.5;
  const scale = axis.log ? Math.log : Number;
  return (scale(place) - scale(axis.low)) / (scale(axis.high) - scale(axis.low));
}

/**
 * The place at a share of the axis, between its ends.
 * @param {Axis} axis
 * @param {number} at
 * @returns {number}
 */
export function placeAt(axis, at) {
  const within = Math.min(1, Math.max(0, at));
  if (axis.choices) return Math.min(axis.choices.length - 1, Math.floor(within * axis.choices.length));
  if (axis.log) return Math.exp(Math.log(axis.low) + within * (Math.log(axis.high) - Math.log(axis.low)));
  return axis.low + within * (axis.high - axis.low);
}

/**
 * [{at, text}] of an axis, at most `most` of them.
 * @param {Axis} axis
 * @param {number} [most]
 * @returns {{at: number, text: string}[]}
 */
export function ticks(axis, most = 6) {
  if (axis.choices) {
    const step = Math.ceil(axis.choices.length / most);
    return axis.choices
      .map((choice, index) => ({ at: shareOf(axis, index), text: paramValue(choice) }))
      .filter((_, index) => index % step === 0);
  }
  if (!(axis.high > axis.low)) return [{ at: 0.5, text: num(axis.low) }];
  return numbers(axis, most).map((place) => ({ at: shareOf(axis, place), text: num(place) }));
}

/**
 * @param {Axis} axis
 * @param {number} most
 * @returns {number[]}
 */
function numbers({ low, high, log, place }, most) {
  if (log) {
    const found = oneTwoFive(low, high);
    const step = Math.ceil(found.length / most);
    return found.length > 1 ? found.filter((_, index) => index % step === 0) : [low, high];
  }
  const isWhole = Number.isInteger(low) && Number.isInteger(high) && !!place?.every(isWholeOrNone);
  const size = Math.max(tickSize(high - low, most - 1), isWhole ? 1 : 0);
  const first = Math.ceil(low / size - 1e-9);
  const count = Math.floor(high / size + 1e-9) - first + 1;
  return Array.from({ length: Math.max(0, count) }, (_, index) => Number(((first + index) * size).toPrecision(12)));
}

/**
 * @param {number | null} place
 * @returns {boolean}
 */
function isWholeOrNone(place) {
  return place === null || Number.isInteger(place);
}

/**
 * Value below which a `fraction` of the sorted numbers are.
 * @param {ArrayLike<number>} sorted
 * @param {number} fraction
 * @returns {number}
 */
export function quantile(sorted, fraction) {
  return sorted[Math.min(sorted.length - 1, Math.floor(fraction * sorted.length))];
}

const STRETCH = 3; // outliers are this many times as far from the best value as nine tenths of the values are at most
const MAGNITUDES = 100; // the axis is logarithmic if nine tenths of the values reach up to this many times the least

/**
 * The axis of an objective, {low, high, log, numOutside}: from the best value on, without outliers at the worse end, which
 * would squash all others. It is logarithmic if the values differ by magnitudes.
 * @param {string} name
 * @param {number[]} values
 * @param {string} direction which values are better; empty if that is not known: then no value is an outlier
 * @returns {ObjectiveAxis}
 */
export function objectiveAxis(name, values, direction) {
  const sorted = Float64Array.from(values).sort(); // several times as fast as an array of thousands
  /** @type {ObjectiveAxis} */
  const axis = { name, choices: null, log: false, low: 0, high: 1, numOutside: 0 };
  if (!sorted.length) return axis;
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  if (low > 0 && quantile(sorted, 0.9) >= MAGNITUDES * low) return { ...axis, low, high, log: true };
  if (!direction) return { ...axis, low, high };
  if (direction === "minimize") high = Math.min(high, low + STRETCH * (quantile(sorted, 0.9) - low) || high);
  else low = Math.max(low, high - STRETCH * (high - quantile(sorted, 0.1)) || low);
  return { ...axis, low, high, numOutside: sorted.filter((value) => value < low || value > high).length };
}

/**
 * [low, high] of an objective's axis with some room at both ends, and at the lower one a `share` of it more.
 * @param {Axis} axis
 * @param {number} [share]
 * @returns {[number, number]}
 */
export function objectiveRange({ low, high, log }, share = 0) {
  if (!log) {
    const [from, to] = padded(low, high);
    return [from - (to - from) * share, to];
  }
  const room = (high / low) ** 0.06;
  return [low / room / (high / low) ** share, high * room];
}

/**
 * Options for uPlot: those of the scale and of the axis of an objective. `now()` is its axis; only its `log` is fixed.
 * @param {() => Axis} now
 * @param {number} [share]
 * @returns {{scale: Record<string, any>, axis: Record<string, any>}}
 */
export function objectiveOptions(now, share = 0) {
  const range = () => objectiveRange(now(), share);
  if (!now().log) return { scale: { range }, axis: { values: asNumbers } };
  const splits = () => oneTwoFive(now().low, now().high);
  return { scale: { range, distr: 3 }, axis: { values: asNumbers, splits, filter: asFound } };
}

/**
 * Labels of ticks, for uPlot.
 * @param {unknown} _
 * @param {number[]} splits
 * @returns {string[]}
 */
export function asNumbers(_, splits) {
  return splits.map(num);
}

/**
 * All ticks of a logarithmic axis: uPlot would leave some out.
 * @param {unknown} _
 * @param {number[]} splits
 * @returns {number[]}
 */
export function asFound(_, splits) {
  return splits;
}

/**
 * A value, or the end of the axis that it lies beyond.
 * @param {Axis} axis
 * @param {number} value
 * @returns {number}
 */
export function clamped(axis, value) {
  return Math.min(axis.high, Math.max(axis.low, value));
}

/**
 * Indices of trials, the best value first.
 * @param {number[]} values
 * @param {string} direction
 * @returns {number[]}
 */
export function bestFirst(values, direction) {
  const sign = direction === "minimize" ? 1 : -1;
  return values.map((_, index) => index).sort((a, b) => sign * (values[a] - values[b]));
}
