// A button with a dialog in which the columns of a table are chosen and ordered, by pointer or keyboard.

import { h, setText } from "./dom.js";

/** @typedef {{key: string, name: string}} Choice */

/**
 * What a chooser asks and tells its table.
 * @typedef {object} ChooserOptions
 * @property {() => Choice[]} every all columns
 * @property {() => string[]} chosen keys of the columns that are shown, in their order
 * @property {(keys: string[] | null) => void} onChange is called after each change; null: the default columns
 * @property {(keys: string[], key: string) => string[]} added the keys with one more
 * @property {(keys: string[], from: number, step: number) => string[]} moved the keys with one at another place
 */

/**
 * The button, and the dialog that it opens.
 * @param {ChooserOptions} options
 * @returns {[HTMLButtonElement, HTMLDialogElement]}
 */
export function columnChooser(options) {
  const chooser = new ColumnChooser(options);
  return [chooser.button, chooser.dialog];
}

class ColumnChooser {
  /** @param {ChooserOptions} options */
  constructor(options) {
    this.options = options;
    this.title = h("h2", { id: "columns-title" }, "Columns");
    this.search = h("input", {
      type: "search",
      placeholder: "Find a column",
      "aria-label": "Find a column",
      oninput: () => this.draw(),
    });
    this.list = h("ul", { class: "choices" });
    this.dialog = h(
      "dialog",
      { class: "chooser", "aria-labelledby": "columns-title" },
      this.title,
      this.search,
      this.list,
      this.actions(),
    );
    this.button = h("button", { type: "button", "aria-haspopup": "dialog", onclick: () => this.open() }, "Columns");
  }

  actions() {
    const reset = { type: "button", class: "quiet", onclick: () => this.change(null) };
    return h(
      "form",
      { method: "dialog", class: "actions" },
      h("button", reset, "Default columns"),
      h("button", { type: "submit", value: "yes" }, "Done"),
    );
  }

  open() {
    this.search.value = "";
    this.draw();
    this.dialog.showModal();
  }

  /** @param {string[] | null} keys */
  change(keys) {
    this.options.onChange(keys);
    this.draw();
  }

  draw() {
    const keys = this.options.chosen();
    const columns = this.options.every();
    const focused = this.list.querySelector("input:focus")?.closest("li")?.dataset.key;
    const wanted = matching(columns, keys, this.search.value);
    this.list.replaceChildren(...wanted.map((column) => this.item(column, keys)));
    if (focused) focusOn(this.list, focused, 0);
    setText(this.title, `Columns: ${keys.length} of ${columns.length}`);
  }

  /**
   * A line of the list: whether a column is shown, and the buttons that move it.
   * @param {Choice} choice
   * @param {string[]} keys of the columns that are shown
   */
  item({ key, name }, keys) {
    const index = keys.indexOf(key);
    const isShown = index >= 0;
    const box = h("input", {
      type: "checkbox",
      checked: isShown,
      onchange: () => this.change(isShown ? keys.filter((each) => each !== key) : this.options.added(keys, key)),
    });
    const up = this.mover(keys, index, -1, { disabled: index <= 0, "aria-label": `Move ${name} up` });
    const isLast = index === keys.length - 1;
    const down = this.mover(keys, index, 1, { disabled: !isShown || isLast, "aria-label": `Move ${name} down` });
    return h("li", { "data-key": key }, h("label", {}, box, " ", name), up, down);
  }

  /**
   * A button that moves a column.
   * @param {string[]} keys
   * @param {number} index of the column among them
   * @param {number} step -1: up, 1: down
   * @param {Record<string, any>} props
   */
  mover(keys, index, step, props) {
    const onclick = () => {
      this.change(this.options.moved(keys, index, step));
      focusOn(this.list, keys[index], step);
    };
    return h("button", { type: "button", class: "quiet", "data-step": step, onclick, ...props }, step < 0 ? "↑" : "↓");
  }
}

/**
 * The columns whose names contain `text`: those that are shown, in their order, then the others.
 * @param {Choice[]} columns
 * @param {string[]} keys of those that are shown
 * @param {string} text
 * @returns {Choice[]}
 */
function matching(columns, keys, text) {
  const shown = keys.flatMap((key) => columns.find((column) => column.key === key) ?? []);
  const ordered = [...shown, ...columns.filter(({ key }) => !keys.includes(key))];
  const wanted = text.trim().toLowerCase();
  return ordered.filter(({ name }) => name.toLowerCase().includes(wanted));
}

/**
 * Focus the button that moves a column by `step`, or its checkbox if there is none or it cannot.
 * @param {HTMLElement} list
 * @param {string} key
 * @param {number} step
 */
function focusOn(list, key, step) {
  const row = [...list.children].find((each) => each.getAttribute("data-key") === key);
  /** @type {HTMLElement | null | undefined} */
  const target = row?.querySelector(`button[data-step="${step}"]:not(:disabled)`) ?? row?.querySelector("input");
  target?.focus();
}
