// One study: figures, optimisation history, learning curves, memory, best trial and the table of its trials, all live.
// A study may have any number of trials: charts are thinned by the server, and the table fetches the rows that are seen.

import * as api from "./client.js";
import { Curves, History } from "./charts.js";
import { trialColumns } from "./columns.js";
import { byId, coalesced, h, keyed, setText, setTitle } from "./dom.js";
import { count, duration, metric, paramValue, planWords, plural } from "./format.js";
import { copyButton, follow, guarded, refresher, toast, watchCluster } from "./live.js";
import { Memory, asPeaks, errorWords, failureWords, learnedWords } from "./memory.js";
import { Steps, stepErrorWords } from "./steps.js";
import { LIVE_STUDY, TERMINAL, TRIAL_STATES, progressBar, setProgress, setStudyState, stateMark } from "./states.js";
import { PagedTable } from "./table.js";

const CURVE_POINTS = 150; // of each of up to 200 lines, in a chart of about 500 pixels
const MOST_CURVES = 200; // the same as in api/views/charts.py
const PEAK_POINTS = 1000;
const MOST_ROWS = 3000; // rows that are kept beside the visible ones
const MOST_POINTS = 3000; // points of the history; beyond it, it is thinned again
const CHART_MS = 500; // a chart is drawn again at most twice a second
const NEW_POINT = { step: 0, value: null };
const studyId = Number(byId("study").dataset.studyId);
const rows = new Map(); // number → trial, of those that were visible or run
const numbers = new Map(); // trial id → number
const points = new Map(); // number → point of the history
const peaks = new Map(); // number → measured attempts of a trial
const lines = new Map(); // number → {trial, points} of the chosen metric
const chosenStates = new Set();
const metricNames = new Set();
let study = null;
let leading = []; // numbers of the trials whose curves are drawn
let explicitOrder = null; // numbers of the trials in the table; null: by number, all of them
let chosenMetric = null;
let lit = null;

const open = (trial) => location.assign(`/studies/${studyId}/trials/${trial.number}`);
const history = new History(byId("history"), open, (trial) => rows.get(trial.number)?.reason ?? "");
const memory = new Memory(byId("memory"), open);
const steps = new Steps(byId("steps"), open);
const curves = new Curves(byId("curves"), { open, onHover: (trial) => lightRow(trial?.number ?? null) });
const bar = progressBar();
byId("progress").append(bar);

const table = new PagedTable(byId("trials"), {
  columns: trialColumns(studyId, () => study.spec.fixed),
  caption: "Trials of this study",
  sortBy: "number",
  empty: () => (numTrials() ? "No trial is in the selected states. Select another state above." : "No trial has been proposed yet."),
  rowAt: (number) => rows.get(number),
  rowClass: (number) => `${number === study.best?.trial ? "best" : ""} ${number === lit ? "lit" : ""}`,
  onMissing: (missing) => missing.forEach(fetchRow),
  onSort: () => guarded(sortRows),
  onOpen: (number) => open({ number }),
  onHover: (trial) => curves.highlight(trial?.id ?? null),
});

const draw = coalesced(() => {
  if (!study) return;
  drawHead();
  drawBest();
  drawFilters();
  drawTable();
}, 100);
const drawHistory = coalesced(() => study && history.update([...points.values()].sort((a, b) => a.number - b.number), numTrials(), study.spec.objective), CHART_MS);
const drawCurves = coalesced(drawCurvesNow, CHART_MS);
const drawMemory = coalesced(() => memory.update(peaks), CHART_MS);
const drawSteps = coalesced(() => steps.update(peaks), CHART_MS);
const drawWords = coalesced(() => {
  if (!study) return;
  const { summary } = study;
  setText(byId("memory-errors"), errorWords(summary));
  setText(byId("steps-errors"), stepErrorWords(summary, peaks));
  setText(byId("memory-failures"), failureWords(summary));
  setText(byId("memory-learned"), learnedWords(summary.learned));
}, CHART_MS);

function numTrials() {
  return Object.values(study?.trials ?? {}).reduce((total, each) => total + each, 0);
}

function numIn(keep) {
  return Object.entries(study.trials).reduce((total, [state, each]) => total + (keep(state) ? each : 0), 0);
}

