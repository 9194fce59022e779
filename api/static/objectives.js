// The objectives of a study: one, or several at once. With several there is no best trial, but a Pareto front.

/** [{metric, direction}] from the JSON of a spec. */
export function objectivesOf({ objectives, directions, objective }) {
  if (objectives?.length) return objectives;
  if (directions?.length > 1) return directions.map((direction, place) => ({ metric: `value_${place}`, direction }));
  return [objective];
}

export function isSeveral(spec) {
  return objectivesOf(spec).length > 1;
}

/** The objectives in words, such as "maximize accuracy and minimize predicted.peak_mib". */
export function objectiveWords(spec) {
  return objectivesOf(spec)
    .map(({ metric, direction }) => `${direction} ${metric}`)
    .join(" and ");
}
