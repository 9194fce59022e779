// What the charts of parameters show, as tables: for those who do not see the charts, and to read off numbers.

import { quantile, shareOf } from "../../charts/axes.js";
import { h } from "../../elements/dom.js";
import { count, metric, num, paramValue } from "../../format.js";

/** @import { AxisView } from "../../answers.d.ts" */

/** @typedef {{names: string[], rows: string[][]}} TableWords names of the columns, and texts; the first of a row is its head */

const BEST = 0.1; // the share of trials that counts as the best

/**
 * [{name, best, all, without}] as words: the values of each parameter among the best tenth, and among all trials.
 * @param {{axes: AxisView[], rank: number[]}} found
 * @returns {{name: string, best: string, all: string, without: number}[]}
 */
export function parameterWords({ axes, rank }) {
  const every = rank.map((_, index) => index);
  const best = every.filter((index) => rank[index] < BEST);
  return axes.map((axis) => ({
    name: axis.name,
    best: spread(axis, best),
    all: spread(axis, every),
    without: axis.place.filter((place) => place === null).length,
  }));
}

/**
 * Eight tenths of the numbers, or the most frequent choices with their shares.
 * @param {AxisView} axis
 * @param {number[]} indices
 * @returns {string}
 */
function spread(axis, indices) {
  const places = indices.map((index) => axis.place[index]).filter((place) => place !== null);
  if (!places.length) return "–";
  const { choices } = axis;
  if (!choices) {
    const sorted = places.sort((a, b) => a - b);
    const [low, high] = [quantile(sorted, 0.1), quantile(sorted, 0.9)];
    return low === high ? num(low) : `${num(low)} to ${num(high)}`;
  }
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const place of places) counts.set(place, (counts.get(place) ?? 0) + 1);
  const frequent = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
  return frequent
    .map(([place, number]) => `${paramValue(choices[place])} ${((100 * number) / places.length).toFixed(0)} %`)
    .join(", ");
}

const BINS = 6;

/**
 * [{name, number, best, middle}] of the trials in parts of an axis, and of those without the parameter.
 * @param {AxisView} axis
 * @param {number[]} value
 * @param {string} direction
 * @returns {{name: string, number: number, best: number, middle: number}[]}
 */
export function sliceWords(axis, value, direction) {
  /** @type {Map<number, number[]>} */
  const parts = new Map();
  axis.place.forEach((place, index) => {
    const part = partOf(axis, place);
    parts.set(part, [...(parts.get(part) ?? []), value[index]]);
  });
  return [...parts]
    .sort(([a], [b]) => a - b)
    .map(([part, values]) => {
      const sorted = values.sort((a, b) => a - b);
      return {
        name: partName(axis, part),
        number: sorted.length,
        best: direction === "minimize" ? sorted[0] : sorted[sorted.length - 1],
        middle: quantile(sorted, 0.5),
      };
    });
}

/**
 * The best value in each part of two axes: {names of the parts across, rows of texts, the first of each its name}.
 * @param {AxisView} across
 * @param {AxisView} up
 * @param {number[]} value
 * @param {string} direction
 * @returns {TableWords}
 */
export function gridWords(across, up, value, direction) {
  /** @type {Map<number, Map<number, number>>} part up → part across → value */
  const best = new Map();
  across.place.forEach((place, index) => {
    const [column, row] = [partOf(across, place), partOf(up, up.place[index])];
    const columns = best.get(row) ?? new Map();
    best.set(row, columns);
    const known = columns.get(column);
    const isBetter = known === undefined || (direction === "minimize" ? value[index] < known : value[index] > known);
    if (isBetter) columns.set(column, value[index]);
  });
  const columns = [...new Set([...best.values()].flatMap((row) => [...row.keys()]))].sort((a, b) => a - b);
  const rows = [...best].sort(([a], [b]) => a - b);
  return {
    names: columns.map((part) => partName(across, part)),
    rows: rows.map(([part, row]) => [partName(up, part), ...columns.map((column) => metric(row.get(column)))]),
  };
}

/**
 * @param {AxisView} axis
 * @param {number | null} place
 * @returns {number}
 */
function partOf(axis, place) {
  return place === null ? -1 : binOf(axis, place);
}

/**
 * @param {AxisView} axis
 * @param {number} part
 * @returns {string}
 */
function partName(axis, part) {
  return part < 0 ? "without it" : binName(axis, part);
}

/**
 * @param {AxisView} axis
 * @returns {number[]}
 */
function edges({ low, high, log }) {
  const scale = log ? Math.log : Number;
  const back = log ? Math.exp : Number;
  return Array.from({ length: BINS + 1 }, (_, index) => back(scale(low) + ((scale(high) - scale(low)) * index) / BINS));
}

/**
 * @param {AxisView} axis
 * @param {number} place
 * @returns {number}
 */
function binOf(axis, place) {
  if (axis.choices) return place;
  return Math.min(BINS - 1, Math.max(0, Math.floor(BINS * shareOf(axis, place) + 1e-9)));
}

/**
 * @param {AxisView} axis
 * @param {number} part
 * @returns {string}
 */
function binName(axis, part) {
  if (axis.choices) return paramValue(axis.choices[part]);
  const ends = edges(axis);
  return axis.high > axis.low ? `${num(ends[part])} to ${num(ends[part + 1])}` : num(axis.low);
}

/**
 * A table that opens on demand. `rows`: arrays of texts, the first of each is its head.
 * @param {string[]} names
 * @param {string[][]} rows
 * @returns {HTMLDivElement}
 */
function tableInWords(names, rows) {
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      names.map((name, at) => h("th", { scope: "col", class: at && "num" }, name)),
    ),
  );
  const body = rows.map((row) =>
    h(
      "tr",
      {},
      row.map((text, at) => (at ? h("td", { class: "num" }, text) : h("th", { scope: "row" }, text))),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "As a table" },
    h("table", { class: "plain words" }, head, h("tbody", {}, body)),
  );
}

/**
 * The rows of `sliceWords` as texts.
 * @param {AxisView} axis
 * @param {number[]} value
 * @param {string} direction
 * @returns {string[][]}
 */
export function sliceRows(axis, value, direction) {
  return sliceWords(axis, value, direction).map(({ name, number, best, middle }) => [
    name,
    count(number),
    metric(best),
    metric(middle),
  ]);
}

/** What a chart shows as a table, below it, folded until it is opened. */
export class InWords {
  /** @param {() => TableWords | null} make */
  constructor(make) {
    this.make = make;
    this.table = h("div");
    this.node = h("details", { class: "in-words" }, h("summary", {}, "As a table"), this.table);
    this.node.addEventListener("toggle", () => this.draw());
  }

  draw() {
    const found = this.node.open ? this.make() : null;
    if (found) this.table.replaceChildren(tableInWords(found.names, found.rows));
  }
}

/**
 * The legend of trials in three groups by their rank.
 * @returns {HTMLSpanElement[]}
 */
export function rankLegend() {
  return [
    h("span", { class: "line" }, "best tenth"),
    h("span", { class: "line half" }, "better half"),
    h("span", { class: "line rest" }, "others"),
  ];
}