function drawHead() {
  const { spec } = study;
  document.title = `${study.name} · ScaMP`;
  setText(byId("name"), study.name);
  setStudyState(byId("state"), study);
  const rule = spec.stopping.rule === "none" ? "no early stopping" : spec.stopping.rule.toUpperCase();
  setText(byId("subtitle"), `${spec.objective.direction} ${spec.objective.metric} · ${spec.workload} · ${spec.search.sampler}, ${rule} · ${plural(spec.budget.steps, "step")} per trial`);
  byId("reason").hidden = !study.reason;
  setText(byId("reason"), study.reason);
  byId("warnings").hidden = !study.warnings.length;
  setText(byId("warnings"), `Warning: ${study.warnings.join("; ")}`);
  const isLive = LIVE_STUDY.has(study.state);
  byId("stop").hidden = !isLive;
  byId("stop").disabled = study.state !== "RUNNING";
  setText(byId("stop"), study.state === "STOPPING" ? "Stopping…" : "Stop study");
  byId("delete").hidden = isLive;

  setText(byId("done"), `${count(numIn((state) => TERMINAL.has(state)))} of ${count(Math.max(spec.budget.trials, numTrials()))}`);
  setProgress(bar, study.trials, spec.budget.trials);
  setText(byId("best-label"), `Best ${spec.objective.metric}`);
  setText(byId("best"), metric(study.best?.value));
  const ranks = runningRows().reduce((sum, trial) => sum + trial.num_ranks, 0);
  setText(byId("running-num"), count(study.trials.RUNNING ?? 0));
  setText(byId("running-ranks"), ranks ? ` on ${plural(ranks, "rank")}` : "");
  setText(byId("healed"), count(study.summary.healed));
  drawWall();
}

function runningRows() {
  return [...rows.values()].filter((trial) => trial.state === "RUNNING");
}

function drawWall() {
  if (study) setText(byId("wall"), duration((study.finished_at ?? Date.now() / 1000) - study.created_at));
}

let shownBest = "";

function drawBest() {
  const best = study.best && rows.get(study.best.trial);
  if (study.best && !best) return fetchRow(study.best.trial);
  const signature = best ? JSON.stringify([best.id, best.value, best.state, best.plan]) : study.state_text;
  if (signature === shownBest) return;
  shownBest = signature;
  if (!best) return byId("best-box").replaceChildren(h("p", { class: "muted" }, LIVE_STUDY.has(study.state) ? "No trial has completed yet." : "No trial succeeded."));
  const { spec } = study;
  const running = best.state === "COMPLETED" ? "" : ", still running";
  const params = Object.entries(best.params).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { title: value }, paramValue(value))]);
  const where = h("a", { href: `/studies/${studyId}/trials/${best.number}` }, `trial ${best.number}`);
  byId("best-box").replaceChildren(
    h("p", { class: "big" }, metric(best.value)),
    h("p", { class: "muted" }, `${spec.objective.metric} at step ${count(best.step)}, `, where, running),
    h("dl", { class: "pairs" }, params),
    h("p", { class: "muted small" }, planWords(best)),
  );
  byId("best-copy").replaceChildren(copyButton(() => JSON.stringify(best.params, null, 2), "Copy parameters"));
}

function drawFilters() {
  const present = TRIAL_STATES.filter((state) => study.trials[state]);
  keyed(
    byId("filters"),
    present,
    (state) => state,
    (state) => h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle(state) }, stateMark(state), h("b")),
    (button, state) => {
      setText(button.lastChild, count(study.trials[state]));
      const pressed = String(chosenStates.has(state));
      if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
    },
  );
  keyed(
    byId("history-legend"),
    [{ state: "best" }, ...present.map((state) => ({ state }))],
    (item) => item.state,
    (item) => (item.state === "best" ? h("span", { class: "line" }, "best so far") : stateMark(item.state)),
  );
}

// Pressed buttons are the states that are shown; with none pressed, all states are.
function toggle(state) {
  if (!chosenStates.delete(state)) chosenStates.add(state);
  draw();
  guarded(sortRows);
}

/** Fetch the order of the table, unless it is that of the numbers, which is known. */
async function sortRows() {
  const asked = { by: table.sortBy, descending: table.descending, states: [...chosenStates] };
  const isKnown = asked.by === "number" && !asked.states.length;
  const found = isKnown ? null : await api.order(studyId, asked);
  const isCurrent = asked.by === table.sortBy && asked.descending === table.descending && asked.states.join() === [...chosenStates].join();
  if (!isCurrent) return; // another click came later
  explicitOrder = found;
  draw();
}

function drawTable() {
  const total = numTrials();
  const byNumber = { length: total, at: (index) => (table.descending ? total - 1 - index : index) };
  const order = explicitOrder ?? byNumber;
  setText(byId("trials-aside"), chosenStates.size ? `${count(order.length)} of ${count(total)}` : plural(total, "trial"));
  table.setOrder(order);
}

function lightRow(number) {
  lit = number;
  table.draw();
}

// --- curves --------------------------------------------------------------------------------------------------------

