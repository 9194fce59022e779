// What the page that compares studies knows: the newest studies, those that are chosen, and the values of their trials.

import { byNumber, bestSoFar } from "../charts/series.js";
import { isSeveral } from "../objectives.js";
import { PageState } from "../page_state.js";

/** @import { HistoryView, StudyView } from "../answers.d.ts" */
/** @import { Page } from "../page.js" */

/**
 * What each panel of the page gets.
 * @typedef {object} CompareContext
 * @property {CompareState} state
 * @property {Page} page
 * @property {(id: number) => Promise<void>} loadStudy
 */

const AT_FIRST = 2; // studies that are chosen when the address names none
export const MOST = 10; // as many as there are colours

export class CompareState extends PageState {
  /** @param {number[]} named ids in the address */
  constructor(named) {
    super();
    /** @type {Map<number, StudyView>} by id */
    this.studies = new Map();
    this.chosen = new Set(named.filter((id) => id > 0).slice(0, MOST));
    /** @type {Map<number, HistoryView>} */
    this.histories = new Map();
    /** @type {Map<number, Record<string, number>>} share of each parameter by its name, by study */
    this.importances = new Map();
  }

  /** @param {StudyView[]} items */
  keep(items) {
    for (const study of items) this.studies.set(study.id, study);
    this.changed("studies");
  }

  /** @param {number} id of a study that is not there any more */
  forget(id) {
    this.studies.delete(id);
    this.choose(id, false);
  }

  /** Choose the newest studies, if none is named. */
  chooseFirst() {
    if (this.chosen.size) return;
    for (const { id } of this.newestFirst.slice(0, AT_FIRST)) this.chosen.add(id);
  }

  get newestFirst() {
    return [...this.studies.values()].sort((a, b) => b.id - a.id);
  }

  /** Chosen studies, the newest first. */
  get chosenStudies() {
    return this.newestFirst.filter(({ id }) => this.chosen.has(id));
  }

  /** The chosen studies that can be drawn together: those with the one objective of the first. */
  get comparable() {
    const [first, ...others] = this.chosenStudies.filter(({ spec }) => !isSeveral(spec));
    return first ? [first, ...others.filter((study) => isSameObjective(first, study))] : [];
  }

  /**
   * Name of the colour of a chosen study in the theme.
   * @param {number} id
   * @returns {string}
   */
  colourOf(id) {
    return `g${[...this.chosen].sort((a, b) => a - b).indexOf(id) % MOST}`;
  }

  /**
   * @param {number} id
   * @param {boolean} isChosen
   */
  choose(id, isChosen) {
    if (isChosen) this.chosen.add(id);
    else this.chosen.delete(id);
    this.changed("studies");
  }

  /**
   * @param {number} id
   * @param {HistoryView} history
   */
  keepHistory(id, history) {
    this.histories.set(id, history);
    this.changed("studies");
  }

  /**
   * @param {number} id
   * @param {import("../answers.d.ts").ImportanceView[]} items
   */
  keepImportances(id, items) {
    this.importances.set(id, Object.fromEntries(items.map(({ name, share }) => [name, share])));
    this.changed("studies");
  }

  /**
   * The best value so far of a study, by the number of its trials.
   * @param {StudyView} study
   * @returns {[number, number][]}
   */
  bestOf({ id, spec }) {
    const history = this.histories.get(id);
    if (!history) return [];
    const points = byNumber(
      history.number.map((number, at) => ({ number, state: history.state[at], value: history.value[at] })),
    );
    const best = bestSoFar(points, spec.objective.direction);
    return points.flatMap(({ number }, at) => (best[at] === null ? [] : [[number + 1, Number(best[at])]]));
  }
}

/**
 * @param {StudyView} first
 * @param {StudyView} second
 * @returns {boolean}
 */
function isSameObjective({ spec: { objective: one } }, { spec: { objective: other } }) {
  return one.metric === other.metric && one.direction === other.direction;
}
