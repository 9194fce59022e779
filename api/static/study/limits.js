// The dialog that changes the limits of a study.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { required } from "../required.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const LIMITS = ["trials", "seconds", "device_hours", "max_concurrent", "target"];

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
    inputOf("priority").value = String(state.study.spec.priority ?? 0);
    for (const name of LIMITS) inputOf(name).value = limitText(shown[name]);
    byId("keep-terminator").hidden = !shown.terminator;
    inputOf("terminator").checked = true;
    wrong.hidden = true;
    dialog.showModal();
  });

  byId("limits-cancel").addEventListener("click", () => dialog.close());

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const limits = changedLimits(shown, (name) => inputOf(name).value, inputOf("terminator").checked);
      if (Object.keys(limits).length) await api.extend(state.studyId, limits);
      const priority = Number(inputOf("priority").value);
      if (priority !== (state.study.spec.priority ?? 0)) await api.prioritize(state.studyId, priority);
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
 * @param {(name: string) => string} textOf
 * @param {boolean} [hasTerminator] whether it keeps its rule that little is left to gain
 * @returns {Record<string, unknown>}
 */
export function changedLimits(budget, textOf, hasTerminator = true) {
  /** @type {Record<string, unknown>} */
  const changed = {};
  const drop = budget.terminator && !hasTerminator ? ["terminator"] : [];
  for (const name of LIMITS) {
    const text = textOf(name).trim();
    if (text === limitText(budget[name])) continue;
    if (!text) drop.push(name);
    else changed[name] = name === "target" ? parsedTarget(text) : Number(text);
  }
  return drop.length ? { ...changed, drop } : changed;
}

/**
 * A limit as the form shows it; targets of several objectives as “accuracy=0.9, loss=0.2”.
 * @param {any} limit
 * @returns {string}
 */
function limitText(limit) {
  if (limit === null || limit === undefined) return "";
  if (typeof limit !== "object") return String(limit);
  return Object.entries(limit)
    .map(([metric, value]) => `${metric}=${value}`)
    .join(", ");
}

/**
 * @param {string} text
 * @returns {number | Record<string, number>}
 */
function parsedTarget(text) {
  const pairs = text.split(",").map((pair) => pair.split("=").map((part) => part.trim()));
  const target =
    pairs[0].length === 1 ? Number(text) : Object.fromEntries(pairs.map(([key, value]) => [key, Number(value)]));
  const numbers = typeof target === "number" ? [target] : Object.values(target);
  if (!numbers.every(Number.isFinite))
    throw new Error("Write the target as a number, or as METRIC=NUMBER, METRIC=NUMBER.");
  return target;
}