function drawCurvesNow() {
  if (!study) return;
  const names = new Set([study.spec.objective.metric, ...metricNames]);
  const select = byId("metric");
  keyed(select, [...names], (name) => name, (name) => h("option", { value: name }, name));
  if (select.value !== chosenMetric) select.value = chosenMetric;
  const drawn = leading.map((number) => lines.get(number)).filter((line) => line);
  const isBest = (line) => line.trial.number === study.best?.trial;
  const best = drawn.find(isBest);
  curves.update([...drawn.filter((line) => line !== best), ...(best ? [best] : [])], { name: chosenMetric, bestId: best?.trial.id ?? null });
  const isPart = leading.length >= MOST_CURVES;
  setText(byId("curves-aside"), isPart ? `${count(leading.length)} of ${plural(numTrials(), "trial")}` : "");
  setTitle(byId("curves-aside"), isPart ? "Running trials, then the best, then the newest" : "");
}

function stateOf(number) {
  return rows.get(number)?.state ?? points.get(number)?.state ?? "COMPLETED";
}

async function loadCurves(which) {
  const asked = chosenMetric;
  await api.curves(studyId, which, { metric: asked, points: CURVE_POINTS }, (found) => {
    if (asked !== chosenMetric) return;
    for (const { trial_id: id, number, step, value } of found) {
      lines.set(number, { trial: { id, number, state: stateOf(number) }, points: step.map((at, index) => [at, value[index]]) });
    }
    drawCurves();
  });
}

/** Add an evaluation to a line that is drawn. Those between come with the next refresh of the curves. */
function extendLine(number, { step, values }) {
  const line = lines.get(number);
  const value = values[chosenMetric];
  if (!line || !Number.isFinite(value) || step <= (line.points.at(-1)?.[0] ?? -1)) return;
  line.points.push([step, value]);
  drawCurves();
}

// --- loading and following -----------------------------------------------------------------------------------------

function keep(items) {
  for (const trial of items) {
    rows.delete(trial.number); // so that the oldest come first
    rows.set(trial.number, trial);
    numbers.set(trial.id, trial.number);
    if (points.has(trial.number)) notePoint(trial);
    const line = lines.get(trial.number);
    if (line && line.trial.state !== trial.state) {
      line.trial = { ...line.trial, state: trial.state };
      drawCurves();
    }
  }
  for (const [number, trial] of rows) {
    if (rows.size <= MOST_ROWS) break;
    if (trial.state !== "RUNNING") rows.delete(number);
  }
  draw();
}

const wanted = new Set(); // numbers of trials to fetch
const coming = new Set(); // numbers of trials in requests under way

/** Fetch the trial of a row. Calls made together become one request. */
const fetchRow = (number) => {
  if (wanted.has(number) || coming.has(number)) return;
  if (!wanted.size) setTimeout(() => guarded(fetchRows), 0);
  wanted.add(number);
};

async function fetchRows() {
  const numbers = [...wanted];
  wanted.clear();
  for (const number of numbers) coming.add(number);
  try {
    keep(await api.trials(studyId, numbers));
  } finally {
    for (const number of numbers) coming.delete(number);
  }
}

/** Note a trial's place in the history; false if it has none yet. */
function notePoint({ id, number, state, step, value }) {
  const before = points.get(number);
  if (before && before.state === state && before.step === step && before.value === value) return;
  points.set(number, { id, number, state, step, value });
  if (points.size > MOST_POINTS) refreshHistory("thinner");
  drawHistory();
}

function keepHistory(found) {
  points.clear();
  found.number.forEach((number, at) => {
    const point = { id: found.id[at], number, state: found.state[at], step: found.step[at], value: found.value[at] };
    points.set(number, point);
    numbers.set(point.id, number);
  });
  setText(byId("history-aside"), found.num_trials > points.size ? `${count(points.size)} of ${plural(found.num_trials, "trial")}` : "");
  leading = found.leading;
  for (const number of lines.keys()) if (!leading.includes(number)) lines.delete(number);
  drawHistory();
}

async function load() {
  const [found, series] = await Promise.all([api.study(studyId), api.history(studyId)]);
  study = found;
  chosenMetric = study.spec.objective.metric;
  keepHistory(series);
  draw();
  drawWords();
  return Math.min(found.last_event_id, series.last_event_id); // what comes after the first of them is replayed
}

async function loadPeaks() {
  for (const item of await api.peaks(studyId, PEAK_POINTS)) peaks.set(item.number, asPeaks(item));
  drawPeaks();
}

function drawPeaks() {
  drawMemory();
  drawSteps();
  drawWords();
}

const refreshStudy = refresher(async () => {
  study = await api.study(studyId);
  for (const name of Object.keys(study.summary.best_metrics)) metricNames.add(name);
  draw();
  drawWords();
});

/** An event has only a trial's state and value: fetch the rest, of those that are shown. */
const refreshRows = refresher(async (which) => keep(await api.trials(studyId, which)), 2000);

const refreshHistory = refresher(async () => keepHistory(await api.history(studyId)), 5000);

const refreshOrder = refresher(async () => explicitOrder && sortRows(), 2000);

