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

const BY_API = new Set(["name", "owner", "project", "state"]); // orders in which it sends studies, page by page
const STATES = ["RUNNING", "PAUSED", "STOPPING", "COMPLETED", "STOPPED", "FAILED", "EXTERNAL"];

export class StudiesState extends PageState {
  constructor() {
    super();
    /** @type {Map<number, StudyView>} by id */
    this.studies = new Map();
    /** @type {number | null | undefined} cursor of older studies; null: there are none; undefined: nothing is loaded */
    this.older = undefined;
    /** @type {Record<string, string>} what the form at the top says, without what is empty */
    this.chosen = {};
    this.on = { study: (/** @type {StudyEvent} */ event) => this.onStudy(event) };
  }

  get isLoaded() {
    return this.older !== undefined;
  }

  /** The studies in the order that is chosen. */
  get listed() {
    return sorted([...this.studies.values()], this.chosen.sort);
  }

  get numLive() {
    return [...this.studies.values()].filter((study) => LIVE_STUDY.has(study.state)).length;
  }

  /** Whether only some studies are listed. */
  get isChosen() {
    return Object.keys(this.chosen).some((name) => name !== "sort");
  }

  /**
   * What the API is asked for.
   * @returns {Record<string, string>}
   */
  get query() {
    const { sort = "newest", archived, ...query } = this.chosen;
    if (archived) query.archived = "only";
    if (BY_API.has(sort)) query.sort = sort;
    else if (sort !== "oldest") query.newest_first = "true";
    return query;
  }

  /**
   * Whether a study that has changed is still among those that are chosen.
   * @param {StudyView} study
   */
  isListed(study) {
    const { archived, state } = this.chosen;
    const is = study.state === "PAUSED" ? "RUNNING" : study.state;
    return study.archived === Boolean(archived) && (!state || is === state);
  }

  /**
   * Forget what is listed, and list what is chosen now.
   * @param {Record<string, string>} chosen
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

/**
 * By order: what of a study ascends. By the best value only those that are listed are sorted.
 * @type {Record<string, (study: StudyView) => string | number>}
 */
const KEYS = {
  newest: ({ id }) => -id,
  oldest: ({ id }) => id,
  name: ({ name }) => name.toLowerCase(),
  owner: ({ owner }) => owner,
  project: ({ project }) => project,
  state: ({ state }) => STATES.indexOf(state),
  best: ({ best, spec }) => (best ? Number(best.value) * (spec.objective.direction === "minimize" ? 1 : -1) : Infinity),
};

/**
 * @param {StudyView[]} studies
 * @param {string} [order]
 * @returns {StudyView[]}
 */
export function sorted(studies, order = "newest") {
  const keyOf = KEYS[order] ?? KEYS.newest;
  return studies.toSorted((a, b) => {
    const [one, other] = [keyOf(a), keyOf(b)];
    return one < other ? -1 : one > other ? 1 : a.id - b.id;
  });
}
