// The states of a trial: their order, label, colour variable and shape. No state is shown by colour alone.

import { h, icon } from "./dom.js";

const circle = (radius) => `M${radius} 0A${radius} ${radius} 0 1 1 ${-radius} 0A${radius} ${radius} 0 1 1 ${radius} 0Z`;
const ring = (outer, inner) => `${circle(outer)}M${inner} 0A${inner} ${inner} 0 1 0 ${-inner} 0A${inner} ${inner} 0 1 0 ${inner} 0Z`;

/** SVG paths in the order of the stacked bar, final states first. They fill a box from -1 to 1; charts draw them too. */
const SHAPES = {
  COMPLETED: circle(0.95),
  PRUNED: "M-1.05 -.8H1.05L0 1Z",
  INFEASIBLE: "M0 -1.15L1.15 0L0 1.15L-1.15 0ZM0 -.65L-.65 0L0 .65L.65 0Z",
  FAILED: "M-1 -.65L-.65 -1L0 -.35L.65 -1L1 -.65L.35 0L1 .65L.65 1L0 .35L-.65 1L-1 .65L-.35 0Z",
  CANCELLED: "M-1 -.28H1V.28H-1Z",
  RUNNING: "M-.75 -1L1.05 0L-.75 1Z",
  PAUSED: "M-.8 -.9H-.2V.9H-.8ZM.2 -.9H.8V.9H.2Z",
  QUEUED: `${ring(0.95, 0.65)}M0 -.45A.45 .45 0 0 1 0 .45Z`,
  WAITING: ring(0.95, 0.65),
};

export const TRIAL_STATES = Object.keys(SHAPES);
export const TERMINAL = new Set(["COMPLETED", "PRUNED", "INFEASIBLE", "FAILED", "CANCELLED"]);
export const LIVE_STUDY = new Set(["RUNNING", "STOPPING"]);

export function label(state) {
  return state.charAt(0) + state.slice(1).toLowerCase();
}

export function shape(state) {
  return SHAPES[state] ?? SHAPES.WAITING;
}

/** States of studies and attempts that use the icon of a trial's state. */
const AS_TRIAL = {
  STOPPING: "PAUSED", STOPPED: "CANCELLED", STARTING: "QUEUED", ENDED: "COMPLETED",
  DONE: "COMPLETED", OUT_OF_MEMORY: "PRUNED", DIVERGED: "PRUNED", ERROR: "FAILED", FAULT: "INFEASIBLE", STALLED: "INFEASIBLE", LOST: "INFEASIBLE", NO_SUCCESS: "PRUNED",
};

/** A state as an icon and a word. */
export function stateMark(state, words = label(state).replaceAll("_", " ")) {
  const kind = AS_TRIAL[state] ?? state;
  return h("span", { class: `state state-${kind.toLowerCase()}` }, icon(shape(kind)), h("span", {}, words));
}

/** Replace the mark in `parent` only when the state has changed. */
export function setState(parent, state, words = undefined) {
  if (parent.dataset.state === state) return;
  parent.dataset.state = state;
  parent.replaceChildren(stateMark(state, words));
}

/** Show a study's state in the words of the API. A study that completed without a completed trial is no success. */
export function setStudyState(parent, study) {
  setState(parent, study.no_success ? "NO_SUCCESS" : study.state, study.state_text);
}

/** An empty stacked bar of trials by state. */
export function progressBar() {
  return h("div", { class: "progress", role: "img" });
}

/** Fill a stacked bar. `planned` is the budget: trials that have not been proposed yet leave it empty. */
export function setProgress(bar, counts, planned) {
  const total = Math.max(planned ?? 0, Object.values(counts).reduce((sum, each) => sum + each, 0), 1);
  const present = TRIAL_STATES.filter((state) => counts[state]);
  const words = present.map((state) => `${counts[state]} ${label(state).toLowerCase()}`).join(", ");
  bar.setAttribute("aria-label", `${total} trials: ${words || "none started"}`);
  bar.title = words || "No trials yet";
  for (const state of TRIAL_STATES) {
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
