// The texts that a new study may begin with. What was written into one is still there after a look at another.

import { byId, h } from "../elements/dom.js";
import { BUILT_IN, OWN, OWN_CODE } from "./examples.js";
import { copyButton } from "../elements/copy_button.js";

/** @import { Panel } from "../page.js" */
/** @import { NewStudyContext } from "./state.js" */

/**
 * @param {NewStudyContext} context
 * @returns {Panel}
 */
export function beginningsPanel({ state }) {
  const begin = byId("begin", HTMLSelectElement);
  const spec = byId("spec", HTMLTextAreaElement);
  const texts = new Map([
    ["a model of ScaMP", BUILT_IN],
    ["a file of mine", OWN],
  ]);
  let shown = "";

  const code = byId("own-code");
  code.textContent = OWN_CODE;
  code.after(copyButton(() => OWN_CODE));

  /** @param {string} name */
  function show(name) {
    if (shown) texts.set(shown, spec.value);
    shown = name;
    begin.value = name;
    spec.value = texts.get(name) ?? "";
    byId("own").hidden = spec.value !== OWN;
  }

  function drawOptions() {
    begin.replaceChildren(...[...texts.keys()].map((name) => h("option", { value: name }, name)));
  }

  begin.addEventListener("change", () => show(begin.value));
  drawOptions();
  if (!state.originalId) show("a model of ScaMP");

  return {
    shows: ["original"],
    draw() {
      const name = `study ${state.originalId}`;
      if (!state.original || texts.has(name)) return;
      texts.set(name, state.original);
      drawOptions();
      show(name);
    },
  };
}
