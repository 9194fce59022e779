// Cards of a page's grid, and what is in them: text beside the title, areas that scroll, tables with a head.

import { h, keyed } from "./dom.js";

/** @import { Children, Kept } from "./dom.js" */

/** @typedef {{name: string, numeric?: boolean, title?: string | null, id?: string | null}} ColumnHead */

/**
 * A card with a title. Its id and those of its parts begin with `id`. `span`: columns of the grid's twelve, all without
 * it. `beside`: elements in the line of the title.
 * @param {{id: string, title: string, span?: number | null, beside?: Children, hidden?: boolean}} options
 * @param {...Children} content
 * @returns {HTMLElement}
 */
export function card({ id, title, span = null, beside = [], hidden = false }, ...content) {
  const name = `${id}-title`;
  const heading = h("header", {}, h("h2", { id: name }, title), beside);
  const props = { class: span ? `card span-${span}` : "card", id: `${id}-card`, "aria-labelledby": name, hidden };
  return h("section", props, heading, content);
}

/**
 * Text beside a card's title.
 * @param {string | null} id of the card; null: the text has no id
 * @param {...Children} content
 * @returns {HTMLSpanElement}
 */
export function aside(id, ...content) {
  return h("span", { class: "aside", id: id && `${id}-aside` }, content);
}

/**
 * The element of a chart, with words for those who do not see it.
 * @param {string} id
 * @param {string} words
 * @returns {HTMLDivElement}
 */
export function chartBox(id, words) {
  return h("div", { class: "chart", id, role: "img", "aria-label": words });
}

/**
 * An area of the card `id` that scrolls by itself.
 * @param {string} id
 * @param {string} name class
 * @param {...Children} content
 * @returns {HTMLDivElement}
 */
export function scrolling(id, name, ...content) {
  return h("div", { class: name, tabindex: "0", role: "group", "aria-labelledby": `${id}-title` }, content);
}

/**
 * The head of a table. `columns`: [{name, numeric, title, id}].
 * @param {ColumnHead[]} columns
 * @param {Record<string, any>} [props]
 * @returns {HTMLTableSectionElement}
 */
export function tableHead(columns, props = {}) {
  const heads = columns.map(({ name, numeric = false, title = null, id = null }) =>
    h(name ? "th" : "td", { scope: name ? "col" : null, class: numeric && "num", title, id }, name),
  );
  return h("thead", props, h("tr", {}, heads));
}

/**
 * Make the body of a table hold one row per item, as `keyed` does; without items one row with the words `empty`.
 * @template Item
 * @template {Kept} Created
 * @param {HTMLElement} body
 * @param {Item[]} items
 * @param {object} options
 * @param {ColumnHead[]} options.columns
 * @param {string} options.empty
 * @param {(item: Item) => string} options.keyOf
 * @param {(item: Item) => Created} options.create
 * @param {(created: Created, item: Item) => unknown} options.update
 */
export function fillRows(body, items, { columns, empty, keyOf, create, update }) {
  const blank = () => emptyRow(columns, empty);
  if (items.length) keyed(body, items, keyOf, create, update);
  else keyed(body, [empty], () => empty, blank);
}

/**
 * A row that says why a table is empty.
 * @param {ColumnHead[]} columns
 * @param {string} words
 * @returns {HTMLTableRowElement}
 */
function emptyRow(columns, words) {
  return h("tr", {}, h("td", { colspan: columns.length, class: "muted" }, words));
}
