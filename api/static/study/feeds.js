// Fetches what several panels of a study show: the study, rows of trials, the history, measured attempts. Live events say
// what has changed; what they do not carry is fetched here.

import * as api from "../client.js";

/** @import { AttemptEvent, MetricsEvent, StudyEvent, TrialEvent } from "../answers.d.ts" */
/** @import { Page } from "../page.js" */
/** @import { StudyState } from "./state.js" */

const PEAK_POINTS = 1000;
const CANDIDATES = 1500;
const MOST_AXES = 30;

/** A panel without a picture. Panels call `fetchRow(number)` for the trial of a row that they are to show. */
export class StudyFeeds {
  /**
   * @param {StudyState} state
   * @param {Page} page
   */
  constructor(state, page) {
    this.state = state;
    this.page = page;
    /** @type {Set<number>} numbers of trials to fetch */
    this.wanted = new Set();
    /** @type {Set<number>} numbers of trials in requests under way */
    this.coming = new Set();
    this.askedHistory = ""; // the filter whose history was asked for last, as JSON
    this.askedCandidates = ""; // the query of the candidates that were asked for last, as JSON
    this.areCandidatesOld = false; // whether trials have changed since then
    this.hasPeaks = false; // whether measured attempts have been asked for
    const { studyId } = state;
    this.refreshStudy = page.refresher(async () => state.setStudy(await api.study(studyId)));
    this.refreshRows = page.refresher(
      async (/** @type {number[]} */ numbers) => state.keepRows(await api.trials(studyId, numbers)),
      2000,
    );
    this.refreshHistory = page.refresher(() => this.loadHistory(), 5000);
    this.refreshCandidates = page.refresher(() => this.loadCandidates(), 5000);
    this.refreshPeaks = page.refresher(async (/** @type {number[]} */ numbers) => {
      if (this.hasPeaks) state.keepPeaks(await api.peaksOf(studyId, numbers));
      this.refreshStudy("errors");
    }, 2000);
    this.on = {
      study: (/** @type {StudyEvent} */ event) => this.onStudy(event),
      trial: (/** @type {TrialEvent} */ event) => this.onTrial(event),
      attempt: (/** @type {AttemptEvent} */ event) => this.onAttempt(event),
      metrics: (/** @type {MetricsEvent} */ event) => this.onMetrics(event),
    };
  }

  /**
   * Fetch the study; returns the last event that it includes.
   * @returns {Promise<number>}
   */
  async loadStudy() {
    const study = await api.study(this.state.studyId);
    this.state.setStudy(study);
    return study.last_event_id;
  }

  /**
   * Fetch the history of the trials that pass the table's filter; returns the last event that it includes.
   * @returns {Promise<number>}
   */
  async loadHistory() {
    const { state } = this;
    const { states, where } = state.view;
    const asked = JSON.stringify([states, where]);
    this.askedHistory = asked;
    const found = await this.unlessWrong(() => api.history(state.studyId, { states, where }));
    if (!found) state.changed("points"); // it is drawn without any
    else if (this.askedHistory === asked) state.keepHistory(found);
    return found?.last_event_id ?? Infinity;
  }

  /**
   * What `fetch()` returns, or null if the filter is wrong: the table says so.
   * @template Result
   * @param {() => Promise<Result>} fetch
   * @returns {Promise<Result | null>}
   */
  async unlessWrong(fetch) {
    try {
      return await fetch();
    } catch (error) {
      if (!(error instanceof api.ApiError) || error.status !== 422) throw error;
      return null;
    }
  }

  load() {
    const { state, page } = this;
    if (state.study.trials.RUNNING) page.run(async () => state.keepRows(await api.running(state.studyId)));
    state.watch((field) => {
      if (["view", "parameter"].includes(field)) this.loadIfChanged();
    });
  }

  /** Fetch the candidates that pass the table's filter, with the parameters whose columns are shown. */
  async loadCandidates() {
    const { state } = this;
    const query = this.candidatesQuery();
    const asked = JSON.stringify(query);
    this.askedCandidates = asked;
    const found = await this.unlessWrong(() => api.candidates(state.studyId, query));
    if (found && this.askedCandidates === asked) state.keepCandidates(found);
  }

