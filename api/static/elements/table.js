// A table of many rows. Only the visible ones are created and fetched. Click a column head to sort by that column.

import { h, keyed } from "./dom.js";
import { coalesced } from "./frames.js";

/**
 * The rows of a table: how many, and the number of each, undefined where it is not known yet. An array of numbers is one.
 * @typedef {{length: number, at: (index: number) => number | undefined}} Rows
 */

/**
 * One column of rows of a kind. It has a fixed `width`, or at least `least` pixels and a share of what is left over.
 * @template Row
 * @typedef {object} Column
 * @property {string} key
 * @property {string} name
 * @property {string} [title] its tooltip
 * @property {number} [width]
 * @property {number} [least]
 * @property {boolean} [numeric]
 * @property {boolean} [isExtra] whether it is not shown by default
 * @property {() => boolean} [isLargeFirst] whether a first click on its head sorts downwards
 * @property {(cell: HTMLTableCellElement, row: Row) => unknown} cell fills the cell of a row
 * @property {(cell: HTMLTableCellElement, number: number) => unknown} [numberCell] fills it while only the row's number is known
 */

/**
 * @template Row
 * @typedef {object} TableOptions
 * @property {Column<Row>[]} columns those to show at first
 * @property {string} caption
 * @property {string} sortBy key of a column
 * @property {() => string} empty says why there are no rows
 * @property {(number: number) => Row | undefined} rowAt the row with this number, or undefined while it is not known
 * @property {(number: number) => string} [rowClass]
 * @property {(numbers: number[]) => void} onMissing is called with those rows that are seen and not known
 * @property {() => unknown} [onBeyond] is called when the number of a row that is seen is not known yet
 * @property {(key: string, descending: boolean) => void} onSort is to call `setOrder`
 * @property {(number: number) => void} onOpen handles a click anywhere in a row
 * @property {(row: Row | null) => void} [onHover] is called as the pointer moves, with null outside of rows
 */

/** @typedef {{node: HTMLTableRowElement} | {number: number, index: number}} Part the space around the created rows, or one of them */

const ROW = 32; // height in CSS pixels
const SPARE = 12; // rows kept above and below the visible ones

/**
 * Shows rows that are identified by their `number`.
 * @template Row
 */
export class PagedTable {
  /**
   * @param {HTMLElement} box
   * @param {TableOptions<Row>} options
   */
  constructor(box, { columns, caption, sortBy, empty, rowAt, rowClass, onMissing, onBeyond, onSort, onOpen, onHover }) {
    this.box = box;
    /** @type {Column<Row>[]} */
    this.columns = [];
    /** @type {HTMLTableCellElement[]} */
    this.heads = [];
    this.empty = empty;
    this.rowAt = rowAt;
    this.rowClass = rowClass;
    this.onMissing = onMissing;
    this.onBeyond = onBeyond;
    this.onSort = onSort;
    this.onOpen = onOpen;
    this.onHover = onHover;
    this.sortBy = sortBy;
    this.descending = false;
    /** @type {Rows} */
    this.order = { length: 0, at: () => undefined };
    this.body = h("tbody");
    this.above = spaceRow();
    this.below = spaceRow();
    this.nothing = h("tr", { class: "empty" }, h("td"));
    this.group = h("colgroup");
    this.head = h("thead");
    this.table = h("table", {}, h("caption", { class: "visually-hidden" }, caption), this.group, this.head, this.body);
    box.style.setProperty("--row", `${ROW}px`);
    box.replaceChildren(this.table);
    this.height = this.top = 0;
    this.draw = coalesced(() => this.drawNow());
    this.setColumns(columns);
    const scrolled = () => {
      this.top = box.scrollTop; // kept, as to ask for it while drawing would compute the layout once more
      this.draw();
    };
    box.addEventListener("scroll", scrolled, { passive: true });
    new ResizeObserver(([entry]) => {
      this.height = entry.contentRect.height;
      this.draw();
    }).observe(box);
    this.body.addEventListener("click", (event) => this.click(event));
    this.body.addEventListener("mouseover", (event) => this.onHover?.(this.rowOf(event.target)));
    this.body.addEventListener("mouseleave", () => this.onHover?.(null));
  }

  /**
   * Show the rows in this order. Those that are seen are asked for at once, as it may take a while until they are drawn.
   * @param {Rows} order
   */
  setOrder(order) {
    this.order = order;
    this.askForMissing(this.knownRows(...rowsInView(this.top, this.height, order.length)));
    this.draw();
  }

