// Calls of the REST API. Every failure becomes an Error whose message says what to do.

import { toMib } from "./format.js";

/** @import * as Answers from "./answers.d.ts" */

/**
 * A trial from the API, with its memory in MiB as well.
 * @typedef {Answers.TrialView & {predicted_mib: number | null, measured_mib: number | null}} Trial
 */

/**
 * One trial with its attempts and the plans that were compared.
 * @typedef {Answers.TrialDetail & {predicted_mib: number | null, measured_mib: number | null}} DetailedTrial
 */

/**
 * Which trials to take: those in one of the states, or in any, for which the expression `where` is true.
 * @typedef {{states?: string[], where?: string}} TrialChoice
 */

const AT_ONCE = 100; // trials that are fetched by their numbers in one request
const CURVES = 25; // and curves, so that the first are drawn soon
const STUDIES = 50;
const JSON_BODY = { Accept: "application/json", "Content-Type": "application/json" };

export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0: no answer came
   * @param {string} message what to do
   */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * The JSON of an answer; null if it has none.
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 * @throws {ApiError}
 */
export async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", headers: { Accept: "application/json" }, ...options });
  } catch {
    throw new ApiError(0, "ScaMP cannot be reached. Start it with “scamp serve”, then reload this page.");
  }
  if (response.ok) return response.status === 204 ? null : bodyOf(response);
  if (response.status === 401) return signIn();
  throw new ApiError(response.status, await problem(response));
}

/**
 * @param {Response} response
 * @returns {Promise<any>}
 */
function bodyOf(response) {
  return response.headers.get("Content-Type")?.includes("json") ? response.json() : response.text();
}

/**
 * Leaves the page for the one to sign in. It never resolves, so that no error shows up meanwhile.
 * @returns {Promise<never>}
 */
function signIn() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  return new Promise(() => {});
}

/**
 * @param {Response} response
 * @returns {Promise<string>}
 */
async function problem(response) {
  try {
    const body = await response.json();
    if (typeof body.detail === "string" && body.detail) return body.detail;
    if (typeof body.title === "string" && body.title) return body.title;
  } catch {
    // The body is not a problem document.
  }
  return `ScaMP answered ${response.status} ${response.statusText}. Check the log of “scamp serve”, then reload this page.`;
}

/**
 * An idempotency key: the same for a request that is repeated. `crypto.randomUUID` does not exist on pages that came over plain HTTP from another host.
 * @returns {string}
 */
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// --- resources, as the pages draw them --------------------------------------------------------------------------------

/** @returns {Promise<Answers.ClusterView>} */
export function cluster() {
  return request("/v1/cluster");
}

/**
 * Files that a trial keeps, by name.
 * @param {number} studyId
 * @param {number} number of the trial
 * @returns {Promise<Answers.FileView[]>}
 */
export async function files(studyId, number) {
  return (await request(`/v1/studies/${studyId}/trials/${number}/files`)).items;
}

/**
 * @param {number} studyId
 * @param {number} number of the trial
 * @param {string} name of the file, with slashes
 * @returns {string}
 */
export function fileAddress(studyId, number, name) {
  return `/v1/studies/${studyId}/trials/${number}/files/${name.split("/").map(encodeURIComponent).join("/")}`;
}

/**
 * @param {number} studyId
 * @param {number} number of the trial
 * @returns {string}
 */
export function checkpointAddress(studyId, number) {
  return `/v1/studies/${studyId}/trials/${number}/checkpoint`;
}

/**
 * A page of the studies behind `after` (0: the first): {items, next}.
 * @param {number} [after]
 * @param {Record<string, string>} [query] which, and in which order; the newest first without it
 * @returns {Promise<Answers.Page_StudyView_>}
 */
export function studies(after = 0, query = { newest_first: "true" }) {
  return request(`/v1/studies?${new URLSearchParams({ limit: String(STUDIES), after: String(after), ...query })}`);
}

/**
 * One study as it is listed, which is much cheaper than with its summary; null: it has been deleted.
 * @param {number} studyId
 * @returns {Promise<Answers.StudyView | null>}
 */
export async function listedStudy(studyId) {
  const [found] = (await request(`/v1/studies?limit=1&archived=all&after=${studyId - 1}`)).items;
  return found?.id === studyId ? found : null;
}

/**
 * @param {number} studyId
 * @returns {Promise<Answers.StudyDetail>}
 */
export function study(studyId) {
  return request(`/v1/studies/${studyId}`);
}

