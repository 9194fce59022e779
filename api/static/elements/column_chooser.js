// A button with a dialog in which the columns of a table are chosen and ordered, by pointer or keyboard.

import { h, setText } from "./dom.js";

/** @typedef {{key: string, name: string}} Choice */

/**
 * How columns are chosen: see `columnChooser`.
 * @typedef {object} Chooser
 * @property {() => Choice[]} every
 * @property {() => string[]} chosen
 * @property {(keys: string[] | null) => void} onChange
 * @property {(keys: string[], key: string) => string[]} added
 * @property {(keys: string[], from: number, step: number) => string[]} moved
 */

/**
 * `every()` returns all columns, [{key, name}]; `chosen()` the keys of those that are shown, in their order.
 * `onChange(keys)` is called after each change, with null for the default columns. `added(keys, key)` and
 * `moved(keys, from, step)` return the keys with one more, or with one at another place.
 * @param {Chooser} options
 * @returns {[HTMLButtonElement, HTMLDialogElement]}
 */
export function columnChooser({ every, chosen, onChange, added, moved }) {
  const list = h("ul", { class: "choices" });
  const search = h("input", { type: "search", placeholder: "Find a column", "aria-label": "Find a column" });
  const close = h("button", { type: "submit", value: "yes" }, "Done");
  const reset = h("button", { type: "button", class: "quiet", onclick: () => change(null) }, "Default columns");
  const title = h("h2", { id: "columns-title" }, "Columns");
  const dialog = h(
    "dialog",
    { class: "chooser", "aria-labelledby": "columns-title" },
    title,
    search,
    list,
    h("form", { method: "dialog", class: "actions" }, reset, close),
  );
  const button = h("button", { type: "button", "aria-haspopup": "dialog" }, "Columns");
  button.addEventListener("click", () => {
    search.value = "";
    draw();
    dialog.showModal();
  });
  search.addEventListener("input", draw);

  /** @param {string[] | null} keys */
  function change(keys) {
    onChange(keys);
    draw();
  }

  /**
   * @param {Choice} choice
   * @param {number} index its place among those that are shown; -1: it is not
   * @param {string[]} keys
   */
  function item({ key, name }, index, keys) {
    const isChosen = index >= 0;
    const box = h("input", {
      type: "checkbox",
      checked: isChosen,
      onchange: () => change(isChosen ? keys.filter((each) => each !== key) : added(keys, key)),
    });
    const move = (/** @type {number} */ step, /** @type {string} */ mark, /** @type {string} */ words) =>
      h(
        "button",
        {
          type: "button",
          class: "quiet",
          "aria-label": `Move ${name} ${words}`,
          "data-step": step,
          disabled: !isChosen || (step < 0 ? index === 0 : index === keys.length - 1),
          onclick: () => {
            change(moved(keys, index, step));
            focusOn(list, key, step);
          },
        },
        mark,
      );
    return h("li", { "data-key": key }, h("label", {}, box, " ", name), move(-1, "↑", "up"), move(1, "↓", "down"));
  }

  function draw() {
    const keys = chosen();
    const columns = every();
    const focused = list.querySelector("input:focus")?.closest("li")?.dataset.key;
    list.replaceChildren(
      ...matching(columns, keys, search.value).map((column) => item(column, keys.indexOf(column.key), keys)),
    );
    if (focused) focusOn(list, focused, 0);
    setText(title, `Columns: ${keys.length} of ${columns.length}`);
  }

  return [button, dialog];
}

/**
 * The columns whose names contain `text`: those that are shown, in their order, then the others.
 * @param {Choice[]} columns
 * @param {string[]} keys of those that are shown
 * @param {string} text
 * @returns {Choice[]}
 */
function matching(columns, keys, text) {
  const shown = keys.map((key) => columns.find((column) => column.key === key)).filter(Boolean);
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