  /**
   * Show these columns, in this order.
   * @param {Column<Row>[]} columns
   */
  setColumns(columns) {
    this.columns = columns;
    this.group.replaceChildren(...this.widths());
    this.head.replaceChildren(this.headRow());
    for (const row of [this.above, this.below, this.nothing]) row.cells[0].colSpan = columns.length;
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + (column.width ?? column.least ?? 0), 0)}px`;
    keyed(this.body, [], () => null, spaceRow); // none: rows have a cell for each column
    this.draw();
  }

  widths() {
    return this.columns.map((column) => {
      const col = h("col");
      if (column.width) col.style.width = `${column.width}px`;
      return col;
    });
  }

  headRow() {
    this.heads = this.columns.map((column) => {
      const button = h(
        "button",
        { type: "button", title: column.title ?? null, onclick: () => this.sortOn(column) },
        column.name,
      );
      return h(
        "th",
        {
          scope: "col",
          class: column.numeric ? "num" : null,
          "aria-sort": this.sortOf(column),
        },
        button,
      );
    });
    return h("tr", {}, this.heads);
  }

  /** @param {Column<Row>} column */
  sortOf({ key }) {
    if (key !== this.sortBy) return "none";
    return this.descending ? "descending" : "ascending";
  }

  /** @param {Column<Row>} column */
  sortOn(column) {
    this.setSort(column.key, this.sortBy === column.key ? !this.descending : (column.isLargeFirst?.() ?? false));
    this.box.scrollTop = this.top = 0;
    this.onSort(this.sortBy, this.descending);
  }

  /**
   * Show in the head by which column rows are sorted.
   * @param {string} sortBy
   * @param {boolean} descending
   */
  setSort(sortBy, descending) {
    [this.sortBy, this.descending] = [sortBy, descending];
    this.columns.forEach((each, index) => this.heads[index].setAttribute("aria-sort", this.sortOf(each)));
  }

  drawNow() {
    const { length } = this.order;
    const [first, last] = rowsInView(this.top, this.height, length);
    this.above.cells[0].style.height = `${first * ROW}px`;
    if (!length) this.nothing.cells[0].textContent = this.empty();
    this.table.setAttribute("aria-rowcount", String(length + 1));
    const shown = this.knownRows(first, last);
    this.below.cells[0].style.height = `${(length - first - shown.length) * ROW}px`;
    if (shown.length < last - first) this.onBeyond?.();
    /** @type {Part[]} */
    const parts = length ? [{ node: this.above }, ...shown, { node: this.below }] : [{ node: this.nothing }];
    keyed(
      this.body,
      parts,
      (part) => ("node" in part ? part.node : part.number),
      (part) => ("node" in part ? part.node : this.create()),
      (node, part) => "node" in part || this.fill(node, part),
    );
    this.askForMissing(shown);
  }

  /** @param {{number: number}[]} rows that are seen */
  askForMissing(rows) {
    const missing = rows.map(({ number }) => number).filter((number) => !this.rowAt(number));
    if (missing.length) this.onMissing(missing);
  }

  /**
   * The rows from `first` to before `last`, as far as their numbers are known.
   * @param {number} first
   * @param {number} last
   */
  knownRows(first, last) {
    /** @type {{number: number, index: number}[]} */
    const known = [];
    for (let at = first; at < last; at += 1) {
      const number = this.order.at(at);
      if (number === undefined) break;
      known.push({ number, index: at + 2 });
    }
    return known;
  }

  create() {
    return h(
      "tr",
      { class: "row" },
      this.columns.map((column) => h("td", { class: column.numeric ? "num" : null })),
    );
  }

  /**
   * @param {HTMLTableRowElement} node
   * @param {{number: number, index: number}} part
   */
  fill(node, { number, index }) {
    const row = this.rowAt(number);
    node.dataset.number = String(number);
    if (node.getAttribute("aria-rowindex") !== String(index)) node.setAttribute("aria-rowindex", String(index));
    const name = `row ${this.rowClass?.(number) ?? ""}`;
    if (node.className !== name) node.className = name;
    this.columns.forEach((column, at) => {
      if (row) column.cell(node.cells[at], row);
      else column.numberCell?.(node.cells[at], number);
    });
  }

  /**
   * @param {EventTarget | null} target
   * @returns {Row | null}
   */
  rowOf(target) {
    const number = numberOf(target);
    return number === null ? null : (this.rowAt(number) ?? null);
  }

  /** @param {MouseEvent} event */
  click({ target }) {
    const number = numberOf(target);
    if (number !== null && !closest(target, "a") && !String(getSelection() ?? "")) this.onOpen(number);
  }
}

/** A row in place of those that are not created. */
function spaceRow() {
  return h("tr", { class: "space", "aria-hidden": "true" }, h("td"));
}

/**
 * Number of the row that has this element; null outside of rows.
 * @param {EventTarget | null} target
 * @returns {number | null}
 */
function numberOf(target) {
  const number = closest(target, "tr.row")?.dataset.number;
  return number === undefined ? null : Number(number);
}

/**
 * @param {EventTarget | null} target
 * @param {string} selector of HTML elements
 * @returns {HTMLElement | null}
 */
function closest(target, selector) {
  return target instanceof Element ? target.closest(selector) : null;
}

/**
 * [first, after the last] of `length` rows to create when the view begins at `top` and is `height` high.
 * @param {number} top
 * @param {number} height
 * @param {number} length
 * @returns {[number, number]}
 */
export function rowsInView(top, height, length) {
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  return [first, Math.min(length, first + Math.ceil(height / ROW) + 2 * SPARE)];
}
