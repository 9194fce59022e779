// The states of a trial: their order, label, colour variable and shape. No state is shown by colour alone.

/** @typedef {Record<string, number>} Counts number of trials by state */

const circle = (/** @type {number} */ radius) =>
  `M${radius} 0A${radius} ${radius} 0 1 1 ${-radius} 0A${radius} ${radius} 0 1 1 ${radius} 0Z`;
const ring = (/** @type {number} */ outer, /** @type {number} */ inner) =>
  `${circle(outer)}M${inner} 0A${inner} ${inner} 0 1 0 ${-inner} 0A${inner} ${inner} 0 1 0 ${inner} 0Z`;

/** SVG paths in the order of the stacked bar, final states first. They fill a box from -1 to 1; charts draw them too. */
const SHAPES = /** @type {Record<string, string>} */ ({
  COMPLETED: circle(0.95),
  PRUNED: "M-1.05 -.8H1.05L0 1Z",
  INFEASIBLE: "M0 -1.15L1.15 0L0 1.15L-1.15 0ZM0 -.65L-.65 0L0 .65L.65 0Z",
  FAILED: "M-1 -.65L-.65 -1L0 -.35L.65 -1L1 -.65L.35 0L1 .65L.65 1L0 .35L-.65 1L-1 .65L-.35 0Z",
  CANCELLED: "M-1 -.28H1V.28H-1Z",
  RUNNING: "M-.75 -1L1.05 0L-.75 1Z",
  PAUSED: "M-.8 -.9H-.2V.9H-.8ZM.2 -.9H.8V.9H.2Z",
  QUEUED: `${ring(0.95, 0.65)}M0 -.45A.45 .45 0 0 1 0 .45Z`,
  WAITING: ring(0.95, 0.65),
});

export const TRIAL_STATES = Object.keys(SHAPES);
export const TERMINAL = new Set(["COMPLETED", "PRUNED", "INFEASIBLE", "FAILED", "CANCELLED"]);
export const LIVE_STUDY = new Set(["RUNNING", "PAUSED", "STOPPING"]);

/**
 * A state as a word.
 * @param {string} state
 * @returns {string}
 */
export function label(state) {
  return state.charAt(0) + state.slice(1).toLowerCase();
}

/**
 * The SVG path of a state, in a box from -1 to 1.
 * @param {string} state
 * @returns {string}
 */
export function shape(state) {
  return SHAPES[state] ?? SHAPES.WAITING;
}

/**
 * Number of trials by `counts` (state → number), in the states that `keep(state)` accepts.
 * @param {Counts} counts
 * @param {(state: string) => boolean} [keep]
 * @returns {number}
 */
export function numIn(counts, keep = () => true) {
  return Object.entries(counts).reduce((total, [state, each]) => total + (keep(state) ? each : 0), 0);
}

/**
 * Number of a study's trials that have ended, and the number of all that there are or will be.
 * @param {{trials: Counts, spec: Record<string, any>}} study
 * @returns {{ended: number, total: number}}
 */
export function progressOf({ trials, spec }) {
  const ended = numIn(trials, (state) => TERMINAL.has(state));
  return { ended, total: Math.max(spec.budget.trials, numIn(trials)) };
}

/**
 * Whether an attempt ended as it ran out of memory.
 * @param {{outcome: string | null}} attempt
 * @returns {boolean}
 */
export function ranOut(attempt) {
  return attempt.outcome === "OUT_OF_MEMORY";
}
