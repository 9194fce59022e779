// Every attempt of a trial: its outcome, plan, devices, memory and times, why it was placed there, and its error.

import { aside, card, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText, svg } from "../elements/dom.js";
import { stateMark } from "../elements/marks.js";
import { clock, count, duration, mib, percent, plural, stepWords, toMib } from "../format.js";
import { ranOut, TERMINAL } from "../states.js";

/** @import { AttemptView, TrialView, WatchView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

const COLUMNS = [
  { name: "Attempt" },
  { name: "Outcome" },
  { name: "Plan" },
  { name: "Devices" },
  { name: "Reserved MiB", numeric: true },
  { name: "Predicted MiB", numeric: true },
  { name: "Measured MiB", numeric: true },
  {
    name: "Predicted step",
    numeric: true,
    title: "seconds of an optimizer step, predicted for the gang alone on its host",
  },
  {
    name: "Measured step",
    numeric: true,
    title: "median seconds of an optimizer step, without the first ones, evaluations and checkpoints",
  },
  { name: "Checkpoint step", numeric: true },
  { name: "Began" },
  { name: "Took", numeric: true, title: "from its launch, which imports code and connects the ranks, to its end" },
];

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function attemptsPanel({ state }) {
  const beside = aside("attempts");
  const head = tableHead(COLUMNS, { id: "attempts-head" });
  const table = h("table", { class: "plain attempts", id: "attempts" });

  return {
    card: card({ id: "attempts", title: "Attempts", beside }, scrolling("attempts", "scroll", table)),
    shows: ["trial"],
    draw() {
      const { trial, attempts } = state;
      setText(beside, attempts.length ? `${plural(attempts.length, "attempt")}${failureWords(trial)}` : "");
      const newestFirst = [...attempts].sort((a, b) => b.attempt - a.attempt);
      const parts = newestFirst.map((attempt, place) => {
        const others = place === 0 ? trial.shared_with : [];
        return { key: JSON.stringify([attempt, others]), node: () => attemptBody(attempt, others, state.study.id) };
      });
      const shown = parts.length
        ? [{ key: "head", node: () => head }, ...parts]
        : [{ key: trial.state, node: () => nothingRun(trial) }];
      keyed(
        table,
        shown,
        (part) => part.key,
        (part) => part.node(),
      );
    },
  };
}

/**
 * @param {TrialView} trial
 * @returns {string}
 */
function failureWords({ num_oom: failures, healed }) {
  return failures ? `, ${plural(failures, "out-of-memory failure")}${healed ? " healed by a new plan" : ""}` : "";
}

/**
 * @param {TrialView} trial
 * @returns {HTMLElement}
 */
function nothingRun(trial) {
  const words =
    trial.state === "INFEASIBLE"
      ? "No plan fits, so the trial was never launched and has used no device."
      : TERMINAL.has(trial.state)
        ? "The trial was never launched."
        : "The trial has not been launched yet.";
  return h("tbody", {}, h("tr", {}, h("td", { colspan: COLUMNS.length, class: "muted" }, words)));
}

/**
 * @param {AttemptView} attempt
 * @param {number[]} others numbers of the trials that share its process
 * @param {number} studyId
 * @returns {HTMLElement}
 */
function attemptBody(attempt, others, studyId) {
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
    h(
      "tr",
      {},
      h(
        "td",
        { colspan: COLUMNS.length },
        h(
          "div",
          { class: "detail" },
          attempt.load.length ? loadLine(attempt.load) : null,
          attempt.placement_reason ? h("p", {}, `Placed: ${attempt.placement_reason}`) : null,
          others.length
            ? h("p", {}, "Its process is, or was, also that of ", ...trialLinks(others, studyId), ".")
            : null,
          detailNode(attempt),
        ),
      ),
    ),
  );
}

/**
 * How busy its first rank was over time, as bars and in words.
 * @param {WatchView[]} load
 * @returns {HTMLElement}
 */
function loadLine(load) {
  let seconds = 0;
  let busy = 0;
  const bars = load.map((watch) => {
    const x = seconds;
    seconds += watch.seconds;
    busy += watch.seconds * watch.busy_share;
    const height = Math.max(0.04, watch.busy_share);
    return svg("rect", { x, y: 1 - height, width: watch.seconds, height });
  });
  const last = load[load.length - 1];
  const drawn = svg(
    "svg",
    { class: "load", viewBox: `0 0 ${seconds} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
    ...bars,
  );
  const words = `${percent(busy / seconds)} of ${duration(seconds)}, and ${percent(last.busy_share)} of the last ${duration(last.seconds)}, when it had ${mib(last.mib)} MiB`;
  return h(
    "p",
    {
      title:
        "the first rank, from its first step on; memory is what torch has reserved on a GPU, and that of the process with its libraries on a CPU",
    },
    "Busy: ",
    drawn,
    ` ${words}`,
  );
}

/**
 * @param {number[]} numbers
 * @param {number} studyId
 * @returns {(string | Node)[]}
 */
function trialLinks(numbers, studyId) {
  return numbers.flatMap((number, place) => [
    place ? ", " : numbers.length > 1 ? "trials " : "trial ",
    h("a", { href: `/studies/${studyId}/trials/${number}` }, `${number}`),
  ]);
}

/**
 * @param {AttemptView} attempt
 * @returns {HTMLElement | null}
 */
function detailNode({ detail, outcome }) {
  if (!detail) return null;
  if (!detail.includes("\n")) return h("p", { class: "error" }, detail);
  const lines = detail.trimEnd().split("\n");
  return h(
    "details",
    { open: outcome === "ERROR" },
    h("summary", {}, lines.at(-1)),
    h("pre", { class: "trace", tabindex: "0" }, detail),
  );
}
