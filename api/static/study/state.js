// What the page of a study knows: the study, those of its trials that were seen or run, and what its charts draw. It is
// changed by answers of the API (`set…`, `keep…`) and by live events (`on`).

import { toMib } from "../format.js";
import { PageState } from "../page_state.js";
import { required } from "../required.js";
import { TERMINAL, numIn } from "../states.js";
import { CurvesState } from "./curves_state.js";
import { parameterOf, readView, shownByDefault } from "./table/view.js";

/** @import * as Answers from "../answers.d.ts" */
/** @import { Point } from "../charts/history.js" */
/** @import { Trial } from "../client.js" */
/** @import { Objective } from "../objectives.js" */
/** @import { Page } from "../page.js" */
/** @import { StudyFeeds } from "./feeds.js" */
/** @import { View } from "./table/view.js" */

/**
 * What each panel of the page gets.
 * @typedef {object} StudyContext
 * @property {StudyState} state
 * @property {Page} page
 * @property {StudyFeeds} feeds
 * @property {(trial: {number: number}) => void} open shows the page of a trial
 */

/**
 * A measured attempt, with its memory in MiB as well.
 * @typedef {Answers.PeakView & {predicted_mib: number | null, measured_mib: number | null}} Peak
 */

/** @typedef {Omit<Answers.PeaksView, "attempts"> & {attempts: Peak[]}} Peaks the measured attempts of a trial */

const MOST_POINTS = 3000; // points of the history; beyond it, it is to be thinned again
const MOST_ROWS = 3000; // rows that are kept in addition to the running ones
const NEW_POINT = { step: 0, value: /** @type {number | null} */ (null) };

export class StudyState extends PageState {
  /**
   * At most `mostCurves` curves are drawn at a time.
   * @param {number} studyId
   * @param {number} mostCurves
   */
  constructor(studyId, mostCurves) {
    super();
    this.studyId = studyId;
    this.curves = new CurvesState(mostCurves);
    /** @type {Answers.StudyDetail | null} null: it has not come yet */
    this.knownStudy = null;
    /** @type {Map<number, Trial>} by number, of those that were visible or run; the oldest answers first */
    this.rows = new Map();
    /** @type {Map<number, number>} trial id → number */
    this.numbers = new Map();
    /** @type {Map<number, Point>} the history, by number */
    this.points = new Map();
    this.numInHistory = 0; // trials that the points stand for
    /** @type {Map<number, Peaks>} measured attempts, by number of the trial */
    this.peaks = new Map();
    this.view = readView(""); // columns, order and filter of the table
    /** @type {Answers.CandidatesView | null} parameters and values of trials that pass the filter */
    this.candidates = null;
    /** @type {string | null} name of the parameter whose slice is drawn; null: the first */
    this.parameter = null;
    /** @type {string | null} name of the parameter that goes up in it; null: the objective */
    this.against = null;
    this.on = {
      trial: (/** @type {Answers.TrialEvent} */ event) => this.onTrial(event),
      metrics: (/** @type {Answers.MetricsEvent} */ event) => this.onMetrics(event),
    };
  }

  get isLoaded() {
    return this.knownStudy !== null;
  }

  /**
   * The study. Throws before it has come.
   * @returns {Answers.StudyDetail}
   */
  get study() {
    return required(this.knownStudy);
  }

  /**
   * The objective of the study; with several the leading one.
   * @returns {Objective}
   */
  get objective() {
    return this.study.spec.objective;
  }

  get numTrials() {
    return numIn(this.knownStudy?.trials ?? {});
  }

  get runningRows() {
    return [...this.rows.values()].filter((trial) => trial.state === "RUNNING");
  }

  /** Whether the objective is to be maximized or minimized. */
  get direction() {
    return this.knownStudy?.spec.objective.direction ?? "maximize";
  }

  /** Flat names of the parameters that are searched; those of blocks too, once candidates have been fetched. */
  get parameterNames() {
    return this.candidates?.names ?? Object.keys(this.knownStudy?.spec.space ?? {});
  }

  /** Whether the table, and so the charts, show only some of the trials. */
  get isFiltered() {
    return this.view.states.length > 0 || this.view.where !== "";
  }

  /** Names of the parameters whose columns the table shows, in their order. */
  get shownParameters() {
    const { columns } = this.view;
    return columns ? columns.map(parameterOf).filter((name) => name !== null) : shownByDefault(this.parameterNames);
  }

  /**
   * Change how the user looks at the table.
   * @param {Partial<View>} changes
   */
  look(changes) {
    this.view = { ...this.view, ...changes };
    this.changed("view");
  }

  /**
   * Show the slice of this parameter.
   * @param {string | null} name
   */
  choose(name) {
    this.parameter = name;
    this.changed("parameter");
  }

  /**
   * Draw this parameter against the one of the slice; null: the objective.
   * @param {string | null} name
   */
  chooseAgainst(name) {
    this.against = name;
    this.changed("parameter");
  }

  /**
   * Value of the objective among the values of an evaluation; null if it has none that is finite.
   * @param {Record<string, number | null>} values
   * @returns {number | null}
   */
  objectiveIn(values) {
    const value = values[this.objective.metric];
    return Number.isFinite(value) ? value : null;
  }

