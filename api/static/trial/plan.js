// The plan of a trial in words, and its parameters.

import { card } from "../elements/card.js";
import { copyButton } from "../elements/copy_button.js";
import { h, keyed, setText } from "../elements/dom.js";
import { paramValue, planWords, stepWords } from "../format.js";

/** @import { TrialView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function planPanel({ state }) {
  const plan = h("p", { id: "plan" }, "–");
  const reason = h("p", { id: "plan-reason", class: "muted" });
  const time = h("p", { id: "plan-time", class: "muted" });
  const why = h("p", { id: "proposal-reason", class: "muted" });
  const params = h("dl", { class: "pairs", id: "params" });
  const copy = h(
    "span",
    { class: "aside", id: "params-copy" },
    copyButton(() => JSON.stringify(state.knownTrial?.params ?? {}, null, 2)),
  );

  return {
    card: h(
      "div",
      { class: "span-4 stack" },
      card({ id: "plan", title: "Plan" }, h("div", { class: "body" }, plan, reason, time)),
      card({ id: "params", title: "Parameters", beside: copy }, h("div", { class: "body" }, params, why)),
    ),
    shows: ["trial"],
    draw() {
      const { trial } = state;
      setText(plan, planWords(trial));
      setText(reason, trial.plan_reason);
      setText(time, trial.plan ? predictedStepWords(trial) : "");
      drawPairs(params, trial.params);
      setText(why, trial.proposal_reason);
    },
  };
}

/**
 * @param {HTMLElement} list
 * @param {Record<string, any>} params
 */
function drawPairs(list, params) {
  const pairs = Object.entries(params).flatMap(([name, value]) => [
    { tag: "dt", name, text: name },
    { tag: "dd", name, text: paramValue(value) },
  ]);
  keyed(
    list,
    pairs,
    (item) => `${item.tag} ${item.name}`,
    (item) => h(/** @type {"dt" | "dd"} */ (item.tag)),
    (node, item) => setText(node, item.text),
  );
}

/**
 * The predicted time of a step, and what it depends on.
 * @param {Pick<TrialView, "predicted_step_seconds" | "step_factor">} trial
 * @returns {string}
 */
export function predictedStepWords({ predicted_step_seconds: predicted, step_factor: factor }) {
  if (predicted === null)
    return [
      "No step time is predicted: the speed of these devices was not known when it was planned.",
      "It is measured when no study runs, or by “scamp calibrate”.",
    ].join(" ");
  if (factor !== 1)
    return [
      `Predicted step: ${stepWords(predicted)}, which is × ${factor.toFixed(2)} as in earlier trials of its family,`,
      "on hosts as busy as theirs.",
    ].join(" ");
  return [
    `Predicted step: ${stepWords(predicted)} with the gang alone on its host.`,
    "Other trials on the same devices or cores slow it down.",
  ].join(" ");
}
