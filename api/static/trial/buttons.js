// The buttons that let a failed trial run again, and stop one that has not ended.

import * as api from "../client.js";
import { byId } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { TERMINAL } from "../states.js";

/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function buttonsPanel({ state, page }) {
  const [retry, stop] = ["retry", "stop"].map((id) => byId(id, HTMLButtonElement));
  retry.addEventListener("click", () =>
    page.run(async () => {
      await api.retry(state.studyId, [state.number]);
      toast("The trial will run again, from its last checkpoint if it has one.", "info");
    }),
  );
  stop.addEventListener("click", () => {
    if (confirm("Stop this trial? What it has reported is kept, but it does not continue."))
      page.run(async () => state.keepTrial(await api.stopTrial(state.studyId, state.number)));
  });
  return {
    shows: ["trial"],
    draw() {
      retry.hidden = state.trial.state !== "FAILED";
      stop.hidden = TERMINAL.has(state.trial.state) || state.trial.origin === "EXTERNAL";
    },
  };
}
