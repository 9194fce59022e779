// What the page of a study knows: the study, those of its trials that were seen or run, and what its charts draw. It is
// changed by answers of the API (`set…`, `keep…`) and by live events (`on`).

import { toMib } from "../format.js";
import { PageState } from "../page_state.js";
import { required } from "../required.js";
import { TERMINAL, numIn } from "../states.js";
import { parameterOf, readView, shownByDefault } from "./table/view.js";

/** @import * as Answers from "../answers.d.ts" */
/** @import { Line } from "../charts/curves.js" */
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
    this.mostCurves = mostCurves;
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
    this.metric = ""; // name of the metric whose curves are drawn
    /** @type {Set<string>} */
    this.metricNames = new Set();
    /** @type {number[]} numbers of the trials whose curves are drawn */
    this.leading = [];
    this.view = readView(""); // columns, order and filter of the table
    /** @type {Answers.CandidatesView | null} parameters and values of trials that pass the filter */
    this.candidates = null;
    /** @type {string | null} name of the parameter whose slice is drawn; null: the first */
    this.parameter = null;
    /** @type {string | null} name of the parameter that goes up in it; null: the objective */
    this.against = null;
    /** @type {Map<number, Line>} of the chosen metric, by number */
    this.lines = new Map();
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

  /** Whether no more curves are drawn, as there are enough. */
  get hasMostCurves() {
    return this.leading.length >= this.mostCurves;
  }

  /** Whether the history has grown so much that the server should thin it again. */
  get isCrowded() {
    return this.points.size > MOST_POINTS;
  }

  // --- answers of the API ------------------------------------------------------------------------------------------

  /** @param {Answers.StudyDetail} study */
  setStudy(study) {
    this.knownStudy = study;
    this.metric ||= study.spec.objective.metric;
    for (const name of Object.keys(study.summary.best_metrics)) this.metricNames.add(name);
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
      const line = this.lines.get(trial.number);
      if (line && line.trial.state !== trial.state) {
        line.trial = { ...line.trial, state: trial.state };
        this.changed("lines");
      }
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
    this.leading = found.leading;
    const drawn = this.lines.size;
    for (const number of this.lines.keys()) if (!this.leading.includes(number)) this.lines.delete(number);
    this.changed("points", ...(this.lines.size < drawn ? ["lines"] : []));
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
   * Keep curves of the metric `name`, unless another one has been chosen since they were asked for.
   * @param {string} name
   * @param {Answers.CurveView[]} found
   */
  keepCurves(name, found) {
    if (name !== this.metric) return;
    for (const { trial_id: id, number, step, value } of found) {
      const state = this.rows.get(number)?.state ?? this.points.get(number)?.state ?? "COMPLETED";
      this.lines.set(number, { trial: { id, number, state }, points: step.map((at, index) => [at, value[index]]) });
    }
    this.changed("lines");
  }

  /**
   * Forget the curves of the metric that was chosen before; they are drawn until the new ones have come.
   * @param {string} name
   */
  chooseMetric(name) {
    this.metric = name;
    this.lines.clear();
  }

  // --- live events ---------------------------------------------------------------------------------------------------

  /**
   * An event has only a trial's state and value: a row keeps what else is known of it.
   * @param {Answers.TrialEvent} event
   */
  onTrial({ data }) {
    const { id, number, state, attempt, value } = data;
    this.numbers.set(id, number);
    const known = this.rows.get(number);
    if (known) this.keepRows([{ ...known, ...data }]);
    if (attempt > 0 || TERMINAL.has(state) || value !== null) this.keepPoint(data);
    if (attempt > 0) this.lead(number);
  }

  /** @param {Answers.MetricsEvent} event */
  onMetrics({ trial_id: id, data }) {
    const number = id === null ? undefined : this.numbers.get(id);
    if (id === null || number === undefined) return;
    for (const name of Object.keys(data.values)) this.metricNames.add(name);
    const value = this.objectiveIn(data.values);
    if (value !== null) this.keepValue(id, number, value, data.step);
    this.lead(number);
    this.extendLine(number, data);
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
   * Draw the curve of a trial that has begun to run, if there is room among those that are drawn.
   * @param {number} number
   */
  lead(number) {
    if (!this.leading.includes(number) && !this.hasMostCurves && !this.isFiltered) this.leading.push(number);
  }

  /**
   * Add an evaluation to a line that is drawn. Those between come with the next refresh of the curves.
   * @param {number} number
   * @param {Answers.NewMetrics} evaluation
   */
  extendLine(number, { step, values }) {
    const line = this.lines.get(number);
    const value = values[this.metric];
    if (!line || value === null || !Number.isFinite(value) || step <= (line.points.at(-1)?.[0] ?? -1)) return;
    line.points.push([step, value]);
    this.changed("lines");
  }
}
