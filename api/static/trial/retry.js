// The button that lets a failed trial run again.

import * as api from "../client.js";
import { byId } from "../elements/dom.js";
import { toast } from "../elements/notices.js";

/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function retryPanel({ state, page }) {
  const button = byId("retry", HTMLButtonElement);
  button.addEventListener("click", () =>
    page.run(async () => {
      await api.retry(state.studyId, [state.number]);
      toast("The trial will run again, from its last checkpoint if it has one.", "info");
    }),
  );
  return {
    shows: ["trial"],
    draw: () => (button.hidden = state.trial.state !== "FAILED"),
  };
}
