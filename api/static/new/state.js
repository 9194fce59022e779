// What the page of a new study knows: the study that it is a copy of, if any, and the text that is written.

import { PageState } from "../page_state.js";

/** @import { Page } from "../page.js" */

/**
 * What each panel of the page gets.
 * @typedef {object} NewStudyContext
 * @property {NewStudyState} state
 * @property {Page} page
 */

export class NewStudyState extends PageState {
  /** @param {number} originalId id of the study to copy; 0: none */
  constructor(originalId) {
    super();
    this.originalId = originalId;
    this.original = ""; // its file, once it has come
    this.isKnown = false; // whether the study to copy has come, or cannot be had
    this.hasFiles = false; // whether it has a user's own files
    this.isCopy = false; // whether the text that is shown began as its file
  }

  /**
   * @param {string} text empty: it cannot be copied
   * @param {boolean} hasFiles
   */
  setOriginal(text, hasFiles) {
    this.original = text;
    this.isKnown = true;
    this.hasFiles = hasFiles;
    this.changed("original");
  }

  /** @param {boolean} isCopy */
  setCopy(isCopy) {
    this.isCopy = isCopy;
    this.changed("text");
  }
}
