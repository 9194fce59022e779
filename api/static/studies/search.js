// Finds studies by words, and those that are archived. The address of the page keeps what is chosen.

import { byId } from "../elements/dom.js";

/** @import { Panel } from "../page.js" */
/** @import { StudiesContext } from "./state.js" */

const REST_MS = 250;

/**
 * @param {StudiesContext} context
 * @returns {Panel}
 */
export function searchPanel({ state, page, loadPage }) {
  const form = byId("search", HTMLFormElement);
  const [words, archived] = ["words", "archived"].map(
    (name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name)),
  );
  const query = new URLSearchParams(location.search);
  words.value = query.get("words") ?? "";
  archived.checked = query.has("archived");
  state.chosen = chosen();
  let timer = 0;

  function chosen() {
    return { words: words.value.trim(), archived: archived.checked };
  }

  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => {
      state.choose(chosen());
      const kept = new URLSearchParams();
      if (state.chosen.words) kept.set("words", state.chosen.words);
      if (state.chosen.archived) kept.set("archived", "1");
      history.replaceState(null, "", kept.size ? `?${kept}` : location.pathname);
      page.run(() => loadPage(0));
    }, REST_MS);
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  return {
    shows: ["studies"],
    draw: () => (form.hidden = !state.studies.size && !state.isChosen),
  };
}
