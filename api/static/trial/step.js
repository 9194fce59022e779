// One simulated step of the trial's pipeline; hidden for other plans.

import { Pipeline } from "../charts/pipeline.js";
import { shareWords } from "../charts/pipeline_words.js";
import * as api from "../client.js";
import { aside, card } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";

/** @import { TrialView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function stepPanel({ state, page }) {
  const beside = aside("timeline");
  const box = h("div", { class: "timeline", id: "timeline" });
  const legend = h("p", { class: "legend", id: "timeline-legend" });
  const section = card({ id: "timeline", title: "One step of the pipeline", beside, hidden: true }, box, legend);
  const picture = new Pipeline(box, legend);
  let shown = ""; // the plan whose step is drawn, as JSON

  /** Fetch the step when its plan has changed. Other plans have none to draw. */
  async function load() {
    const { trial, studyId, number } = state;
    const plan = planOf(trial);
    if (plan === shown) return;
    const step = (trial.plan?.pp ?? 1) > 1 ? await api.timeline(studyId, number) : null;
    shown = plan;
    section.hidden = step === null;
    if (!step) return;
    setText(beside, shareWords(step));
    picture.show(step);
  }

  const refresh = page.refresher(load);
  return {
    card: section,
    load,
    shows: ["trial"],
    draw: () => planOf(state.trial) !== shown && refresh("step"),
  };
}

/**
 * @param {TrialView} trial
 * @returns {string}
 */
function planOf({ plan, reserved_mib: reserved }) {
  return JSON.stringify([plan, reserved]);
}