const refreshPeaks = refresher(async (which) => {
  for (const item of await api.peaksOf(studyId, which)) peaks.set(item.number, asPeaks(item));
  refreshStudy("errors");
  drawPeaks();
}, 2000);

const refreshCurves = refresher((which) => loadCurves(which.filter((number) => leading.includes(number))), 3000);

/** Draw the curve of a trial that has begun to run, if there is room among those that are drawn. */
function lead(number) {
  if (leading.includes(number)) return;
  if (leading.length < MOST_CURVES) leading.push(number);
  else refreshHistory("leading"); // the server knows which one is to give way
}

function onStudy({ data }) {
  if (data.state === "DELETED") return location.assign("/");
  refreshStudy("study");
}

function onTrial({ trial_id: id, data }) {
  const { number, state } = data;
  const trial = api.asTrial(data);
  numbers.set(id, number);
  const known = rows.get(number);
  if (known) keep([{ ...known, ...trial, predicted_mib: known.predicted_mib, measured_mib: known.measured_mib }]);
  if (trial.attempt > 0 || TERMINAL.has(state) || trial.value !== null) notePoint({ ...NEW_POINT, ...trial });
  if (trial.attempt > 0) lead(number);
  if (known || state === "RUNNING") refreshRows(number);
  if (peaks.has(number)) refreshPeaks(number); // they have the state, too
  if (explicitOrder) refreshOrder("trial");
  refreshStudy("trial");
}

function onAttempt({ trial_id: id }) {
  const number = numbers.get(id);
  if (number === undefined) return;
  if (rows.has(number)) refreshRows(number);
  refreshPeaks(number);
  refreshCurves(number); // a resumed attempt repeats steps, and its values replace the older ones
  refreshStudy("attempt");
}

function onMetrics({ trial_id: id, data }) {
  const number = numbers.get(id);
  if (number === undefined) return refreshHistory("unknown");
  for (const name of Object.keys(data.values)) metricNames.add(name);
  const value = data.values[study.spec.objective.metric];
  const trial = rows.get(number);
  if (Number.isFinite(value)) {
    if (trial) keep([{ ...trial, value, step: data.step }]);
    else notePoint({ ...NEW_POINT, ...points.get(number), id, number, state: points.get(number)?.state ?? "RUNNING", value, step: data.step });
    if (!study.trials.COMPLETED) refreshStudy("best"); // the best may be one that still runs
    if (explicitOrder && table.sortBy === "value") refreshOrder("value");
  }
  lead(number);
  extendLine(number, data);
  refreshCurves(number); // one event may cover several evaluations
  refreshRows(number);
  if (!isTimed(number, trial?.attempt)) refreshPeaks(number); // the attempt's end brings its last time
}

function isTimed(number, attempt) {
  return peaks.get(number)?.attempts.some((peak) => (attempt === undefined || peak.attempt === attempt) && peak.measured_step_seconds);
}

// --- user actions --------------------------------------------------------------------------------------------------

byId("metric").addEventListener("change", (event) => {
  chosenMetric = event.target.value;
  lines.clear();
  guarded(() => loadCurves(leading));
});

byId("stop").addEventListener("click", () => {
  const open = numIn((state) => !TERMINAL.has(state));
  setText(byId("confirm-words"), `${plural(open, "trial")} of “${study.name}” will be cancelled. Results reported so far are kept. A stopped study cannot be resumed.`);
  byId("confirm").returnValue = "";
  byId("confirm").showModal();
});

byId("confirm").addEventListener("close", () => {
  if (byId("confirm").returnValue !== "yes") return;
  guarded(async () => {
    await api.stop(studyId);
    refreshStudy("stopped");
    toast("The study is stopping: its trials are being cancelled.", "info");
  });
});

byId("delete").addEventListener("click", () => {
  setText(byId("delete-words"), `“${study.name}” with its ${plural(numTrials(), "trial")}, their metrics, logs and checkpoints will be deleted. This cannot be undone.`);
  byId("confirm-delete").returnValue = "";
  byId("confirm-delete").showModal();
});

byId("confirm-delete").addEventListener("close", () => {
  if (byId("confirm-delete").returnValue !== "yes") return;
  guarded(async () => {
    await api.remove(studyId);
    location.assign("/");
  });
});

setInterval(() => {
  drawWall();
  if (study && LIVE_STUDY.has(study.state)) table.draw();
}, 1000);
const after = await guarded(load);
if (study) {
  follow({ studyId, after, handlers: { study: onStudy, trial: onTrial, attempt: onAttempt, metrics: onMetrics } });
  guarded(async () => keep(await api.running(studyId)));
  guarded(loadPeaks);
  for (const name of Object.keys(study.summary.best_metrics)) metricNames.add(name);
  guarded(() => loadCurves(leading));
} else {
  setText(byId("subtitle"), "This study could not be loaded.");
}
watchCluster();
