// Words that several charts of a study share: how many trials they show, which are off the axis, and how keys work.

import { count, plural } from "../format.js";

/**
 * "5 of 90 trials", or an empty string if all are shown.
 * @param {number} shown
 * @param {number} all
 * @param {string} [noun] of one trial
 * @returns {string}
 */
export function partWords(shown, all, noun = "trial") {
  return shown < all ? `${count(shown)} of ${plural(all, noun)}` : "";
}

/**
 * How many trials lie beyond the end of an axis, or an empty string if none do.
 * @param {number} num
 * @param {string} [axis]
 * @returns {string}
 */
export function outsideWords(num, axis = "the axis") {
  return num ? `${plural(num, "trial")} beyond the end of ${axis}, at its edge.` : "";
}

/**
 * A chart for those who do not see it: what it shows, and what the keys do.
 * @param {string} shown a sentence without a full stop
 * @param {string} [way] which way the arrow keys go
 * @returns {string}
 */
export function chartLabel(shown, way = "from point to point") {
  return `${shown}. Arrow keys go ${way}, Enter opens a trial; the table below has the numbers.`;
}
