// Turns a range that is drawn on an axis into a part of the filter of the table, and takes it out again.

/** How a filter names a parameter: `layers.0.width` is `layers[0].width`, and the axis of a list of blocks its size. */
export function nameInFilter(name, isCount = false) {
  if (!/^[A-Za-z_]\w*(\.\d+\.[A-Za-z_]\w*)*(\.\d+)?$/.test(name)) return `params[${JSON.stringify(name)}]`;
  const path = name.replace(/\.(\d+)/g, "[$1]");
  return isCount ? `size(${path})` : path;
}

/** Three digits, enough to tell places on a chart apart, as a number that a filter can have. */
function short(number) {
  return String(Number(number.toPrecision(3)));
}

/** The condition that the values of `axis` are between two places. */
export function rangeTerm(axis, from, to, isCount = false) {
  const name = nameInFilter(axis.name, isCount);
  if (axis.choices) return `${name} in ${JSON.stringify(axis.choices.slice(from, to + 1))}`;
  return `${name} >= ${short(from)} and ${name} <= ${short(to)}`;
}

/** `where` without the range of this name, if it has one. */
export function withoutRange(where, name) {
  const known = escaped(name);
  const number = "-?[\\d.]+(?:e[+-]?\\d+)?";
  const text = '"(?:\\\\.|[^"\\\\])*"';
  const list = `\\[(?:${text}|\\[(?:${text}|[^\\]"])*\\]|[^\\]"[])*\\]`;
  const term = `(?:${known} >= ${number} and ${known} <= ${number}|${known} in ${list})`;
  return where.replace(new RegExp(`(?:^| and )${term}(?= and |$)`), "").replace(/^ and /, "");
}

/** `where` with this range in place of an earlier one of the same name. */
export function withRange(where, name, term) {
  const rest = withoutRange(where.trim(), name);
  if (!rest) return term;
  const isAlternative = /\bor\b|\|\||\?/i.test(rest.replace(/"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'/g, ""));
  return `${isAlternative ? `(${rest})` : rest} and ${term}`;
}

function escaped(text) {
  return text.replace(/[$()*+.?[\\\]^{|}]/g, String.raw`\$&`);
}
