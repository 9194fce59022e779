// Submits the study, and shows what is wrong with it beside the button.

import * as api from "../client.js";
import { byId, h, setText } from "../elements/dom.js";
import { bytesWords } from "../format.js";
import { forgetDraft } from "./beginnings.js";
import { chosenFiles } from "./files.js";

/** @import { Panel } from "../page.js" */
/** @import { NewStudyContext } from "./state.js" */

const MOST_BYTES = 64 * 2 ** 20; // as the API

/**
 * @param {NewStudyContext} context
 * @returns {Panel}
 */
export function submissionPanel({ state, page }) {
  const form = byId("form", HTMLFormElement);
  const spec = byId("spec", HTMLTextAreaElement);
  const submit = byId("submit", HTMLButtonElement);
  const inherits = byId("inherits", HTMLInputElement);
  const paused = byId("paused", HTMLInputElement);
  const inputs = [byId("files", HTMLInputElement), byId("folder", HTMLInputElement)];
  let key = api.newKey(); // of this study: a click that is repeated, or an answer that was lost, makes no second one

  const chosen = () => chosenFiles(inputs[0].files ?? [], inputs[1].files ?? []);

  function drawFiles() {
    const files = chosen();
    byId("chosen").replaceChildren(...files.map(({ path, file }) => h("li", {}, `${path} (${bytesWords(file.size)})`)));
    byId("clear").hidden = !files.length;
    byId("inherit").hidden = !(state.hasFiles && state.isCopy);
    const others = files.length ? "The other files" : "The files";
    setText(byId("inherit-words"), `${others} of study ${state.originalId}`);
  }

  let isBusy = false;

  /** @param {boolean} busy */
  function setBusy(busy) {
    isBusy = busy;
    drawButton();
    setText(byId("busy"), busy ? "Checking the study and its files…" : "");
  }

  /** A copy cannot be submitted before it is known whether it has files. */
  function drawButton() {
    submit.disabled = isBusy || (state.originalId > 0 && !state.isKnown);
  }

  byId("clear").addEventListener("click", () => {
    for (const input of inputs) input.value = "";
    drawFiles();
  });
  addEventListener("pageshow", (event) => event.persisted && setBusy(false)); // back from the new study
  for (const input of inputs) input.addEventListener("change", drawFiles);
  for (const kind of ["input", "change"]) form.addEventListener(kind, () => (key = api.newKey()));

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    complain("");
    setBusy(true);
    const codeOf = state.hasFiles && state.isCopy && inherits.checked ? state.originalId : 0;
    try {
      const files = await readable(chosen());
      const study = await api.submit({ spec: spec.value, files, codeOf, isPaused: paused.checked }, key);
      forgetDraft(state.originalId);
      page.leave(`/studies/${study.id}`);
    } catch (thrown) {
      const error = /** @type {any} */ (thrown);
      if (error.status && error.status < 500) key = api.newKey();
      setBusy(false);
      submit.focus();
      complain(error.message);
    }
  });

  setBusy(false); // until here a click would load the page anew
  return {
    shows: ["original", "text"],
    draw() {
      drawFiles();
      drawButton();
    },
  };
}

/**
 * The files, as they are on the disk now. Throws if one has changed since it was chosen, which browsers do not send.
 * @param {import("./files.js").Chosen[]} files
 * @returns {Promise<import("./files.js").Chosen[]>}
 */
async function readable(files) {
  const size = files.reduce((sum, { file }) => sum + file.size, 0);
  if (size > MOST_BYTES) {
    const most = "send only your code, and let the workload read its data from a path that all hosts see";
    throw new Error(`Your files have ${bytesWords(size)}, and at most ${bytesWords(MOST_BYTES)} are allowed: ${most}.`);
  }
  return Promise.all(
    files.map(async ({ path, file }) => {
      try {
        return { path, file: new Blob([await file.arrayBuffer()]) };
      } catch {
        throw new Error(`${path} has changed since you chose it: choose it again.`);
      }
    }),
  );
}

/** @param {string} words */
function complain(words) {
  byId("wrong").hidden = !words;
  setText(byId("wrong"), words);
}