  /**
   * Number of the trial that an event is about; undefined: it is not known here.
   * @param {Answers.EventView} event
   * @returns {number | undefined}
   */
  numberOf({ trial_id: id }) {
    return id === null ? undefined : this.numbers.get(id);
  }

  /** Whether the history has grown so much that the server should thin it again. */
  get isCrowded() {
    return this.points.size > MOST_POINTS;
  }

  // --- answers of the API ------------------------------------------------------------------------------------------

  /** @param {Answers.StudyDetail} study */
  setStudy(study) {
    this.knownStudy = study;
    this.curves.metric ||= study.spec.objective.metric;
    this.curves.noteNames(study.summary.best_metrics);
    this.changed("study");
  }

  /**
   * Keep the newest answers about these trials.
   * @param {Trial[]} trials
   */
  keepRows(trials) {
    for (const trial of trials) {
      this.rows.delete(trial.number); // so that the oldest come first
      this.rows.set(trial.number, trial);
      this.numbers.set(trial.id, trial.number);
      if (this.points.has(trial.number)) this.keepPoint(trial);
      if (this.curves.setState(trial)) this.changed("curves");
    }
    for (const [number, trial] of this.rows) {
      if (this.rows.size <= MOST_ROWS) break;
      if (trial.state !== "RUNNING") this.rows.delete(number);
    }
    this.changed("rows");
  }

  /**
   * Replace the history by a thinned one; see HistoryView of the API.
   * @param {Answers.HistoryView} found
   */
  keepHistory(found) {
    this.points.clear();
    found.number.forEach((number, at) => {
      const point = { id: found.id[at], number, state: found.state[at], step: found.step[at], value: found.value[at] };
      this.points.set(number, point);
      this.numbers.set(point.id, number);
    });
    this.numInHistory = found.num_trials;
    const hasForgotten = this.curves.setLeading(found.leading);
    this.changed("points", ...(hasForgotten ? ["curves"] : []));
  }

  /** @param {Answers.CandidatesView} found */
  keepCandidates(found) {
    this.candidates = found;
    this.changed("candidates");
  }

  /**
   * Keep measured attempts by trial, with peaks in MiB as well.
   * @param {Answers.PeaksView[]} items
   */
  keepPeaks(items) {
    for (const item of items) {
      const attempts = item.attempts.map((peak) => ({
        ...peak,
        predicted_mib: toMib(peak.predicted_bytes),
        measured_mib: toMib(peak.measured_bytes),
      }));
      this.peaks.set(item.number, { ...item, attempts });
    }
    this.changed("peaks");
  }

  /**
   * Keep curves of the metric `name`; see `CurvesState`.
   * @param {string} name
   * @param {Answers.CurveView[]} found
   */
  keepCurves(name, found) {
    const stateOf = (/** @type {number} */ number) => (this.rows.get(number) ?? this.points.get(number))?.state;
    if (this.curves.keep(name, found, (number) => stateOf(number) ?? "COMPLETED")) this.changed("curves");
  }

  // --- live events ---------------------------------------------------------------------------------------------------

  /**
   * An event has only a trial's state and value: a row keeps what else is known of it.
   * @param {Answers.TrialEvent} event
   */
  onTrial({ data }) {
    const { id, number, state, attempt, value } = data;
    if (state === "DELETED") return this.forget(number);
    this.numbers.set(id, number);
    const known = this.rows.get(number);
    if (known) this.keepRows([{ ...known, ...data }]);
    if (attempt > 0 || TERMINAL.has(state) || value !== null) this.keepPoint(data);
    if (attempt > 0) this.lead(number);
  }

  /** @param {number} number of a trial that has been deleted */
  forget(number) {
    for (const known of [this.rows, this.points, this.peaks, this.curves.lines]) known.delete(number);
    this.changed("rows", "points", "peaks", "curves");
  }

  /** @param {Answers.MetricsEvent} event */
  onMetrics(event) {
    const { trial_id: id, data } = event;
    const number = this.numberOf(event);
    if (id === null || number === undefined) return;
    this.curves.noteNames(data.values);
    const value = this.objectiveIn(data.values);
    if (value !== null) this.keepValue(id, number, value, data.step);
    this.lead(number);
    if (this.curves.extend(number, data)) this.changed("curves");
  }

  /**
   * @param {number} id
   * @param {number} number
   * @param {number} value
   * @param {number} step
   */
  keepValue(id, number, value, step) {
    const trial = this.rows.get(number);
    if (trial) return this.keepRows([{ ...trial, value, step }]);
    const point = this.points.get(number);
    this.keepPoint({ ...NEW_POINT, ...point, id, number, state: point?.state ?? "RUNNING", value, step });
  }

  /** @param {Point} point */
  keepPoint({ id, number, state, step, value }) {
    const before = this.points.get(number);
    if (!before && this.isFiltered) return; // the server knows whether it passes
    if (before && before.state === state && before.step === step && before.value === value) return;
    this.points.set(number, { id, number, state, step, value });
    this.changed("points");
  }

  /**
   * Draw the curve of a trial that has begun to run, unless only the server knows whether it passes the filter.
   * @param {number} number
   */
  lead(number) {
    if (!this.isFiltered) this.curves.lead(number);
  }
}
