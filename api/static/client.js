// Calls of the REST API. Every failure becomes an Error whose message says what to do.

import { toMib } from "./format.js";

const PAGE = 500;
const STUDIES = 50;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", headers: { Accept: "application/json" }, ...options });
  } catch {
    throw new ApiError(0, "ScaMP cannot be reached. Start it with “scamp serve”, then reload this page.");
  }
  if (response.ok) return response.json();
  if (response.status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname)}`);
  }
  throw new ApiError(response.status, await problem(response));
}

async function problem(response) {
  try {
    const body = await response.json();
    if (typeof body.detail === "string" && body.detail) return body.detail;
    if (typeof body.title === "string" && body.title) return body.title;
  } catch {
    // The body is no problem document.
  }
  return `ScaMP answered ${response.status} ${response.statusText}. Check the log of “scamp serve”, then reload this page.`;
}

/** Fetch all pages of a list from `after` on. `take(items)` is called for each, so the first is drawn at once. */
async function everyPage(path, take, after = 0) {
  for (let next = after; next !== null; ) {
    const page = await request(`${path}?after=${next}&limit=${PAGE}`);
    take(page.items);
    next = page.next;
  }
}

// --- resources, as the pages draw them --------------------------------------------------------------------------------

export function cluster() {
  return request("/v1/cluster");
}

/** The newest studies with an id < `before` (0: the newest of all): {items, next}. */
export function studies(before = 0) {
  return request(`/v1/studies?newest_first=true&limit=${STUDIES}&after=${before}`);
}

/** One study as it is listed, in an array; much cheaper than with its summary. */
export async function listedStudy(studyId) {
  return (await request(`/v1/studies?limit=1&after=${studyId - 1}`)).items;
}

export function study(studyId) {
  return request(`/v1/studies/${studyId}`);
}

export function stop(studyId) {
  return request(`/v1/studies/${studyId}:stop`, { method: "POST" });
}

export function trials(studyId, take, after = 0) {
  return everyPage(`/v1/studies/${studyId}/trials`, (items) => take(items.map(asTrial)), after);
}

/** Measured attempts by trial: {trial_id, number, attempts}. */
export function peaks(studyId, take) {
  return everyPage(`/v1/studies/${studyId}/peaks`, take);
}

/** Measured attempts of one trial, in an array; of the next trial that has any, if this one has none. */
export async function peaksOf(studyId, trialId) {
  return (await request(`/v1/studies/${studyId}/peaks?limit=1&after=${trialId - 1}`)).items;
}

/** Memory corrections learned for the study's families. */
export function learned(studyId) {
  return request(`/v1/studies/${studyId}/learned`);
}

/** One trial with its attempts. */
export async function trial(studyId, number) {
  return asTrial(await request(`/v1/studies/${studyId}/trials/${number}`));
}

/** One simulated step of the trial's pipeline; null for other plans. */
export function timeline(studyId, number) {
  return request(`/v1/studies/${studyId}/trials/${number}/timeline`);
}

/** Evaluations at steps > `after`. */
export function metrics(studyId, number, after, take) {
  return everyPage(`/v1/studies/${studyId}/trials/${number}/metrics`, take, after);
}

/** Log lines with id > `after`; with -1, the last 1000. */
export async function logs(studyId, number, after) {
  return (await request(`/v1/studies/${studyId}/trials/${number}/logs?after=${after}&limit=1000`)).items;
}

/** A trial from the API with its memory in MiB as well. */
export function asTrial(trial) {
  return {
    ...trial,
    value: finite(trial.value),
    predicted_mib: toMib(trial.expected_bytes),
    measured_mib: toMib(trial.measured_bytes),
  };
}

/** The value, or null when it is not finite: JSON has no NaN, so a diverged value arrives as null or text. */
function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** The best completed trial; while there is none, the best running trial; or null. */
export function bestOf(trials, direction) {
  const sign = direction === "minimize" ? -1 : 1;
  const best = (state) =>
    trials
      .filter((trial) => trial.state === state && trial.value !== null)
      .reduce((top, trial) => (top === null || sign * trial.value > sign * top.value ? trial : top), null);
  return best("COMPLETED") ?? best("RUNNING");
}

export function devicesInUse(cluster, studyId) {
  return (cluster?.devices ?? []).filter((device) => device.gangs.some((gang) => gang.study_id === studyId)).length;
}
