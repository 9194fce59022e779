// Links to trials and studies, and the parts of a gang, which are highlighted together.

import { byId, h } from "../elements/dom.js";

const NUM_COLOURS = 10; // --g0 … --g9 in style.css

export function trialLink(item) {
  return h("a", { href: `/studies/${item.study_id}/trials/${item.number}` }, `Trial ${item.number}`);
}

export function studyLink(item) {
  return h("a", { href: `/studies/${item.study_id}` }, item.study_name);
}

/** Class of the colour of a gang. */
export function gangColour(gang) {
  return `g${gang.trial_id % NUM_COLOURS}`;
}

/** Make hovering or focusing this part of a gang highlight all its parts, on every device and in the table. */
export function linked(element, gang) {
  element.dataset.gang = gang.key;
  const mark = (on) => () => {
    byId("cluster").classList.toggle("linking", on);
    for (const part of document.querySelectorAll("[data-gang]"))
      part.classList.toggle("linked", on && part.dataset.gang === gang.key);
  };
  element.addEventListener("mouseenter", mark(true));
  element.addEventListener("mouseleave", mark(false));
  element.addEventListener("focusin", mark(true));
  element.addEventListener("focusout", mark(false));
  return element;
}