/**
 * The study as a file to submit again.
 * @param {number} studyId
 * @returns {Promise<string>}
 */
export function studyFile(studyId) {
  return request(`/v1/studies/${studyId}/study.yaml`);
}

/**
 * Check a study's text, and get its space; throws what is wrong with it.
 * @param {string} spec
 * @returns {Promise<Answers.DraftView>}
 */
export function check(spec) {
  const body = new FormData();
  body.set("spec", spec);
  return request("/v1/studies:check", { method: "POST", body });
}

/**
 * What of a study's space fits on the cluster.
 * @param {{spec: string, files: import("./new/files.js").Chosen[], codeOf: number}} study
 * @param {AbortSignal} signal
 * @returns {Promise<Answers.ScreeningView>}
 */
export function screen(study, signal) {
  return request("/v1/studies:screen", { method: "POST", body: formOf(study), signal });
}

/**
 * @param {{spec: string, files: import("./new/files.js").Chosen[], codeOf: number}} study
 * @returns {FormData}
 */
function formOf({ spec, files, codeOf }) {
  const body = new FormData();
  body.set("spec", spec);
  if (codeOf) body.set("code_of", String(codeOf));
  for (const { path, file } of files) body.append("files", file, path);
  return body;
}

/**
 * Submit a study: its file as text, a user's own files, and those of another study (0: of none), which they replace.
 * @param {{spec: string, files: import("./new/files.js").Chosen[], codeOf: number, isPaused: boolean}} study
 * @param {string} key the same for the same study, so that a repeated request makes no second one
 * @returns {Promise<Answers.StudyDetail>}
 */
export function submit({ isPaused, ...study }, key) {
  const body = formOf(study);
  if (isPaused) body.set("paused", "true");
  const headers = { Accept: "application/json", "Idempotency-Key": key };
  return request("/v1/studies", { method: "POST", headers, body });
}

/**
 * Change a study's name, tags or note, or archive it.
 * @param {number} studyId
 * @param {{name?: string, tags?: string[], note?: string, archived?: boolean}} description
 * @returns {Promise<Answers.StudyDetail>}
 */
export function describe(studyId, description) {
  const body = JSON.stringify(description);
  return request(`/v1/studies/${studyId}`, { method: "PATCH", headers: JSON_BODY, body });
}

/**
 * @param {number} studyId
 * @param {boolean} paused
 * @returns {Promise<unknown>}
 */
export function setPaused(studyId, paused) {
  return request(`/v1/studies/${studyId}:${paused ? "pause" : "resume"}`, { method: "POST" });
}

/**
 * Stop one trial.
 * @param {number} studyId
 * @param {number} number of the trial
 * @returns {Promise<DetailedTrial>}
 */
export async function stopTrial(studyId, number) {
  return asTrial(await request(`/v1/studies/${studyId}/trials/${number}:stop`, { method: "POST" }));
}

/**
 * Pause or resume one trial, or let it start before others of its study.
 * @param {number} studyId
 * @param {number} number of the trial
 * @param {{paused?: boolean, priority?: number}} changes
 * @returns {Promise<DetailedTrial>}
 */
export async function changeTrial(studyId, number, changes) {
  const options = { method: "PATCH", headers: JSON_BODY, body: JSON.stringify(changes) };
  return asTrial(await request(`/v1/studies/${studyId}/trials/${number}`, options));
}

/**
 * Forget one trial that has ended, with all that belongs to it.
 * @param {number} studyId
 * @param {number} number of the trial
 * @returns {Promise<unknown>}
 */
export function removeTrial(studyId, number) {
  return request(`/v1/studies/${studyId}/trials/${number}`, { method: "DELETE" });
}

/**
 * Let failed trials of a study run again: those with these numbers, or all.
 * @param {number} studyId
 * @param {number[] | null} [numbers]
 * @returns {Promise<Answers.RetriedView>}
 */
export function retry(studyId, numbers = null) {
  const body = JSON.stringify({ numbers });
  return request(`/v1/studies/${studyId}:retry`, { method: "POST", headers: JSON_BODY, body });
}

/**
 * Add a candidate with these parameters to a study. Those that are left out are random. One with a result is not trained.
 * @param {number} studyId
 * @param {Record<string, any>} params
 * @param {string} key the same for the same candidate
 * @param {number[] | null} [result] one number for each objective
 * @returns {Promise<Answers.EnqueuedView>}
 */
