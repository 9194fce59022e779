// What the page of a trial knows: the trial with its attempts and compared plans, its study, and its curves.

import { asTrial } from "../client.js";
import { PageState } from "../page_state.js";
import { required } from "../required.js";

/** @import * as Answers from "../answers.d.ts" */
/** @import { DetailedTrial } from "../client.js" */
/** @import { Page } from "../page.js" */

/** @typedef {{state: TrialState, page: Page}} TrialContext what each panel of the page gets */

export class TrialState extends PageState {
  /**
   * @param {number} studyId
   * @param {number} number
   */
  constructor(studyId, number) {
    super();
    this.studyId = studyId;
    this.number = number;
    /** @type {Answers.StudyDetail | null} null: it has not come yet */
    this.knownStudy = null;
    /** @type {DetailedTrial | null} null: it has not come yet */
    this.knownTrial = null;
    /** @type {Answers.AttemptView[]} */
    this.attempts = [];
    /** @type {Answers.OptionView[]} the plans that were compared */
    this.options = [];
    /** @type {Answers.CurveView[]} one for each metric */
    this.curves = [];
    this.on = { trial: (/** @type {Answers.TrialEvent} */ event) => this.onTrial(event) };
  }

  get isLoaded() {
    return this.knownTrial !== null;
  }

  /**
   * The study of the trial. Throws before it has come.
   * @returns {Answers.StudyDetail}
   */
  get study() {
    return required(this.knownStudy);
  }

  /**
   * The trial. Throws before it has come.
   * @returns {DetailedTrial}
   */
  get trial() {
    return required(this.knownTrial);
  }

  /**
   * Whether an event is about this trial: the stream carries those of its whole study.
   * @param {Answers.EventView} event
   * @returns {boolean}
   */
  isMine({ trial_id: id }) {
    return id === this.trial.id;
  }

  /** @param {Answers.StudyDetail} study */
  keepStudy(study) {
    this.knownStudy = study;
  }

  /** @param {DetailedTrial} trial */
  keepTrial(trial) {
    this.knownTrial = trial;
    this.attempts = trial.attempts;
    this.options = trial.options;
    this.changed("trial");
  }

  /** @param {Answers.CurveView[]} curves */
  keepCurves(curves) {
    this.curves = curves;
    this.changed("curves");
  }

  /** @param {Answers.TrialEvent} event */
  onTrial(event) {
    if (!this.isMine(event)) return;
    this.knownTrial = asTrial({ ...this.trial, ...event.data });
    this.changed("trial");
  }
}
