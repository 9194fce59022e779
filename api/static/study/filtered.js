// The mark of a chart that shows only the trials that pass the table's filter. It leads to the filter.

import { h } from "../elements/dom.js";

/** @import { StudyState } from "./state.js" */

/**
 * An element for the line of a card's title, shown while there is a filter.
 * @param {StudyState} state
 * @returns {HTMLAnchorElement}
 */
export function filteredMark(state) {
  const mark = h("a", { class: "filtered", href: "#trials-card", hidden: !state.isFiltered }, "filtered");
  state.watch((field) => {
    if (field !== "view") return;
    mark.hidden = !state.isFiltered;
    mark.title = [...state.view.states, state.view.where].filter(Boolean).join(", ");
  });
  return mark;
}
