// From trials to the columns of numbers that a chart draws.

import { required } from "../required.js";

/**
 * Points in the order of their numbers.
 * @template {{number: number}} Numbered
 * @param {Iterable<Numbered>} points
 * @returns {Numbered[]}
 */
export function byNumber(points) {
  return [...points].sort((a, b) => a.number - b.number);
}

/**
 * The best value so far at each point, which are ordered; null before the first completed trial with a value.
 * @param {{state: string, value: number | null}[]} points
 * @param {string} direction
 * @returns {(number | null)[]}
 */
export function bestSoFar(points, direction) {
  const sign = direction === "minimize" ? -1 : 1;
  /** @type {number | null} */
  let best = null;
  return points.map(({ state, value }) => {
    if (state === "COMPLETED" && value !== null && (best === null || sign * value > sign * best)) best = value;
    return best;
  });
}

/**
 * Lines as columns over all of their steps: [steps, values of the first line, …]. `lines`: [{points: [[step, value], …]}].
 * @param {{points: [number, number][]}[]} lines
 * @returns {any[][]}
 */
export function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.points.map(([step]) => step)))].sort((a, b) => a - b);
  const rows = new Map(steps.map((step, row) => [step, row]));
  const columns = lines.map((line) => {
    const column = Array.from({ length: steps.length });
    for (const [step, value] of line.points) column[required(rows.get(step))] = value;
    return column;
  });
  return [steps, ...columns];
}
