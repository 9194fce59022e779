// Chooses which studies are listed, and in which order. The address of the page keeps what is chosen.

import { byId, h, keyed } from "../elements/dom.js";

/** @import { Panel } from "../page.js" */
/** @import { StudiesContext } from "./state.js" */

const REST_MS = 250;

/**
 * @param {StudiesContext} context
 * @returns {Panel}
 */
export function searchPanel({ state, page, loadPage }) {
  const form = byId("search", HTMLFormElement);
  const inputs = [.../** @type {NodeListOf<HTMLInputElement>} */ (form.querySelectorAll("[name]"))];
  const query = new URLSearchParams(location.search);
  for (const input of inputs) {
    if (input.type === "checkbox") input.checked = query.has(input.name);
    else input.value = query.get(input.name) ?? "";
  }
  /** @type {Record<"owner" | "project", Set<string>>} those of all studies that were listed */
  const known = { owner: new Set(), project: new Set() };
  const chosen = () =>
    Object.fromEntries(
      [...new FormData(form)].map(([name, value]) => [name, String(value).trim()]).filter(([, value]) => value),
    );
  state.chosen = chosen();
  let timer = 0;

  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      state.choose(chosen());
      const kept = new URLSearchParams(state.chosen);
      history.replaceState(null, "", kept.size ? `?${kept}` : location.pathname);
      page.run(() => loadPage(0));
    }, REST_MS);
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  return {
    shows: ["studies"],
    draw() {
      form.hidden = !state.studies.size && !state.isChosen;
      for (const [name, values] of Object.entries(known)) {
        for (const study of state.listed) values.add(study[/** @type {"owner" | "project"} */ (name)]);
        values.delete("");
        keyed(byId(`${name}s`), [...values].sort(), String, (value) => h("option", { value }));
      }
      byId("by-owner").hidden = !known.owner.size && !state.chosen.owner;
    },
  };
}
