// One trial: its state and the reason, its plan in words, every attempt, its curves and the end of its log.

import * as api from "./client.js";
import { Curves } from "./charts.js";
import { seconds } from "./columns.js";
import { byId, coalesced, h, keyed, setText } from "./dom.js";
import { clock, count, duration, metric, mib, mibWords, paramValue, planWords, plural, stepWords, toMib } from "./format.js";
import { copyButton, follow, guarded, refresher, watchCluster } from "./live.js";
import { LogTail } from "./logs.js";
import { TERMINAL, setState, stateMark } from "./states.js";
import { Timeline, shareWords } from "./timeline.js";

const LOGS_MS = 2000; // no event announces log lines
const page = byId("trial").dataset;
const studyId = Number(page.studyId);
const number = Number(page.number);
let study = null;
let trial = null;
let attempts = [];
let options = [];
const CURVE_POINTS = 1000;
let curves = []; // one for each metric
const charts = new Map(); // metric name → {figure, lines}
const attemptsHead = byId("attempts-head");
const timeline = new Timeline(byId("timeline"), byId("timeline-legend"));
let timelinePlan = ""; // the plan whose step is drawn, as JSON
const log = new LogTail(byId("log"), byId("log-end"), byId("log-aside"));

const draw = coalesced(() => {
  if (!trial) return;
  drawHead();
  drawPlan();
  drawOptions();
  drawAttempts();
});
const drawCurves = coalesced(drawCurvesNow, 300);

function drawHead() {
  document.title = `Trial ${trial.number} · ${study.name} · ScaMP`;
  setText(byId("study-link"), study.name);
  setState(byId("state"), trial.state);
  setText(byId("reason"), trial.reason);
  const { metric: objective } = study.spec.objective;
  setText(byId("value-label"), objective.charAt(0).toUpperCase() + objective.slice(1));
  setText(byId("value"), metric(trial.value));
  byId("steps").replaceChildren(count(Math.max(0, trial.step)), " ", h("small", {}, `of ${count(study.spec.budget.steps)}`));
  drawPeak();
  drawStep();
  byId("reserved").replaceChildren(trial.reserved_mib ? mibWords(trial.reserved_mib) : "–", " ", h("small", {}, trial.reserved_mib ? "on each rank" : ""));
  drawTime();
}

/** Show the peaks of the last exactly measured attempt; if all ran out of memory, the lower bound. */
function drawPeak() {
  const exact = attempts.filter((attempt) => attempt.measured_bytes && !ranOut(attempt)).at(-1);
  const predicted = exact ? toMib(exact.expected_bytes) : trial.predicted_mib;
  const off = exact ? (100 * (predicted - toMib(exact.measured_bytes))) / toMib(exact.measured_bytes) : null;
  const words = off === null ? "" : `${off >= 0 ? "+" : "−"}${Math.abs(off).toFixed(1)} %`;
  byId("predicted").replaceChildren(mibWords(predicted), " ", h("small", { title: "against the measured peak" }, words));
  const least = trial.measured_mib ? `over ${mibWords(trial.measured_mib)}` : "–";
  setText(byId("measured"), exact ? mibWords(toMib(exact.measured_bytes)) : least);
}

/** Show the step times of the last timed attempt; before that, the prediction for the next one. */
function drawStep() {
  const timed = attempts.filter((attempt) => attempt.measured_step_seconds).at(-1);
  const { predicted_step_seconds: predicted, measured_step_seconds: measured } = timed ?? trial;
  const times = predicted && measured ? `× ${(measured / predicted).toFixed(2)}` : "";
  byId("step-time").replaceChildren(`${stepWords(predicted)} / ${stepWords(measured)}`, " ", h("small", { title: "measured over predicted" }, times));
  setText(byId("plan-time"), trial.plan ? timeWords(trial) : "");
}

function timeWords({ predicted_step_seconds: predicted, step_factor: factor }) {
  if (predicted === null) return "No step time is predicted: the speed of these devices was not known when it was planned. It is measured when no study runs, or by “scamp calibrate”.";
  if (factor !== 1) return `Predicted step: ${stepWords(predicted)}, which is × ${factor.toFixed(2)} as in earlier trials of its family, on hosts as busy as theirs.`;
  return `Predicted step: ${stepWords(predicted)} with the gang alone on its host. Other trials on the same devices or cores slow it down.`;
}