export function enqueue(studyId, params, key, result = null) {
  const body = JSON.stringify({ candidates: [params], ...(result && { values: [result] }) });
  const headers = { ...JSON_BODY, "Idempotency-Key": key };
  return request(`/v1/studies/${studyId}/trials`, { method: "POST", headers, body });
}

/**
 * @param {number} studyId
 * @param {Record<string, unknown>} limits see Limits of the API
 * @returns {Promise<unknown>}
 */
export function extend(studyId, limits) {
  return request(`/v1/studies/${studyId}:extend`, { method: "POST", headers: JSON_BODY, body: JSON.stringify(limits) });
}

/**
 * @param {number} studyId
 * @param {number} priority
 * @returns {Promise<unknown>}
 */
export function prioritize(studyId, priority) {
  const body = JSON.stringify({ priority });
  return request(`/v1/studies/${studyId}:prioritize`, { method: "POST", headers: JSON_BODY, body });
}

/**
 * @param {number} studyId
 * @returns {Promise<unknown>}
 */
export function stop(studyId) {
  return request(`/v1/studies/${studyId}:stop`, { method: "POST" });
}

/**
 * Forget a study that has ended, with all that belongs to it.
 * @param {number} studyId
 * @returns {Promise<unknown>}
 */
export function remove(studyId) {
  return request(`/v1/studies/${studyId}`, { method: "DELETE" });
}

/**
 * What receivers were told about a study, or will be, the newest first.
 * @param {number} studyId
 * @param {number} limit
 * @returns {Promise<{items: Answers.DeliveryView[]}>}
 */
export function deliveries(studyId, limit) {
  return request(`/v1/studies/${studyId}/deliveries?newest_first=true&limit=${limit}`);
}

/**
 * Send a test to each receiver that a study names.
 * @param {number} studyId
 * @returns {Promise<Answers.DeliveryView[]>}
 */
export function testReceivers(studyId) {
  return request(`/v1/studies/${studyId}/deliveries:test`, { method: "POST" });
}

/**
 * The trials with these numbers.
 * @param {number} studyId
 * @param {number[]} numbers
 * @returns {Promise<Trial[]>}
 */
export async function trials(studyId, numbers) {
  const pages = await Promise.all(
    chunks(numbers, AT_ONCE).map((some) => request(`/v1/studies/${studyId}/trials?${numbered(some)}`)),
  );
  return pages.flatMap((page) => page.items.map(asTrial));
}

/**
 * Running trials; there are no more than devices have room for.
 * @param {number} studyId
 * @returns {Promise<Trial[]>}
 */
export async function running(studyId) {
  return (await request(`/v1/studies/${studyId}/trials?state=RUNNING&limit=1000`)).items.map(asTrial);
}

/**
 * Objective by trial number, thinned, of the trials that pass the filter of the table: see HistoryView of the API.
 * @param {number} studyId
 * @param {TrialChoice} [choice]
 * @returns {Promise<Answers.HistoryView>}
 */
export function history(studyId, { states = [], where = "" } = {}) {
  const query = filterQuery(states, where);
  return request(`/v1/studies/${studyId}/history${query.size ? `?${query}` : ""}`);
}

/**
 * @param {string[]} states
 * @param {string} where
 * @returns {URLSearchParams}
 */
function filterQuery(states, where) {
  const query = new URLSearchParams(states.map((state) => ["state", state]));
  if (where) query.set("where", where);
  return query;
}

/**
 * Numbers of the trials in an order, and how many trials there are.
 * @param {number} studyId
 * @param {string} query that of `study/table/view.js`
 * @param {number | null} limit only so many of the first; null: all
 * @returns {Promise<Answers.OrderView>}
 */
export function order(studyId, query, limit) {
  return request(`/v1/studies/${studyId}/order?${query}${limit === null ? "" : `&limit=${limit}`}`);
}

/**
 * Address of the same trials as CSV.
 * @param {number} studyId
 * @param {string} query
 * @returns {string}
 */
export function csvAddress(studyId, query) {
  return `/v1/studies/${studyId}/trials.csv?${query}`;
}

/**
 * Values of these parameters by trial, as columns, thinned: see CandidatesView of the API.
 * @param {number} studyId
 * @param {TrialChoice & {params?: string[], points: number}} choice
 * @returns {Promise<Answers.CandidatesView>}
 */
export function candidates(studyId, { params = [], states = [], where = "", points }) {
  const query = filterQuery(states, where);
  query.set("points", String(points));
  for (const name of params) query.append("param", name);
  return request(`/v1/studies/${studyId}/candidates?${query}`);
}

