// The best trial: its value, parameters and plan.

import { architecture, isBlocks } from "../elements/architecture.js";
import { card } from "../elements/card.js";
import { copyButton } from "../elements/copy_button.js";
import { h } from "../elements/dom.js";
import { count, metric, paramValue, planWords, stepUnit, trialValue } from "../format.js";
import { isSeveral } from "../objectives.js";
import { LIVE_STUDY } from "../states.js";

/** @import { Trial } from "../client.js" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext, StudyState } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function bestPanel({ state, feeds }) {
  const beside = h("span", { class: "aside", id: "best-copy" });
  const box = h("div", { class: "body", id: "best-box" }, muted("Loading …"));
  let shown = "";

  /** @param {Trial} best */
  function drawTrial(best) {
    box.replaceChildren(...trialNodes(best, state));
    beside.replaceChildren(copyButton(() => JSON.stringify(best.params, null, 2), "Copy parameters"));
  }

  const section = card({ id: "best", title: "Best trial", span: 4, beside }, box);
  return {
    card: section,
    shows: ["study", "rows"],
    restMs: 100,
    draw() {
      const { study } = state;
      section.hidden = isSeveral(study.spec);
      if (section.hidden) return;
      const best = study.best && state.rows.get(study.best.trial);
      if (study.best && !best) return feeds.fetchRow(study.best.trial);
      const signature = best
        ? JSON.stringify([best.id, best.value, best.state, best.plan, study.summary.regret_bound])
        : study.state_text;
      if (signature === shown) return;
      shown = signature;
      if (best) drawTrial(best);
      else
        box.replaceChildren(muted(LIVE_STUDY.has(study.state) ? "No trial has completed yet." : "No trial succeeded."));
    },
  };
}

/**
 * @param {Trial} best
 * @param {StudyState} state
 * @returns {Node[]}
 */
function trialNodes(best, { study, studyId }) {
  const { regret_bound: bound } = study.summary;
  const at = best.step > 0 ? ` at ${stepUnit(study.spec)} ${count(best.step)}` : ""; // none: it was measured elsewhere
  const running = best.state === "COMPLETED" ? "" : ", still running";
  const plain = Object.entries(best.params).filter(([, value]) => !isBlocks(value));
  const params = plain.flatMap(([name, value]) => [
    h("dt", {}, name),
    h("dd", { title: typeof value === "object" ? JSON.stringify(value) : value }, paramValue(value)),
  ]);
  const where = h("a", { href: `/studies/${studyId}/trials/${best.number}` }, `trial ${best.number}`);
  return [
    h("p", { class: "big" }, trialValue(best)),
    muted(`${study.spec.objective.metric}${at}, `, where, running),
    bound === null ? null : muted(`No candidate is likely to be better by more than ${metric(bound)}.`),
    h("dl", { class: "pairs" }, params),
    architecture(best.params),
    h("p", { class: "muted small" }, planWords(best)),
  ].filter((node) => node !== null);
}

/**
 * @param {...(string | Node)} words
 * @returns {HTMLElement}
 */
function muted(...words) {
  return h("p", { class: "muted" }, words);
}