function ranOut(attempt) {
  return attempt.outcome === "OUT_OF_MEMORY";
}

function drawTime() {
  if (trial) setText(byId("time"), duration(seconds(trial)));
}

function drawPlan() {
  setText(byId("plan"), planWords(trial));
  setText(byId("plan-reason"), trial.plan_reason);
  keyed(
    byId("params"),
    Object.entries(trial.params).flatMap(([name, value]) => [{ tag: "dt", name, text: name }, { tag: "dd", name, text: paramValue(value) }]),
    (item) => `${item.tag} ${item.name}`,
    (item) => h(item.tag),
    (node, item) => setText(node, item.text),
  );
}

function drawOptions() {
  byId("options-card").hidden = options.length < 2;
  const before = options.findIndex((option) => option.chosen);
  setText(byId("options-aside"), before > 0 ? "the first plan that fits was chosen" : "");
  keyed(byId("options-rows"), options.map((option) => ({ key: JSON.stringify(option), option })), (row) => row.key, (row) => optionRow(row.option));
}

function optionRow(option) {
  const least = option.at_least ? "≥ " : option.traced ? "" : "~ ";
  const cells = [
    count(option.num_ranks),
    `${least}${count(option.reserved_mib)}`,
    option.relative_device_seconds === null ? "–" : `× ${option.relative_device_seconds.toFixed(2)}`,
    stepWords(option.seconds),
    option.communication_share === null ? "–" : `${(100 * option.communication_share).toFixed(0)} %`,
  ];
  const verdict = option.chosen ? "chosen" : option.fits ? "faster, on more devices" : `over ${count(option.offered_mib)} MiB`;
  return h("tr", {}, h("th", { scope: "row" }, option.plan_text), cells.map((text) => h("td", { class: "num" }, text)), h("td", {}, verdict));
}

function drawAttempts() {
  const noun = plural(attempts.length, "attempt");
  const failed = trial.num_oom ? `, ${plural(trial.num_oom, "out-of-memory failure")}${trial.healed ? " healed by a new plan" : ""}` : "";
  setText(byId("attempts-aside"), attempts.length ? `${noun}${failed}` : "");
  const newestFirst = [...attempts].sort((a, b) => b.attempt - a.attempt).map((attempt) => ({ key: JSON.stringify(attempt), node: () => attemptBody(attempt) }));
  const parts = attempts.length ? [{ key: "head", node: () => attemptsHead }, ...newestFirst] : [{ key: trial.state, node: nothingRun }];
  keyed(byId("attempts"), parts, (part) => part.key, (part) => part.node());
}

function nothingRun() {
  const words = trial.state === "INFEASIBLE" ? "No plan fits, so the trial was never launched and has used no device." : "The trial has not been launched yet.";
  return h("tbody", {}, h("tr", {}, h("td", { colspan: 12, class: "muted" }, words)));
}

function attemptBody(attempt) {
  const measured = attempt.measured_bytes ? `${ranOut(attempt) ? "> " : ""}${mib(toMib(attempt.measured_bytes))}` : "–";
  const times = [attempt.predicted_step_seconds, attempt.measured_step_seconds].map(stepWords);
  const numbers = [count(attempt.mib_per_rank), mib(toMib(attempt.expected_bytes)), measured, ...times];
  return h(
    "tbody",
    {},
    h(
      "tr",
      {},
      h("th", { scope: "row" }, attempt.attempt),
      h("td", {}, stateMark(attempt.outcome ?? attempt.state)),
      h("td", { title: attempt.plan_text }, attempt.plan_short),
      h("td", {}, attempt.devices.join(", ")),
      numbers.map((number) => h("td", { class: "num" }, number)),
      h("td", { class: "num" }, attempt.checkpoint_step >= 0 ? count(attempt.checkpoint_step) : "–"),
      h("td", {}, clock(attempt.created_at)),
      h("td", { class: "num" }, attempt.ended_at ? duration(attempt.ended_at - attempt.created_at) : "–"),
    ),
    h("tr", {}, h("td", { colspan: 12 }, h("div", { class: "detail" }, attempt.placement_reason ? h("p", {}, `Placed: ${attempt.placement_reason}`) : null, detailNode(attempt)))),
  );
}

