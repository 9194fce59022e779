// The objectives of a study: one, or several at once. With several there is no best trial, but a Pareto front.

/** @typedef {{metric: string, direction: string}} Objective `direction`: "maximize" or "minimize" */

/** @typedef {Record<string, any>} Spec the study's file as JSON, with all defaults filled in */

/**
 * [{metric, direction}] from the JSON of a spec.
 * @param {Spec} spec
 * @returns {Objective[]}
 */
export function objectivesOf({ objectives, directions, objective }) {
  if (objectives?.length) return objectives;
  if (directions?.length > 1) return directions.map(unnamed);
  return [objective];
}

/**
 * An objective of a study of Optuna, which gives none a name.
 * @param {string} direction
 * @param {number} index
 * @returns {Objective}
 */
function unnamed(direction, index) {
  return { metric: `value_${index}`, direction };
}

/**
 * The direction of the objective with this name; empty if the metric is none.
 * @param {Spec} spec
 * @param {string} name
 * @returns {string}
 */
export function directionOf(spec, name) {
  return objectivesOf(spec).find(({ metric }) => metric === name)?.direction ?? "";
}

/**
 * Whether a study has several objectives at once.
 * @param {Spec} spec
 * @returns {boolean}
 */
export function isSeveral(spec) {
  return objectivesOf(spec).length > 1;
}

/**
 * The objectives in words, such as "maximize accuracy and minimize predicted.peak_mib".
 * @param {Spec} spec
 * @returns {string}
 */
export function objectiveWords(spec) {
  return objectivesOf(spec)
    .map(({ metric, direction }) => `${direction} ${metric}`)
    .join(" and ");
}
