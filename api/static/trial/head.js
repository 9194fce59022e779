// The head of a trial's page: its state, the reason, and its figures.

import { byId, h, setText } from "../elements/dom.js";
import { setState } from "../elements/marks.js";
import {
  attemptSeconds,
  count,
  duration,
  metric,
  mibWords,
  stepUnit,
  stepWords,
  toMib,
  trialValue,
} from "../format.js";
import { isSeveral, objectivesOf } from "../objectives.js";
import { ranOut } from "../states.js";

/** @import { StudyDetail } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext, TrialState } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function headPanel({ state }) {
  const drawTime = () => {
    const [took, trained] = [
      attemptSeconds(state.attempts, "created_at"),
      attemptSeconds(state.attempts, "started_at"),
    ];
    const isAll = trained === null || duration(trained) === duration(took);
    byId("time").replaceChildren(duration(took), " ", h("small", {}, isAll ? "" : `${duration(trained)} training`));
  };

  return {
    shows: ["trial"],
    draw() {
      drawNames(state);
      drawValue(state);
      drawPeak(state);
      drawStep(state);
      drawTime();
    },
    tick: drawTime,
  };
}

/** @param {TrialState} state */
function drawNames({ trial, study }) {
  document.title = `Trial ${trial.number} · ${study.name} · ScaMP`;
  setText(byId("study-link"), study.name);
  setState(byId("state"), trial.state);
  byId("reason").replaceChildren(...parentWords(trial, study), trial.reason);
}

/**
 * @param {Pick<import("../answers.d.ts").TrialView, "origin" | "parent_number" | "parent_step">} trial
 * @param {StudyDetail} study
 * @returns {(string | Node)[]}
 */
function parentWords({ origin, parent_number: number, parent_step: step }, study) {
  if (number === null) return [];
  const link = h("a", { href: `/studies/${study.id}/trials/${number}` }, `trial ${number}`);
  if (origin === "REPEAT") return ["repeats ", link, " with another seed · "];
  const did = origin === "BRANCH" ? "a copy of " : "began with weights of ";
  return [did, link, ` at ${stepUnit(study.spec)} ${step} · `];
}

/** @param {TrialState} state */
function drawValue({ trial, study }) {
  const names = objectivesOf(study.spec)
    .map((objective) => objective.metric)
    .join(" / ");
  setText(byId("value-label"), names.charAt(0).toUpperCase() + names.slice(1));
  const value = isSeveral(study.spec) ? (trial.values ?? []).map(metric).join(" / ") : trialValue(trial);
  const at = trial.best_step === null ? "" : ` at ${stepUnit(study.spec)} ${count(trial.best_step)}`;
  byId("value").replaceChildren(value, h("small", {}, at));
  const { epochs, steps } = study.spec.budget;
  setText(byId("steps-label"), epochs ? "Epochs" : "Steps");
  byId("steps").replaceChildren(
    count(Math.max(0, trial.step)),
    " ",
    h("small", {}, epochs || steps ? `of ${count(epochs ?? steps)}` : ""),
  );
  byId("reserved").replaceChildren(
    trial.reserved_mib ? mibWords(trial.reserved_mib) : "–",
    " ",
    h("small", {}, trial.reserved_mib ? "on each rank" : ""),
  );
}

/**
 * Show the peaks of the last exactly measured attempt; if all ran out of memory, the lower bound.
 * @param {TrialState} state
 */
function drawPeak({ trial, attempts }) {
  const exact = attempts.findLast((attempt) => attempt.measured_bytes && !ranOut(attempt));
  const predicted = exact ? toMib(exact.expected_bytes) : trial.predicted_mib;
  const measured = exact ? toMib(exact.measured_bytes) : null;
  const words = predicted && measured ? signed((100 * (predicted - measured)) / measured) : "";
  byId("predicted").replaceChildren(
    mibWords(predicted),
    " ",
    h("small", { title: "against the measured peak" }, words),
  );
  const least = trial.measured_mib ? `over ${mibWords(trial.measured_mib)}` : "–";
  setText(byId("measured"), measured ? mibWords(measured) : least);
}

/**
 * @param {number} percent
 * @returns {string}
 */
function signed(percent) {
  const digits = Math.abs(percent).toFixed(1);
  return `${digits === "0.0" ? "±" : percent > 0 ? "+" : "−"}${digits} %`;
}

/**
 * Show the step times of the last timed attempt; before that, the prediction for the next one.
 * @param {TrialState} state
 */
function drawStep({ trial, attempts }) {
  const timed = attempts.findLast((attempt) => attempt.measured_step_seconds);
  const { predicted_step_seconds: predicted, measured_step_seconds: measured } = timed ?? trial;
  const shares = [timed?.predicted_communication_share, timed?.measured_communication_share].map(shareWords);
  const waiting =
    shares[1] === "–" ? "" : ` · ranks wait at least ${shares.filter((share) => share !== "–").join(" / ")}`;
  const checks = trial.check_share ? ` · checks took ${(100 * trial.check_share).toFixed(1)} % of its time` : "";
  const times = (predicted && measured ? `× ${(measured / predicted).toFixed(2)}` : "") + waiting + checks;
  byId("step-time").replaceChildren(
    `${stepWords(predicted)} / ${stepWords(measured)}`,
    " ",
    h("small", { title: "measured over predicted; share in which the rank that waits least waits; checks" }, times),
  );
}

/**
 * @param {number | null | undefined} share
 * @returns {string}
 */
function shareWords(share) {
  return share === undefined || share === null ? "–" : `${Math.round(100 * share)} %`;
}
