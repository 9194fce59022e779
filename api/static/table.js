// A table for thousands of rows that creates only the visible ones. A click on a column head sorts it.

import { coalesced, h, keyed } from "./dom.js";

const ROW = 32; // CSS pixels; the same as --row in style.css
const SPARE = 12; // rows kept above and below the visible ones

/**
 * `columns`: [{key, name, width or least, numeric, sort(row) → value, cell(td, row)}]. Rows are identified by `id`.
 * `onOpen(row)` handles a click anywhere in a row; `onHover(row | null)` is called as the pointer moves.
 */
export class VirtualTable {
  constructor(box, { columns, caption, sortBy, empty, rowClass, onOpen, onHover }) {
    Object.assign(this, { box, columns, empty, rowClass, onOpen, onHover, sortBy, descending: false, rows: [] });
    this.body = h("tbody");
    this.above = h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    this.below = h("tr", { class: "space", "aria-hidden": "true" }, h("td", { colspan: columns.length }));
    this.nothing = h("tr", { class: "empty" }, h("td", { colspan: columns.length }));
    this.table = h("table", {}, h("caption", { class: "visually-hidden" }, caption), this.widths(), h("thead", {}, this.heads()), this.body);
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + (column.width ?? column.least), 0)}px`;
    box.replaceChildren(this.table);
    this.draw = coalesced(() => this.drawNow());
    box.addEventListener("scroll", this.draw, { passive: true });
    new ResizeObserver(this.draw).observe(box);
    this.body.addEventListener("click", (event) => this.click(event));
    this.body.addEventListener("mouseover", (event) => this.onHover?.(this.rowOf(event.target)));
    this.body.addEventListener("mouseleave", () => this.onHover?.(null));
  }

  setRows(rows) {
    this.rows = rows;
    this.sort();
    this.draw();
  }

  widths() {
    return h("colgroup", {}, this.columns.map((column) => {
      const col = h("col");
      if (column.width) col.style.width = `${column.width}px`;
      return col;
    }));
  }

  heads() {
    this.heads_ = this.columns.map((column) => {
      const button = h("button", { type: "button", title: column.title ?? null, onclick: () => this.sortOn(column) }, column.name);
      return h("th", { scope: "col", class: column.numeric ? "num" : null, "aria-sort": column.key === this.sortBy ? "ascending" : "none" }, button);
    });
    return h("tr", {}, this.heads_);
  }

  sortOn(column) {
    this.descending = this.sortBy === column.key ? !this.descending : false;
    this.sortBy = column.key;
    this.columns.forEach((each, index) => {
      const order = this.descending ? "descending" : "ascending";
      this.heads_[index].setAttribute("aria-sort", each.key === this.sortBy ? order : "none");
    });
    this.sort();
    this.box.scrollTop = 0;
    this.draw();
  }

  /** Sort the rows. Rows without a value come last in both directions; equal rows are ordered by id. */
  sort() {
    const value = this.columns.find((column) => column.key === this.sortBy).sort;
    const sign = this.descending ? -1 : 1;
    const keys = new Map(this.rows.map((row) => [row, value(row)]));
    this.rows = [...this.rows].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      const missing = (x === null || x === undefined) - (y === null || y === undefined);
      if (missing || x === null || x === undefined) return missing || a.id - b.id;
      return (x < y ? -sign : x > y ? sign : 0) || a.id - b.id;
    });
  }

  drawNow() {
    const height = this.box.clientHeight;
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - SPARE);
    const last = Math.min(this.rows.length, first + Math.ceil(height / ROW) + 2 * SPARE);
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.rows.length - last) * ROW}px`;
    this.nothing.firstChild.textContent = this.empty();
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    const shown = this.rows.slice(first, last).map((row, offset) => ({ row, index: first + offset + 2 }));
    const parts = this.rows.length ? [{ node: this.above }, ...shown, { node: this.below }] : [{ node: this.nothing }];
    keyed(this.body, parts, (part) => part.node ?? part.row.id, (part) => part.node ?? this.create(part.row), (node, part) => part.row && this.fill(node, part));
  }

  create() {
    return h("tr", { class: "row" }, this.columns.map((column) => h("td", { class: column.numeric ? "num" : null })));
  }

  fill(node, { row, index }) {
    node.row = row;
    node.setAttribute("aria-rowindex", index);
    node.className = `row ${this.rowClass?.(row) ?? ""}`;
    this.columns.forEach((column, at) => column.cell(node.children[at], row));
  }

  rowOf(target) {
    return target.closest("tr.row")?.row ?? null;
  }

  click(event) {
    const row = this.rowOf(event.target);
    if (row && !event.target.closest("a") && !getSelection().toString()) this.onOpen(row);
  }
}
