// One study: figures, optimisation history, learning curves, memory, best trial and the table of its trials, all live.

import * as api from "./client.js";
import { Curves, History } from "./charts.js";
import { trialColumns } from "./columns.js";
import { byId, coalesced, h, keyed, setText } from "./dom.js";
import { count, duration, metric, paramValue, planWords, plural } from "./format.js";
import { copyButton, follow, guarded, refresher, toast, watchCluster } from "./live.js";
import { Memory, asPeaks, errorWords, failureWords, learnedWords } from "./memory.js";
import { Steps, stepErrorWords } from "./steps.js";
import { LIVE_STUDY, TERMINAL, TRIAL_STATES, label, progressBar, setProgress, setStudyState, stateMark } from "./states.js";
import { VirtualTable } from "./table.js";

const MOST_CURVES = 200; // lines that can still be distinguished and drawn in a frame
const AT_ONCE = 4; // parallel requests
const FEW = 8; // trials that are fetched one by one rather than as a list
const NEW_TRIAL = { attempt: 0, params: {}, reason: "", plan: null, plan_text: "", plan_short: "", num_ranks: 0, batch: 0, expected_bytes: 0, reserved_mib: 0, measured_bytes: 0, predicted_step_seconds: null, measured_step_seconds: null, num_oom: 0, healed: false, num_lost: 0, step: -1, value: null };
const studyId = Number(byId("study").dataset.studyId);
const trials = new Map(); // id → trial
const peaks = new Map(); // trial id → its measured attempts
let learned = []; // memory corrections of the study's families
const curves = new Map(); // trial id → Map(step → values)
const chosenStates = new Set();
let study = null;
let chosenMetric = null;
let loaded = false; // whether all trials have been fetched

const open = (trial) => location.assign(`/studies/${studyId}/trials/${trial.number}`);
const history = new History(byId("history"), open);
const memory = new Memory(byId("memory"), open);
const steps = new Steps(byId("steps"), open);
const lines = new Curves(byId("curves"), { open, onHover: (trial) => lightRow(trial?.id ?? null) });
const bar = progressBar();
byId("progress").append(bar);
let lit = null;

const table = new VirtualTable(byId("trials"), {
  columns: trialColumns(studyId, () => study.spec.fixed),
  caption: "Trials of this study",
  sortBy: "number",
  empty: () => (trials.size ? "No trial is in the selected states. Select another state above." : "No trial has been proposed yet."),
  rowClass: (trial) => `${trial.id === bestTrial()?.id ? "best" : ""} ${trial.id === lit ? "lit" : ""}`,
  onOpen: open,
  onHover: (trial) => lines.highlight(trial?.id ?? null),
});

const draw = coalesced(() => {
  if (!study) return;
  drawHead();
  drawBest();
  drawFilters();
  drawTable();
  const all = [...trials.values()];
  history.update(all, study.spec.objective);
  memory.update(trials, peaks);
  steps.update(trials, peaks);
  setText(byId("memory-errors"), errorWords(peaks));
  setText(byId("steps-errors"), stepErrorWords(peaks));
  setText(byId("memory-failures"), failureWords(peaks));
  setText(byId("memory-learned"), learnedWords(learned));
});
const drawCurves = coalesced(drawCurvesNow, 300);

function bestTrial() {
  return api.bestOf([...trials.values()], study.spec.objective.direction);
}

function counts() {
  const found = {};
  for (const trial of trials.values()) found[trial.state] = (found[trial.state] ?? 0) + 1;
  return found;
}

function drawHead() {
  const { spec } = study;
  const all = [...trials.values()];
  document.title = `${study.name} · ScaMP`;
  setText(byId("name"), study.name);
  setStudyState(byId("state"), study);
  const rule = spec.stopping.rule === "none" ? "no early stopping" : spec.stopping.rule.toUpperCase();
  setText(byId("subtitle"), `${spec.objective.direction} ${spec.objective.metric} · ${spec.workload} · ${spec.search.sampler}, ${rule} · ${plural(spec.budget.steps, "step")} per trial`);
  byId("reason").hidden = !study.reason;
  setText(byId("reason"), study.reason);
  byId("stop").hidden = !LIVE_STUDY.has(study.state);
  byId("stop").disabled = study.state !== "RUNNING" || !loaded; // the dialog says how many trials would be cancelled
  setText(byId("stop"), study.state === "STOPPING" ? "Stopping…" : "Stop study");

  const done = all.filter((trial) => TERMINAL.has(trial.state)).length;
  setText(byId("done"), `${count(done)} of ${count(Math.max(spec.budget.trials, all.length))}`);
  setProgress(bar, counts(), spec.budget.trials);
  setText(byId("best-label"), `Best ${spec.objective.metric}`);
  setText(byId("best"), metric(bestTrial()?.value));
  const running = all.filter((trial) => trial.state === "RUNNING");
  const ranks = running.reduce((sum, trial) => sum + (trial.num_ranks), 0);
  byId("running").replaceChildren(count(running.length), " ", h("small", {}, running.length ? `on ${plural(ranks, "rank")}` : ""));
  setText(byId("healed"), count(study.summary.healed));
  drawWall();
}

