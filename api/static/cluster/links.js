// Links to trials and studies, and the parts of a gang, which are highlighted together.

import { byId, h } from "../elements/dom.js";

/** @import { GangView } from "../answers.d.ts" */
/** @import { Page } from "../page.js" */
/** @import { PageState } from "../page_state.js" */

/** @typedef {{state: PageState, page: Page}} ClusterContext what each panel of the page of the cluster gets */

const NUM_COLOURS = 10; // --g0 … --g9 in style.css

export const HIDDEN = "another project";

/**
 * A link to the page of a trial; words for one of a project that one may not read.
 * @param {{study_id: number, number: number}} item
 * @returns {HTMLElement}
 */
export function trialLink(item) {
  if (!item.study_id) return h("span", { class: "muted" }, HIDDEN);
  return h("a", { href: `/studies/${item.study_id}/trials/${item.number}` }, `Trial ${item.number}`);
}

/**
 * A link to the page of a study; nothing for one that one may not read.
 * @param {{study_id: number, study_name: string}} item
 * @returns {HTMLElement}
 */
export function studyLink(item) {
  if (!item.study_id) return h("span");
  const { study_id: id, study_name: name } = item;
  return h("a", { class: "cut", href: `/studies/${id}`, title: name }, name);
}

/**
 * Class of the colour of a gang.
 * @param {GangView} gang
 * @returns {string}
 */
export function gangColour(gang) {
  return `g${gang.trial_id % NUM_COLOURS}`;
}

/**
 * Make hovering or focusing this part of a gang highlight all its parts, on every device and in the table.
 * @template {HTMLElement} Part
 * @param {Part} element
 * @param {GangView} gang
 * @returns {Part}
 */
export function linked(element, gang) {
  element.dataset.gang = gang.key;
  const mark = (/** @type {boolean} */ on) => () => {
    byId("cluster").classList.toggle("linking", on);
    for (const part of document.querySelectorAll("[data-gang]"))
      part.classList.toggle("linked", on && part.getAttribute("data-gang") === gang.key);
  };
  element.addEventListener("mouseenter", mark(true));
  element.addEventListener("mouseleave", mark(false));
  element.addEventListener("focusin", mark(true));
  element.addEventListener("focusout", mark(false));
  return element;
}
