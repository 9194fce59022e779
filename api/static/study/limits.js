// The dialog that changes the limits of a study.

import * as api from "../client.js";
import { byId } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { required } from "../required.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const LIMITS = ["trials", "seconds", "device_hours", "max_concurrent"];

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function limitsPanel({ state, page, feeds }) {
  const button = byId("extend", HTMLButtonElement);
  const dialog = byId("limits", HTMLDialogElement);
  const form = required(dialog.querySelector("form"));
  const inputOf = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));

  button.addEventListener("click", () => {
    for (const name of LIMITS) inputOf(name).value = String(state.study.spec.budget[name] ?? "");
    dialog.returnValue = "";
    dialog.showModal();
  });

  dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "yes") return;
    const limits = changedLimits(state.study.spec.budget, (name) => inputOf(name).value);
    if (!Object.keys(limits).length) return;
    page.run(async () => {
      await api.extend(state.studyId, limits);
      feeds.refreshStudy("extended");
      toast("The limits of the study are changed.", "info");
    });
  });

  return {
    shows: ["study"],
    draw() {
      button.hidden = !state.study.spec.search.sampler || !["RUNNING", "COMPLETED"].includes(state.study.state);
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