function drawWall() {
  if (study) setText(byId("wall"), duration((study.finished_at ?? Date.now() / 1000) - study.created_at));
}

let shownBest = "";

function drawBest() {
  const best = bestTrial();
  const signature = best ? JSON.stringify([best.id, best.value, best.state, best.plan]) : study.state_text;
  if (signature === shownBest) return;
  shownBest = signature;
  if (!best) return byId("best-box").replaceChildren(h("p", { class: "muted" }, `No trial has completed${study.no_success ? "" : " yet"}.`));
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
  byId("best-copy").replaceChildren(copyButton(() => JSON.stringify(trials.get(best.id).params, null, 2), "Copy parameters"));
}

function drawFilters() {
  const found = counts();
  const present = TRIAL_STATES.filter((state) => found[state]);
  keyed(
    byId("filters"),
    present,
    (state) => state,
    (state) => h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle(state) }, stateMark(state), h("b")),
    (button, state) => {
      setText(button.lastChild, count(found[state]));
      button.setAttribute("aria-pressed", String(chosenStates.has(state)));
    },
  );
  const legend = byId("history-legend");
  const best = { state: "best" };
  keyed(
    legend,
    [best, ...present.map((state) => ({ state }))],
    (item) => item.state,
    (item) => (item.state === "best" ? h("span", { class: "line" }, "best so far") : stateMark(item.state)),
  );
}

// Pressed buttons are the states that are shown; with none pressed, all states are.
function toggle(state) {
  if (!chosenStates.delete(state)) chosenStates.add(state);
  draw();
}

function drawTable() {
  const all = [...trials.values()];
  const shown = chosenStates.size ? all.filter((trial) => chosenStates.has(trial.state)) : all;
  setText(byId("trials-aside"), chosenStates.size ? `${count(shown.length)} of ${count(all.length)}` : plural(all.length, "trial"));
  table.setRows(shown);
}

function lightRow(trialId) {
  lit = trialId;
  table.draw();
}

// --- curves --------------------------------------------------------------------------------------------------------

/** Trials whose curves are fetched and drawn: running ones, then the best, then the newest. */
function curveTrials() {
  const sign = study.spec.objective.direction === "minimize" ? 1 : -1;
  const rank = (trial) => (trial.state === "RUNNING" ? -Infinity : trial.value === null ? Infinity : sign * trial.value);
  return [...trials.values()]
    .filter((trial) => trial.attempt > 0)
    .sort((a, b) => (rank(a) === rank(b) ? b.number - a.number : rank(a) < rank(b) ? -1 : 1))
    .slice(0, MOST_CURVES);
}

function drawCurvesNow() {
  if (!study) return;
  const names = new Set([study.spec.objective.metric]);
  for (const rows of curves.values()) for (const values of rows.values()) for (const name of Object.keys(values)) names.add(name);
  const select = byId("metric");
  chosenMetric ??= study.spec.objective.metric;
  keyed(select, [...names], (name) => name, (name) => h("option", { value: name }, name));
  select.value = chosenMetric;
  const best = bestTrial();
  const chosen = curveTrials().filter((trial) => curves.has(trial.id));
  const ordered = [...chosen.filter((trial) => trial.id !== best?.id), ...chosen.filter((trial) => trial.id === best?.id)];
  lines.update(
    ordered.map((trial) => ({ trial, points: pointsOf(trial.id) })),
    { name: chosenMetric, bestId: best?.id ?? null },
  );
  const tried = [...trials.values()].filter((trial) => trial.attempt > 0).length;
  setText(byId("curves-aside"), tried > MOST_CURVES ? `${MOST_CURVES} of ${count(tried)}: running, best and newest` : "");
}

