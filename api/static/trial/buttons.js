// The buttons that change one trial: retry, pause, start it first, stop and delete it.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { TERMINAL } from "../states.js";

/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function buttonsPanel({ state, page }) {
  const { studyId, number } = state;
  const study = `/studies/${studyId}`;
  const change = async (/** @type {{paused?: boolean, priority?: number}} */ changes) =>
    state.keepTrial(await api.changeTrial(studyId, number, changes));
  const button = (/** @type {string} */ id, /** @type {() => unknown} */ work) => {
    const made = byId(id, HTMLButtonElement);
    made.addEventListener("click", () => page.run(async () => work()));
    return made;
  };

  const retry = button("retry", async () => {
    await api.retry(studyId, [number]);
    toast("The trial will run again, from its last checkpoint if it has one.", "info");
  });
  const pause = button("pause", () => change({ paused: !state.trial.paused }));
  const first = button("first", () => change({ priority: state.trial.priority > 0 ? 0 : 100 }));
  const stop = button("stop", async () => {
    if (!confirm("Stop this trial? What it has reported is kept, but it does not continue.")) return;
    state.keepTrial(await api.stopTrial(studyId, number));
  });
  const remove = byId("delete", HTMLButtonElement);
  remove.addEventListener("click", () => {
    if (confirm("Delete this trial, with its metrics, log, files and checkpoints? This cannot be undone."))
      page.leaveAfter(() => api.removeTrial(studyId, number), study);
  });

  return {
    shows: ["trial"],
    draw() {
      const { state: is, origin, paused, priority } = state.trial;
      const [hasEnded, isOurs] = [TERMINAL.has(is), origin !== "EXTERNAL"];
      retry.hidden = is !== "FAILED" || !isOurs;
      pause.hidden = stop.hidden = hasEnded || !isOurs;
      first.hidden = !["WAITING", "QUEUED"].includes(is) || !isOurs;
      remove.hidden = !hasEnded || !isOurs;
      setText(pause, paused ? "Resume trial" : "Pause trial");
      setText(first, priority > 0 ? "Start in turn" : "Start first");
    },
    on: { trial: (event) => state.isMine(event) && event.data.state === "DELETED" && page.leave(study) },
  };
}
