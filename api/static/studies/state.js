// What the page of all studies knows: those that are listed, newest first.

import { PageState } from "../page_state.js";
import { LIVE_STUDY } from "../states.js";

/** @import { Page_StudyView_, StudyEvent, StudyView } from "../answers.d.ts" */
/** @import { Page } from "../page.js" */

/**
 * What each panel of the page gets.
 * @typedef {object} StudiesContext
 * @property {StudiesState} state
 * @property {Page} page
 * @property {(before: number) => Promise<void>} loadPage
 */

export class StudiesState extends PageState {
  constructor() {
    super();
    /** @type {Map<number, StudyView>} by id */
    this.studies = new Map();
    /** @type {number | null | undefined} cursor of older studies; null: there are none; undefined: nothing is loaded */
    this.older = undefined;
    this.chosen = { words: "", archived: false };
    this.on = { study: (/** @type {StudyEvent} */ event) => this.onStudy(event) };
  }

  get isLoaded() {
    return this.older !== undefined;
  }

  get newestFirst() {
    return [...this.studies.values()].sort((a, b) => b.id - a.id);
  }

  get numLive() {
    return [...this.studies.values()].filter((study) => LIVE_STUDY.has(study.state)).length;
  }

  get isChosen() {
    return this.chosen.words !== "" || this.chosen.archived;
  }

  /**
   * Forget what is listed, and list what is chosen now.
   * @param {{words: string, archived: boolean}} chosen
   */
  choose(chosen) {
    this.chosen = chosen;
    this.studies.clear();
  }

  /**
   * Keep a page of studies from the API.
   * @param {Page_StudyView_} found
   */
  keepPage({ items, next }) {
    this.older = next;
    this.keep(items);
  }

  /** @param {StudyView[]} items */
  keep(items) {
    for (const study of items) this.studies.set(study.id, study);
    this.changed("studies");
  }

  /** @param {number} id */
  forget(id) {
    this.studies.delete(id);
    this.changed("studies");
  }

  /** @param {StudyEvent} event */
  onStudy({ study_id: id, data }) {
    if (data.state === "DELETED" && id !== null) this.forget(id);
  }
}
