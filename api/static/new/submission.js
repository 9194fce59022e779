// Submits the study, and shows what is wrong with it beside the button.

import * as api from "../client.js";
import { byId, h, setText } from "../elements/dom.js";
import { bytesWords } from "../format.js";
import { chosenFiles } from "./files.js";

/** @import { Panel } from "../page.js" */
/** @import { NewStudyContext } from "./state.js" */

/**
 * @param {NewStudyContext} context
 * @returns {Panel}
 */
export function submissionPanel({ state, page }) {
  const form = byId("form", HTMLFormElement);
  const spec = byId("spec", HTMLTextAreaElement);
  const submit = byId("submit", HTMLButtonElement);
  const inherits = byId("inherits", HTMLInputElement);
  const inputs = [byId("files", HTMLInputElement), byId("folder", HTMLInputElement)];
  let key = newKey(); // of this study: a click that is repeated, or an answer that was lost, makes no second one

  const chosen = () => chosenFiles(inputs[0].files ?? [], inputs[1].files ?? []);

  function drawFiles() {
    const files = chosen();
    byId("chosen").replaceChildren(...files.map(({ path, file }) => h("li", {}, `${path} (${bytesWords(file.size)})`)));
    byId("inherit").hidden = !state.hasFiles || files.length > 0;
  }

  /** @param {boolean} isBusy */
  function setBusy(isBusy) {
    submit.disabled = isBusy;
    setText(byId("busy"), isBusy ? "Checking the study and its files…" : "");
  }

  addEventListener("pageshow", (event) => event.persisted && setBusy(false)); // back from the new study
  for (const input of inputs) input.addEventListener("change", drawFiles);
  for (const kind of ["input", "change"]) form.addEventListener(kind, () => (key = newKey()));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain("");
    setBusy(true);
    const files = chosen();
    const codeOf = state.hasFiles && !files.length && inherits.checked ? state.originalId : 0;
    try {
      const study = await api.submit({ spec: spec.value, files, codeOf }, key);
      page.leave(`/studies/${study.id}`);
    } catch (thrown) {
      const error = /** @type {any} */ (thrown);
      if (error.status) key = newKey();
      setBusy(false);
      complain(error.message);
    }
  });

  return {
    shows: ["original"],
    draw() {
      setText(byId("inherit-words"), `The files of study ${state.originalId}`);
      drawFiles();
    },
  };
}

/**
 * Random text; `crypto.randomUUID` does not exist on pages that came over plain HTTP from another host.
 * @returns {string}
 */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {string} words */
function complain(words) {
  byId("wrong").hidden = !words;
  setText(byId("wrong"), words);
}
