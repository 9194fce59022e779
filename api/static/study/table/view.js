// How a user looks at the table of trials: its columns, order and filter. It is kept in the address of the page, so that
// a link or a reload shows the same. Only what differs from the default is in it.

/**
 * How a user looks at the table.
 * @typedef {object} View
 * @property {string[] | null} columns keys of the columns in their order; null: the default ones
 * @property {string} sort key of a column, or "best"
 * @property {boolean} descending
 * @property {string[]} states only trials in one of these; empty: all
 * @property {string} where the user's filter
 */

/** The default order: by number in a study without values yet, otherwise the best value first. */
const SORT = "best";

/**
 * The view in the query of an address.
 * @param {string} search
 * @returns {View}
 */
export function readView(search) {
  const query = new URLSearchParams(search);
  const sort = query.get("sort") || SORT;
  return {
    columns: query.get("columns")?.split(",").filter(Boolean).map(decodeURIComponent) ?? null,
    sort: sort.replace(/^-/, ""),
    descending: sort.startsWith("-"),
    states: query.getAll("state"),
    where: query.get("where") ?? "",
  };
}

/**
 * The query of an address, with a question mark; empty if all is as by default.
 * @param {View} view
 * @returns {string}
 */
export function writeView({ columns, sort, descending, states, where }) {
  const query = new URLSearchParams();
  if (columns) query.set("columns", columns.map(encodeComma).join(","));
  if (sort !== SORT) query.set("sort", `${descending ? "-" : ""}${sort}`);
  for (const state of states) query.append("state", state);
  if (where) query.set("where", where);
  const text = query.toString().replaceAll("%2C", ",");
  return text && `?${text}`;
}

/**
 * @param {string} key
 * @returns {string}
 */
function encodeComma(key) {
  return key.replaceAll("%", "%25").replaceAll(",", "%2C");
}

/**
 * What the API sorts by: the best first is the order of values in a direction.
 * @param {Pick<View, "sort" | "descending">} view
 * @param {string} direction
 * @returns {{by: string, descending: boolean}}
 */
export function orderOf({ sort, descending }, direction) {
  if (sort !== SORT) return { by: sort, descending };
  return { by: "value", descending: direction === "maximize" };
}

/**
 * The query of a request for the trials in this view.
 * @param {{by: string, descending: boolean, states?: string[], where?: string}} order
 * @returns {URLSearchParams}
 */
export function queryOf({ by, descending, states = [], where = "" }) {
  const query = new URLSearchParams({ by, descending: String(descending) });
  for (const state of states) query.append("state", state);
  if (where) query.set("where", where);
  return query;
}

const PARAMETER = "params.";

/**
 * Key of a parameter's column.
 * @param {string} name
 * @returns {string}
 */
export function parameterKey(name) {
  return PARAMETER + name;
}

/**
 * Name of the parameter of a column; null for other columns.
 * @param {string} key
 * @returns {string | null}
 */
export function parameterOf(key) {
  return key.startsWith(PARAMETER) ? key.slice(PARAMETER.length) : null;
}

/**
 * The value of a flat parameter such as `layers.0.width`; undefined if the candidate does not have it.
 * @param {Record<string, any>} params
 * @param {string} name
 * @returns {any}
 */
export function valueAt(params, name) {
  if (name in params) return params[name];
  const [head, ...rest] = name.split(".");
  let inner = params[head];
  while (rest.length && Array.isArray(inner)) inner = inner[Number(rest.shift())];
  const isBlock = rest.length && inner !== null && typeof inner === "object";
  return isBlock ? valueAt(inner, rest.join(".")) : undefined;
}

const MOST_PARAMETERS = 8;
const IN_BLOCK = /\.\d+\./;

/**
 * Keys of the columns that are shown by default: some parameters between a trial's reason and its plan.
 * @param {{key: string, isExtra?: boolean}[]} columns
 * @param {string[]} parameters
 * @returns {string[]}
 */
export function defaultColumns(columns, parameters) {
  const own = columns.filter((column) => !column.isExtra).map((column) => column.key);
  const at = own.indexOf("reason") + 1;
  return [...own.slice(0, at), ...shownByDefault(parameters).map(parameterKey), ...own.slice(at)];
}

/**
 * The parameters that have a column by default: the first, without those of blocks.
 * @param {string[]} parameters
 * @returns {string[]}
 */
export function shownByDefault(parameters) {
  return parameters.filter((name) => !IN_BLOCK.test(name)).slice(0, MOST_PARAMETERS);
}

/**
 * `keys` with one more: a parameter behind the others or the value, anything else at the end.
 * @param {string[]} keys
 * @param {string} key
 * @returns {string[]}
 */
export function added(keys, key) {
  const before = keys.findLastIndex((each) => parameterOf(each) !== null);
  const at = (before < 0 ? keys.indexOf("value") : before) + 1;
  return parameterOf(key) === null || at === 0 ? [...keys, key] : [...keys.slice(0, at), key, ...keys.slice(at)];
}

/**
 * `keys` with the one at `from` moved by `step` places, as far as there are some.
 * @param {string[]} keys
 * @param {number} from
 * @param {number} step
 * @returns {string[]}
 */
export function moved(keys, from, step) {
  const to = Math.min(Math.max(from + step, 0), keys.length - 1);
  const found = keys.filter((_, index) => index !== from);
  found.splice(to, 0, keys[from]);
  return found;
}
