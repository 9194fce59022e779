// Turns a range that is drawn on an axis into a part of the filter of the table, and takes it out again.

/** @import { Axis } from "../../charts/axes.js" */

/**
 * How a filter names a parameter: `layers.0.width` is `layers[0].width`, and the axis of a list of blocks its size.
 * @param {string} name flat name of a parameter
 * @param {boolean} [isCount] whether it is the number of blocks of a list
 * @returns {string}
 */
export function nameInFilter(name, isCount = false) {
  if (!/^[A-Za-z_]\w*(\.\d+\.[A-Za-z_]\w*)*(\.\d+)?$/.test(name)) return `params[${JSON.stringify(name)}]`;
  const path = name.replace(/\.(\d+)/g, "[$1]");
  return isCount ? `size(${path})` : path;
}

/**
 * Three digits, enough to tell places on a chart apart, as a number that a filter can have.
 * @param {number} number
 * @returns {string}
 */
function short(number) {
  return String(Number(number.toPrecision(3)));
}

/**
 * The condition that the values of `axis` are between two places.
 * @param {Pick<Axis, "name" | "choices">} axis
 * @param {number} from
 * @param {number} to
 * @param {boolean} [isCount]
 * @returns {string}
 */
export function rangeTerm(axis, from, to, isCount = false) {
  const name = nameInFilter(axis.name, isCount);
  if (axis.choices) return `${name} in ${JSON.stringify(axis.choices.slice(from, to + 1))}`;
  return `${name} >= ${short(from)} and ${name} <= ${short(to)}`;
}

/**
 * `where` without the range of this name, if it has one.
 * @param {string} where
 * @param {string} name as the filter has it
 * @returns {string}
 */
export function withoutRange(where, name) {
  const known = escaped(name);
  const number = "-?[\\d.]+(?:e[+-]?\\d+)?";
  const text = '"(?:\\\\.|[^"\\\\])*"';
  const list = `\\[(?:${text}|\\[(?:${text}|[^\\]"])*\\]|[^\\]"[])*\\]`;
  const term = `(?:${known} >= ${number} and ${known} <= ${number}|${known} in ${list})`;
  return where.replace(new RegExp(`(?:^| and )${term}(?= and |$)`), "").replace(/^ and /, "");
}

/**
 * `where` with this range in place of an earlier one of the same name.
 * @param {string} where
 * @param {string} name as the filter has it
 * @param {string} term
 * @returns {string}
 */
export function withRange(where, name, term) {
  const rest = withoutRange(where.trim(), name);
  if (!rest) return term;
  const isAlternative = /\bor\b|\|\||\?/i.test(rest.replace(/"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'/g, ""));
  return `${isAlternative ? `(${rest})` : rest} and ${term}`;
}

/**
 * @param {string} text
 * @returns {string}
 */
function escaped(text) {
  return text.replace(/[$()*+.?[\\\]^{|}]/g, String.raw`\$&`);
}
