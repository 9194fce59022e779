// The dialog that changes the limits of a study.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { required } from "../required.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const LIMITS = ["trials", "seconds", "device_hours", "max_concurrent"];

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function limitsPanel({ state, feeds }) {
  const button = byId("extend", HTMLButtonElement);
  const dialog = byId("limits", HTMLDialogElement);
  const wrong = byId("limits-wrong");
  const form = required(dialog.querySelector("form"));
  const inputOf = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));

  /** @type {Record<string, any>} */
  let shown = {}; // the limits that the form began with

  button.addEventListener("click", () => {
    shown = state.study.spec.budget;
    for (const name of LIMITS) inputOf(name).value = String(shown[name] ?? "");
    wrong.hidden = true;
    dialog.showModal();
  });

  byId("limits-cancel").addEventListener("click", () => dialog.close());

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const limits = changedLimits(shown, (name) => inputOf(name).value);
    try {
      if (Object.keys(limits).length) await api.extend(state.studyId, limits);
      dialog.close();
      feeds.refreshStudy("extended");
    } catch (error) {
      wrong.hidden = false;
      setText(wrong, /** @type {Error} */ (error).message);
    }
  });

  return {
    shows: ["study"],
    draw() {
      button.hidden =
        !state.study.spec.search.sampler || !["RUNNING", "PAUSED", "COMPLETED"].includes(state.study.state);
    },
  };
}

/**
 * The request that makes the limits of a budget those of a form; limits that are now empty are dropped.
 * @param {Record<string, any>} budget
 * @param {(name: string) => string} valueOf
 * @returns {Record<string, unknown>}
 */
export function changedLimits(budget, valueOf) {
  /** @type {Record<string, unknown>} */
  const changed = {};
  const drop = [];
  for (const name of LIMITS) {
    const [before, now] = [budget[name] ?? null, valueOf(name) === "" ? null : Number(valueOf(name))];
    if (now === before) continue;
    if (now === null) drop.push(name);
    else changed[name] = now;
  }
  return drop.length ? { ...changed, drop } : changed;
}