/**
 * Trials by the values of several objectives: see FrontView of the API.
 * @param {number} studyId
 * @returns {Promise<Answers.FrontView>}
 */
export function front(studyId) {
  return request(`/v1/studies/${studyId}/front`);
}

/**
 * How much each parameter matters: see ImportancesView of the API.
 * @param {number} studyId
 * @returns {Promise<Answers.ImportancesView>}
 */
export function importances(studyId) {
  return request(`/v1/studies/${studyId}/importances`);
}

/**
 * Which trials are copies of others: see LineageView of the API.
 * @param {number} studyId
 * @param {number} trials about how many of them
 * @returns {Promise<Answers.LineageView>}
 */
export function lineage(studyId, trials) {
  return request(`/v1/studies/${studyId}/lineage?trials=${trials}`);
}

/**
 * Measured attempts by trial, {trial_id, number, state, attempts}: those on the outline of all, `points` at most.
 * @param {number} studyId
 * @param {number} points
 * @returns {Promise<Answers.PeaksView[]>}
 */
export async function peaks(studyId, points) {
  return (await request(`/v1/studies/${studyId}/peaks?points=${points}`)).items;
}

/**
 * Measured attempts of the trials with these numbers.
 * @param {number} studyId
 * @param {number[]} numbers
 * @returns {Promise<Answers.PeaksView[]>}
 */
export async function peaksOf(studyId, numbers) {
  const pages = await Promise.all(
    chunks(numbers, AT_ONCE).map((some) => request(`/v1/studies/${studyId}/peaks?${numbered(some)}`)),
  );
  return pages.flatMap((page) => page.items);
}

/**
 * Thinned curves of the trials with these numbers, a few at a time: `take(curves)`. `metric`: only this one.
 * @param {number} studyId
 * @param {number[]} numbers
 * @param {{metric?: string, points: number}} choice
 * @param {(curves: Answers.CurveView[]) => void} take
 * @returns {Promise<void>}
 */
export async function curves(studyId, numbers, { metric = "", points }, take) {
  for (const some of chunks(numbers, CURVES)) {
    const query = `${numbered(some)}&points=${points}&metric=${encodeURIComponent(metric)}`;
    for (let after = -1; after !== null;) {
      const page = await request(`/v1/studies/${studyId}/curves?${query}&after=${after}`);
      take(page.items);
      after = page.next;
    }
  }
}

/**
 * @param {number[]} numbers
 * @returns {string}
 */
function numbered(numbers) {
  return numbers.map((number) => `number=${number}`).join("&");
}

/**
 * @template Item
 * @param {Item[]} items
 * @param {number} size
 * @returns {Item[][]}
 */
function chunks(items, size) {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, at) => items.slice(at * size, (at + 1) * size));
}

/**
 * One trial with its attempts.
 * @param {number} studyId
 * @param {number} number
 * @returns {Promise<DetailedTrial>}
 */
export async function trial(studyId, number) {
  return asTrial(await request(`/v1/studies/${studyId}/trials/${number}`));
}

/**
 * One simulated step of the trial's pipeline; null for other plans.
 * @param {number} studyId
 * @param {number} number of the trial
 * @returns {Promise<Answers.TimelineView | null>}
 */
export function timeline(studyId, number) {
  return request(`/v1/studies/${studyId}/trials/${number}/timeline`);
}

/**
 * Log lines with id > `after`; with -1, the last 1000. `search`: only those with this text.
 * @param {number} studyId
 * @param {number} number of the trial
 * @param {number} after
 * @param {string} [search]
 * @returns {Promise<Answers.LogLineView[]>}
 */
export async function logs(studyId, number, after, search = "") {
  const query = new URLSearchParams({ after: String(after), limit: "1000", ...(search ? { search } : {}) });
  return (await request(`/v1/studies/${studyId}/trials/${number}/logs?${query}`)).items;
}

/**
 * A trial from the API with its memory in MiB as well.
 * @template {Answers.TrialView} View
 * @param {View} trial
 * @returns {View & {predicted_mib: number | null, measured_mib: number | null}}
 */
export function asTrial(trial) {
  return {
    ...trial,
    value: finite(trial.value),
    predicted_mib: toMib(trial.expected_bytes),
    measured_mib: toMib(trial.measured_bytes),
  };
}

/**
 * The value, or null when it is not finite: JSON has no NaN, so a diverged value arrives as null or text.
 * @param {unknown} value
 * @returns {number | null}
 */
function finite(value) {
  return Number.isFinite(value) ? Number(value) : null;
}
