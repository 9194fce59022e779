// What the page of a trial knows: the trial with its attempts and compared plans, its study, and its curves.

import { asTrial } from "../client.js";
import { PageState } from "../page_state.js";

export class TrialState extends PageState {
  constructor(studyId, number) {
    super();
    this.studyId = studyId;
    this.number = number;
    this.study = null;
    this.trial = null;
    this.attempts = [];
    this.options = []; // the plans that were compared
    this.curves = []; // one for each metric
    this.on = { trial: (event) => this.onTrial(event) };
  }

  get isLoaded() {
    return this.trial !== null;
  }

  /** Whether an event is about this trial: the stream carries those of its whole study. */
  isMine({ trial_id: id }) {
    return id === this.trial.id;
  }

  keepTrial(trial) {
    this.trial = trial;
    this.attempts = trial.attempts;
    this.options = trial.options;
    this.changed("trial");
  }

  keepCurves(curves) {
    this.curves = curves;
    this.changed("curves");
  }

  onTrial(event) {
    if (!this.isMine(event)) return;
    this.trial = asTrial({ ...this.trial, ...event.data });
    this.changed("trial");
  }
}
