// Changes the space in the text of a study without touching the rest: comments and the order of lines stay. A parameter
// that does not begin a line of its own, such as `space: {lr: {low: 0, high: 1}}`, is changed in the text by hand.

/** @typedef {import("../answers.d.ts").ParameterView} Parameter */

/**
 * The text with a parameter as it is now; null removes it. Null where the text has no line for it.
 * @param {string} text
 * @param {string} name
 * @param {Parameter | null} parameter
 * @returns {string | null}
 */
export function withParameter(text, name, parameter) {
  if (text.trimStart().startsWith("{")) return inJson(text, name, parameter);
  const lines = text.split("\n");
  const block = blockOf(lines);
  if (!block)
    return parameter && !/^space:/m.test(text) ? `${text.trimEnd()}\nspace:\n  ${written(parameter)}\n` : null;
  const from = lines.findIndex((line, at) => at > block.from && at < block.to && keyOf(line) === name);
  const comment = from < 0 ? "" : (/ +#.*$/.exec(lines[from])?.[0] ?? "");
  const indent = from < 0 ? block.indent : indentOf(lines[from]);
  const line = parameter && " ".repeat(indent) + written(parameter) + comment;
  if (from < 0) return line && [...lines.slice(0, block.to), line, ...lines.slice(block.to)].join("\n");
  let to = from + 1;
  while (to < block.to && lines[to].trim() && indentOf(lines[to]) > indent) to++;
  return [...lines.slice(0, from), ...(line ? [line] : []), ...lines.slice(to)].join("\n");
}

/**
 * Where the lines of the parameters are, and by how much they are indented; null: the text has no such lines.
 * @param {string[]} lines
 * @returns {{from: number, to: number, indent: number} | null}
 */
function blockOf(lines) {
  const from = lines.findIndex((line) => /^space:\s*(#.*)?$/.test(line));
  if (from < 0) return null;
  let to = from + 1;
  while (to < lines.length && (!lines[to].trim() || /^[\s#]/.test(lines[to]))) to++;
  while (to > from + 1 && !lines[to - 1].trim()) to--;
  const first = lines.slice(from + 1, to).find((line) => keyOf(line));
  return { from, to, indent: first ? indentOf(first) : 2 };
}

/** @param {string} line */
function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** @param {string} line */
function keyOf(line) {
  return /^\s+(["']?)([^\s"'#:][^"':]*)\1\s*:/.exec(line)?.[2] ?? null;
}

/**
 * @param {string} text
 * @param {string} name
 * @param {Parameter | null} parameter
 * @returns {string | null}
 */
function inJson(text, name, parameter) {
  try {
    const study = JSON.parse(text);
    study.space = { ...study.space };
    if (parameter) study.space[name] = dimension(parameter);
    else delete study.space[name];
    return JSON.stringify(study, null, 2);
  } catch {
    return null; // what is wrong with it is shown already
  }
}

/** @param {Parameter} parameter */
function dimension({ kind, low, high, step, log, values }) {
  if (kind === "choice" || kind === "ordinal") return { [kind]: JSON.parse(`[${values}]`) };
  return { low: Number(low), high: Number(high), ...(step ? { step: Number(step) } : {}), ...(log ? { log } : {}) };
}

/** @param {Parameter} parameter */
function written(parameter) {
  return `${parameter.name}: ${flow(parameter)}`;
}

/**
 * @param {Parameter} parameter
 * @returns {string}
 */
function flow({ kind, low, high, step, log, values }) {
  if (kind === "choice" || kind === "ordinal") return `{${kind}: [${values}]}`;
  const number = (/** @type {string} */ text) => (kind === "float" ? asFloat(text) : text);
  const parts = [`low: ${number(low)}`, `high: ${number(high)}`];
  if (step) parts.push(`step: ${number(step)}`);
  if (log) parts.push("log: true");
  return `{${parts.join(", ")}}`;
}

/**
 * A number as a text that is not an integer.
 * @param {string} text
 * @returns {string}
 */
function asFloat(text) {
  return /^[-+]?\d+$/.test(text.trim()) ? `${text.trim()}.0` : text.trim();
}