  /** Fetch what the charts of measured attempts show, unless it has been asked for. */
  wantPeaks() {
    if (this.hasPeaks) return;
    this.hasPeaks = true;
    const { state } = this;
    this.page.run(async () => state.keepPeaks(await api.peaks(state.studyId, PEAK_POINTS)));
  }

  /** Fetch the candidates if one of the charts that show them is seen, and others are wanted or trials have changed. */
  wantCandidates() {
    if (!this.page.showsNow("candidates")) return;
    const isOld = this.areCandidatesOld;
    this.areCandidatesOld = false;
    if (this.askedCandidates !== JSON.stringify(this.candidatesQuery())) this.page.run(() => this.loadCandidates());
    else if (isOld) this.refreshCandidates("trial");
  }

  candidatesQuery() {
    const { view, parameter, against, shownParameters: shown } = this.state;
    const more = [parameter, against].filter((name) => name !== null).filter((name) => !shown.includes(name));
    const params = [...shown, ...new Set(more)];
    return { params: params.slice(-MOST_AXES), states: view.states, where: view.where, points: CANDIDATES };
  }

  loadIfChanged() {
    const { states, where } = this.state.view;
    if (this.askedHistory !== JSON.stringify([states, where])) this.page.run(() => this.loadHistory());
    this.wantCandidates();
  }

  /**
   * Fetch the trial of a row. Calls made together become one request.
   * @param {number} number
   */
  fetchRow(number) {
    if (this.wanted.has(number) || this.coming.has(number)) return;
    if (!this.wanted.size) setTimeout(() => this.fetchWanted(), 0);
    this.wanted.add(number);
  }

  async fetchWanted() {
    const numbers = [...this.wanted];
    this.wanted.clear();
    for (const number of numbers) this.coming.add(number);
    await this.page.run(async () => this.state.keepRows(await api.trials(this.state.studyId, numbers)));
    for (const number of numbers) this.coming.delete(number);
  }

  /** @param {StudyEvent} event */
  onStudy({ data }) {
    if (data.state === "DELETED") return this.page.leave("/");
    this.refreshStudy("study");
  }

  /** @param {TrialEvent} event */
  onTrial({ data }) {
    const { number, state, attempt } = data;
    if (this.state.rows.has(number) || state === "RUNNING") this.refreshRows(number);
    if (this.state.peaks.has(number)) this.refreshPeaks(number); // they have the state, too
    if (attempt > 0 && state !== "DELETED") this.askForCurve(number);
    this.thinHistory();
    this.refreshStudy("trial");
    this.areCandidatesOld = true;
    this.wantCandidates();
  }

  /** @param {AttemptEvent} event */
  onAttempt(event) {
    const number = this.state.numberOf(event);
    if (number === undefined) return;
    if (this.state.rows.has(number)) this.refreshRows(number);
    this.refreshPeaks(number);
    this.refreshStudy("attempt");
  }

  /** @param {MetricsEvent} event */
  onMetrics(event) {
    const number = this.state.numberOf(event);
    if (number === undefined) return this.refreshHistory("unknown");
    const hasValue = this.state.objectiveIn(event.data.values) !== null;
    if (hasValue && !this.state.study.trials.COMPLETED) this.refreshStudy("best"); // the best may be one that still runs
    this.askForCurve(number);
    this.thinHistory();
    this.refreshRows(number);
    if (!this.isTimed(number)) this.refreshPeaks(number); // the attempt's end brings its last time
  }

  /** @param {number} number */
  askForCurve(number) {
    if (!this.state.curves.leading.includes(number)) this.refreshHistory("leading"); // the server knows which one is to give way
  }

  thinHistory() {
    if (this.state.isCrowded || this.state.isFiltered) this.refreshHistory("thinner");
  }

  /**
   * @param {number} number
   * @returns {boolean}
   */
  isTimed(number) {
    const attempt = this.state.rows.get(number)?.attempt;
    const attempts = this.state.peaks.get(number)?.attempts ?? [];
    return attempts.some((peak) => (attempt === undefined || peak.attempt === attempt) && peak.measured_step_seconds);
  }
}
