// A table of many rows. Only the visible ones are created and fetched. Click a column head to sort by that column.

import { h, keyed } from "./dom.js";
import { coalesced } from "./frames.js";

const ROW = 32; // height in CSS pixels
const SPARE = 12; // rows kept above and below the visible ones

/**
 * `columns`: [{key, name, width or least, numeric, isLargeFirst(), cell(td, row)}], those to show at first. A row is identified by its `number`; `rowAt(number)`
 * returns it, or undefined while it is not known: then only the first column is filled, and `onMissing(numbers)` is called.
 * `onSort(key, descending)` is to call `setOrder`. `onOpen(number)` handles a click anywhere in a row; `onHover(row | null)`
 * is called as the pointer moves.
 */
export class PagedTable {
  constructor(box, { columns, caption, sortBy, empty, rowAt, rowClass, onMissing, onSort, onOpen, onHover }) {
    Object.assign(this, {
      box,
      empty,
      rowAt,
      rowClass,
      onMissing,
      onSort,
      onOpen,
      onHover,
      sortBy,
      descending: false,
    });
    this.order = { length: 0, at: () => null };
    this.body = h("tbody");
    [this.above, this.below] = [0, 0].map(() => h("tr", { class: "space", "aria-hidden": "true" }, h("td")));
    this.nothing = h("tr", { class: "empty" }, h("td"));
    this.group = h("colgroup");
    this.head = h("thead");
    this.table = h("table", {}, h("caption", { class: "visually-hidden" }, caption), this.group, this.head, this.body);
    this.setColumns(columns);
    box.style.setProperty("--row", `${ROW}px`);
    box.replaceChildren(this.table);
    this.height = this.top = 0;
    this.draw = coalesced(() => this.drawNow());
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

  /** `order`: {length, at(index) → number of a row}; an array has both. */
  setOrder(order) {
    this.order = order;
    this.draw();
  }

  /** Show these columns, in this order. */
  setColumns(columns) {
    this.columns = columns;
    this.group.replaceChildren(...this.widths());
    this.head.replaceChildren(this.headRow());
    for (const row of [this.above, this.below, this.nothing]) row.firstChild.colSpan = columns.length;
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + (column.width ?? column.least), 0)}px`;
    keyed(this.body, [], () => null); // rows have a cell for each column
    this.draw?.();
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

  sortOf({ key }) {
    if (key !== this.sortBy) return "none";
    return this.descending ? "descending" : "ascending";
  }

  sortOn(column) {
    this.setSort(column.key, this.sortBy === column.key ? !this.descending : (column.isLargeFirst?.() ?? false));
    this.box.scrollTop = this.top = 0;
    this.onSort(this.sortBy, this.descending);
  }

  /** Show in the head by which column rows are sorted. */
  setSort(sortBy, descending) {
    [this.sortBy, this.descending] = [sortBy, descending];
    this.columns.forEach((each, index) => this.heads[index].setAttribute("aria-sort", this.sortOf(each)));
  }

  drawNow() {
    const { length } = this.order;
    const [first, last] = rowsInView(this.top, this.height, length);
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(length - last) * ROW}px`;
    if (!length) this.nothing.firstChild.textContent = this.empty();
    this.table.setAttribute("aria-rowcount", length + 1);
    const shown = Array.from({ length: Math.max(0, last - first) }, (_, at) => ({
      number: this.order.at(first + at),
      index: first + at + 2,
    }));
    const parts = length ? [{ node: this.above }, ...shown, { node: this.below }] : [{ node: this.nothing }];
    keyed(
      this.body,
      parts,
      (part) => part.node ?? part.number,
      (part) => part.node ?? this.create(),
      (node, part) => part.node || this.fill(node, part),
    );
    const missing = shown.map((part) => part.number).filter((number) => !this.rowAt(number));
    if (missing.length) this.onMissing(missing);
  }

  create() {
    return h(
      "tr",
      { class: "row" },
      this.columns.map((column) => h("td", { class: column.numeric ? "num" : null })),
    );
  }

  fill(node, { number, index }) {
    const row = this.rowAt(number);
    node.number = number;
    if (node.getAttribute("aria-rowindex") !== String(index)) node.setAttribute("aria-rowindex", index);
    const name = `row ${this.rowClass?.(number) ?? ""}`;
    if (node.className !== name) node.className = name;
    if (row) this.columns.forEach((column, at) => column.cell(node.children[at], row));
    else this.columns[0].cell(node.children[0], { number });
  }

  rowOf(target) {
    const number = target.closest("tr.row")?.number;
    return number === undefined ? null : (this.rowAt(number) ?? null);
  }

  click(event) {
    const number = event.target.closest("tr.row")?.number;
    if (number !== undefined && !event.target.closest("a") && !getSelection().toString()) this.onOpen(number);
  }
}

/** [first, after the last] of `length` rows to create when the view begins at `top` and is `height` high. */
export function rowsInView(top, height, length) {
  const first = Math.max(0, Math.floor(top / ROW) - SPARE);
  return [first, Math.min(length, first + Math.ceil(height / ROW) + 2 * SPARE)];
}