function pointsOf(trialId) {
  return [...curves.get(trialId)]
    .filter(([, values]) => Number.isFinite(values[chosenMetric]))
    .map(([step, values]) => [step, values[chosenMetric]])
    .sort((a, b) => a[0] - b[0]);
}

function addMetrics(trialId, rows) {
  if (!curves.has(trialId)) curves.set(trialId, new Map());
  const known = curves.get(trialId);
  for (const row of rows) known.set(row.step, row.values);
}

// --- loading and following -----------------------------------------------------------------------------------------

const fetchedStep = new Map(); // trial id → the last step up to which its curve has been fetched without a gap

async function loadCurve(trial) {
  await api.metrics(studyId, trial.number, fetchedStep.get(trial.id) ?? -1, (rows) => {
    addMetrics(trial.id, rows);
    if (rows.length) fetchedStep.set(trial.id, rows.at(-1).step);
  });
  drawCurves();
}

/** Do `work` for every item, a few at a time. */
async function each(items, work) {
  const rest = [...items];
  const next = async () => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) await work(item);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, next));
}

function keep(items) {
  if (items.some((trial) => trial.healed && !trials.get(trial.id)?.healed)) refreshStudy("healed"); // it counts them
  for (const trial of items) trials.set(trial.id, trial);
  draw();
  drawCurves();
}

async function load() {
  study = await api.study(studyId);
  draw();
  await api.trials(studyId, keep);
  loaded = true;
  draw();
}

const refreshStudy = refresher(async () => {
  study = await api.study(studyId);
  draw();
});

/** Fetch trials again: an event has only their state and value. A few are fetched one by one, many as a list. */
const refreshTrials = refresher(async (ids) => {
  const known = ids.map((id) => trials.get(id));
  if (ids.length <= FEW) await each(known, async (trial) => keep([await api.trial(studyId, trial.number)]));
  else await api.trials(studyId, keep, Math.min(...ids) - 1);
});

function keepPeaks(items) {
  for (const item of items) peaks.set(item.trial_id, asPeaks(item));
  draw();
}

async function loadPeaks(fetch) {
  await fetch();
  learned = await api.learned(studyId);
  draw();
}

const refreshPeaks = refresher((ids) => loadPeaks(() => each(ids, async (id) => keepPeaks(await api.peaksOf(studyId, id)))));

const refreshCurves = refresher((ids) => each(ids.filter((id) => trials.has(id)), (id) => loadCurve(trials.get(id))));

function onTrial({ trial_id: id, data }) {
  trials.set(id, api.asTrial({ ...NEW_TRIAL, ...trials.get(id), ...data }));
  refreshTrials(id);
  draw();
  drawCurves();
}

function onAttempt({ trial_id: id }) {
  if (!trials.has(id)) return;
  fetchedStep.delete(id); // a resumed attempt repeats steps, and its rows replace the older ones
  refreshTrials(id);
  refreshPeaks(id);
  refreshCurves(id);
}

function onMetrics({ trial_id: id, data }) {
  if (!trials.has(id)) return;
  const trial = trials.get(id);
  const value = data.values[study.spec.objective.metric];
  if (Number.isFinite(value)) trials.set(id, { ...trial, value, step: data.step });
  if (curves.has(id) || curves.size < MOST_CURVES || trial.state === "RUNNING") {
    addMetrics(id, [data]);
    refreshCurves(id); // one event may cover several evaluations
  }
  refreshTrials(id);
  if (!peaks.get(id)?.some((peak) => peak.attempt === trial.attempt && peak.measured_step_seconds)) refreshPeaks(id); // the attempt's end brings its last time
  draw();
  drawCurves();
}

// --- user actions --------------------------------------------------------------------------------------------------

byId("metric").addEventListener("change", (event) => {
  chosenMetric = event.target.value;
  drawCurves();
});

byId("stop").addEventListener("click", () => {
  const open = [...trials.values()].filter((trial) => !TERMINAL.has(trial.state)).length;
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

setInterval(() => {
  drawWall();
  if (study && LIVE_STUDY.has(study.state)) table.draw();
}, 1000);
watchCluster();
await guarded(load);
if (study) {
  follow({ studyId, after: study.last_event_id, handlers: { study: refreshStudy, trial: onTrial, attempt: onAttempt, metrics: onMetrics } });
  guarded(() => loadPeaks(() => api.peaks(studyId, keepPeaks)));
  guarded(() => each(curveTrials(), loadCurve));
} else {
  setText(byId("subtitle"), "This study could not be loaded.");
}
