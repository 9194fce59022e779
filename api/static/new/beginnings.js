// The texts that a new study may begin with. What was written into one is still there after a look at another, a reload
// and a login.

import { copyButton } from "../elements/copy_button.js";
import { byId, h } from "../elements/dom.js";
import { BUILT_IN, OWN, OWN_CODE } from "./examples.js";

/** @import { Panel } from "../page.js" */
/** @import { NewStudyContext } from "./state.js" */

const FIRST = "a model of ScaMP";
const EXAMPLES = { [FIRST]: BUILT_IN, "a file of mine": OWN };

/**
 * @param {NewStudyContext} context
 * @returns {Panel}
 */
export function beginningsPanel({ state }) {
  const begin = byId("begin", HTMLSelectElement);
  const spec = byId("spec", HTMLTextAreaElement);
  const copyName = `study ${state.originalId}`;
  const draft = new Draft(`new study ${state.originalId}`);
  const texts = new Map([...Object.entries(EXAMPLES), ...draft.texts]);
  let shown = "";

  const code = byId("own-code");
  code.textContent = OWN_CODE;
  code.after(copyButton(() => OWN_CODE));

  function keep() {
    if (!shown) return;
    texts.set(shown, spec.value);
    draft.keep(texts, shown);
  }

  /** @param {string} name */
  function show(name) {
    keep();
    shown = name;
    begin.replaceChildren(...[...texts.keys()].map((each) => h("option", { value: each }, each)));
    begin.value = name;
    spec.value = texts.get(name) ?? "";
    byId("own").hidden = name !== "a file of mine";
    state.setCopy(name === copyName);
  }

  byId("reset").addEventListener("click", () => {
    forgetDraft(state.originalId);
    location.reload();
  });
  begin.addEventListener("change", () => show(begin.value));
  spec.addEventListener("input", keep);
  if (draft.shown || !state.originalId) show(draft.shown || FIRST);

  return {
    shows: ["original"],
    draw() {
      if (shown || !state.isLoaded) return;
      if (state.original) texts.set(copyName, state.original);
      show(state.original ? copyName : FIRST);
    },
  };
}

/** What was written, kept by the browser for this tab until the study is submitted. */
export class Draft {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    const kept = JSON.parse(sessionStorage.getItem(name) ?? "{}");
    /** @type {[string, string][]} text by the name of what it began with */
    this.texts = kept.texts ?? [];
    /** @type {string} name of the text that is shown; empty: none is kept */
    this.shown = kept.shown ?? "";
  }

  /**
   * @param {Map<string, string>} texts
   * @param {string} shown
   */
  keep(texts, shown) {
    sessionStorage.setItem(this.name, JSON.stringify({ texts: [...texts], shown }));
  }
}

/** @param {number} originalId */
export function forgetDraft(originalId) {
  sessionStorage.removeItem(`new study ${originalId}`);
}
