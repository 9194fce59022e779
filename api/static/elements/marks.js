// States as an icon and a word, and bars of trials by state.

import { TRIAL_STATES, label, shape } from "../states.js";
import { h, icon } from "./dom.js";

/** States of studies and attempts that use the icon of a trial's state. */
const AS_TRIAL = /** @type {Record<string, string>} */ ({
  STOPPING: "PAUSED",
  WITHDRAWN: "PAUSED",
  STOPPED: "CANCELLED",
  EXTERNAL: "RUNNING",
  STARTING: "QUEUED",
  ENDED: "COMPLETED",
  DONE: "COMPLETED",
  OUT_OF_MEMORY: "PRUNED",
  DIVERGED: "PRUNED",
  DEPENDS_ON_DIVISION: "PRUNED",
  RESUMES_DIFFERENTLY: "PRUNED",
  ERROR: "FAILED",
  FAULT: "INFEASIBLE",
  STALLED: "INFEASIBLE",
  LOST: "INFEASIBLE",
  NO_SUCCESS: "PRUNED",
});

/**
 * A state as an icon and a word.
 * @param {string} state
 * @param {string} [words]
 * @returns {HTMLSpanElement}
 */
export function stateMark(state, words = label(state).replaceAll("_", " ")) {
  const kind = AS_TRIAL[state] ?? state;
  return h("span", { class: `state state-${kind.toLowerCase()}` }, icon(shape(kind)), h("span", {}, words));
}

/**
 * Replace the mark in `parent` only when the state has changed.
 * @param {HTMLElement} parent
 * @param {string} state
 * @param {string} [words]
 */
export function setState(parent, state, words = undefined) {
  if (parent.dataset.state === state) return;
  parent.dataset.state = state;
  parent.replaceChildren(stateMark(state, words));
}

/**
 * Show a study's state in the words of the API. A study that completed without a completed trial is not a success.
 * @param {HTMLElement} parent
 * @param {{state: string, state_text: string, no_success: boolean}} study
 */
export function setStudyState(parent, study) {
  setState(parent, study.no_success ? "NO_SUCCESS" : study.state, study.state_text);
}

/**
 * An empty stacked bar of trials by state.
 * @returns {HTMLDivElement}
 */
export function progressBar() {
  return h("div", { class: "progress", role: "img" });
}

/**
 * Fill a stacked bar. `planned` is the budget: trials that have not been proposed yet leave it empty.
 * @param {HTMLElement} bar
 * @param {Record<string, number>} counts
 * @param {number | null} [planned]
 */
export function setProgress(bar, counts, planned) {
  const total = Math.max(
    planned ?? 0,
    Object.values(counts).reduce((sum, each) => sum + each, 0),
    1,
  );
  const present = TRIAL_STATES.filter((state) => counts[state]);
  const words = present.map((state) => `${counts[state]} ${label(state).toLowerCase()}`).join(", ");
  bar.setAttribute("aria-label", `${total} trials: ${words || "none started"}`);
  bar.title = words || "No trials yet";
  for (const state of TRIAL_STATES) {
    /** @type {HTMLElement | null} */
    let part = bar.querySelector(`.fill-${state.toLowerCase()}`);
    if (!part && counts[state]) {
      part = h("span", { class: `fill fill-${state.toLowerCase()}` });
      const later = TRIAL_STATES.slice(TRIAL_STATES.indexOf(state) + 1).map((each) => `.fill-${each.toLowerCase()}`);
      bar.insertBefore(part, later.length ? bar.querySelector(later.join(",")) : null);
    }
    if (part) {
      part.style.width = `${(100 * (counts[state] ?? 0)) / total}%`;
      part.hidden = !counts[state];
    }
  }
}
