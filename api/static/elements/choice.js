// A select whose options follow what is known.

import { h, keyed } from "./dom.js";

/** @typedef {{value: string, text: string}} Option */

/**
 * Give a select these options, and choose one of them. The options that stay keep their elements, so the list that a
 * user has opened stays open.
 * @param {HTMLSelectElement} select
 * @param {Option[]} options
 * @param {string} chosen value of an option
 */
export function fillChoice(select, options, chosen) {
  keyed(
    select,
    options,
    ({ value }) => value,
    ({ value, text }) => h("option", { value }, text),
  );
  if (select.value !== chosen) select.value = chosen;
}

/**
 * Options whose text is their value.
 * @param {Iterable<string>} names
 * @returns {Option[]}
 */
export function namedOptions(names) {
  return [...names].map((name) => ({ value: name, text: name }));
}