function detailNode({ detail, outcome }) {
  if (!detail) return null;
  if (!detail.includes("\n")) return h("p", { class: "error" }, detail);
  const lines = detail.trimEnd().split("\n");
  return h("details", { open: outcome === "ERROR" }, h("summary", {}, lines.at(-1)), h("pre", { class: "trace", tabindex: "0" }, detail));
}

// --- curves --------------------------------------------------------------------------------------------------------

function drawCurvesNow() {
  if (!trial || !curves.length) return;
  const objective = study.spec.objective.metric;
  const ordered = [...curves].sort((a, b) => (b.metric === objective) - (a.metric === objective) || (a.metric < b.metric ? -1 : 1));
  setText(byId("curves-aside"), curves[0].resumed.length ? "dashed: a later attempt resumed here" : "");
  keyed(byId("curves"), ordered.map((curve) => curve.metric), (name) => name, figure);
  for (const { metric: name, step, value, resumed } of ordered) {
    charts.get(name).update([{ trial, points: step.map((at, index) => [at, value[index]]) }], { name, marks: resumed });
  }
}

function figure(name) {
  const box = h("div", { class: "chart short", role: "img", "aria-label": `${name} by step` });
  const node = h("figure", { class: "span-6" }, box);
  charts.set(name, new Curves(box, { blank: `No finite value of ${name} yet.` }));
  return node;
}

// --- loading and following -----------------------------------------------------------------------------------------

let lastLine = -1; // -1: fetch the last lines

const fetchers = {
  async trial() {
    trial = await api.trial(studyId, number);
    attempts = trial.attempts;
    options = trial.options;
    draw();
    await fetchTimeline();
  },
  async metrics() {
    await api.curves(studyId, [number], { points: CURVE_POINTS }, (found) => (curves = found));
    drawCurves();
  },
  async logs() {
    for (let lines = null; lines === null || lines.length === 1000; ) {
      lines = await api.logs(studyId, number, lastLine);
      log.add(lines);
      lastLine = lines.length ? lines.at(-1).id : Math.max(lastLine, 0);
    }
  },
};
/** Fetch the step of a pipeline when its plan has changed. Other plans have none to draw. */
async function fetchTimeline() {
  const plan = JSON.stringify([trial.plan, trial.reserved_mib]);
  if (plan === timelinePlan) return;
  const step = trial.plan?.pp > 1 ? await api.timeline(studyId, number) : null;
  timelinePlan = plan;
  byId("timeline-card").hidden = step === null;
  if (!step) return;
  setText(byId("timeline-aside"), shareWords(step));
  timeline.show(step);
}

const refresh = refresher((kinds) => Promise.all(kinds.map((kind) => fetchers[kind]())));

/** Call `handle` only for events of this trial: the stream carries those of its whole study. */
function mine(handle) {
  return (event) => event.trial_id === trial.id && handle(event);
}

const handlers = {
  trial: mine(({ data }) => {
    trial = api.asTrial({ ...trial, ...data });
    refresh("trial");
    refresh("logs");
    draw();
  }),
  attempt: mine(() => {
    for (const kind of Object.keys(fetchers)) refresh(kind);
  }),
  metrics: mine(() => {
    for (const kind of Object.keys(fetchers)) refresh(kind);
  }),
};

byId("params-copy").append(copyButton(() => JSON.stringify(trial?.params ?? {}, null, 2)));
setInterval(drawTime, 1000);
setInterval(() => trial && !TERMINAL.has(trial.state) && refresh("logs"), LOGS_MS);
watchCluster();
await guarded(async () => {
  study = await api.study(studyId);
  await fetchers.trial();
});
if (trial) {
  follow({ studyId, after: trial.last_event_id, handlers });
  guarded(() => Promise.all([fetchers.metrics(), fetchers.logs()]));
} else {
  setText(byId("reason"), "This trial could not be loaded.");
}
