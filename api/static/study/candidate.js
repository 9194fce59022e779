// The dialog that adds a candidate to a study. With ?like=5 in the address it opens with the parameters of trial 5.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { required } from "../required.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function candidatePanel({ state, page }) {
  const button = byId("add", HTMLButtonElement);
  const dialog = byId("candidate", HTMLDialogElement);
  const text = byId("candidate-params", HTMLTextAreaElement);
  const value = byId("candidate-value", HTMLInputElement);
  const wrong = byId("candidate-wrong");
  let key = ""; // of the candidate in the dialog: a repeated click, or an answer that was lost, adds no second one

  /** @param {Record<string, any>} params */
  function open(params) {
    text.value = JSON.stringify(params, null, 2);
    value.value = "";
    key = api.newKey();
    wrong.hidden = true;
    dialog.showModal();
  }

  for (const input of [text, value]) input.addEventListener("input", () => (key = api.newKey()));
  button.addEventListener("click", () => open(state.study.best?.params ?? {}));
  byId("candidate-cancel").addEventListener("click", () => dialog.close());

  required(dialog.querySelector("form")).addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const { numbers } = await api.enqueue(state.studyId, parsed(text.value), key, numbersIn(value.value));
      if (!dialog.open) return; // a second click, with the same answer
      dialog.close();
      toast(`Trial ${numbers[0]} is added, beyond the budget of the study.`, "info");
    } catch (error) {
      wrong.hidden = false;
      setText(wrong, /** @type {Error} */ (error).message);
    }
  });

  return {
    shows: ["study"],
    async load() {
      const like = new URLSearchParams(location.search).get("like");
      if (like === null) return;
      history.replaceState(null, "", location.pathname); // a reload does not open it again
      const trial = await page.run(() => api.trial(state.studyId, Number(like)));
      if (trial) open(trial.params);
    },
    draw() {
      button.hidden =
        !state.study.spec.search.sampler || !["RUNNING", "PAUSED", "COMPLETED"].includes(state.study.state);
    },
  };
}

/**
 * The parameters in a text of JSON. Throws with what is wrong with it.
 * @param {string} text
 * @returns {Record<string, any>}
 */
export function parsed(text) {
  let params;
  try {
    params = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${/** @type {Error} */ (error).message}`, { cause: error });
  }
  if (typeof params !== "object" || params === null || Array.isArray(params)) {
    throw new Error('Write the parameters as {"name": value, …}.');
  }
  return params;
}

/**
 * The numbers in a text, separated by commas; null if it is empty. Throws if there is something else.
 * @param {string} text
 * @returns {number[] | null}
 */
export function numbersIn(text) {
  if (!text.trim()) return null;
  const numbers = text.split(",").map((part) => (part.trim() ? Number(part) : Number.NaN));
  if (!numbers.every(Number.isFinite)) throw new Error("Write the result as a number, or several separated by commas.");
  return numbers;
}
