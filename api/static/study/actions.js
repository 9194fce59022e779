// The buttons that copy, retry, pause, stop and delete a study; the last two have a dialog that asks first.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { plural } from "../format.js";
import { required } from "../required.js";
import { LIVE_STUDY, TERMINAL, numIn } from "../states.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function actionsPanel({ state, page, feeds }) {
  const pause = byId("pause", HTMLButtonElement);
  const stop = byId("stop", HTMLButtonElement);
  const remove = byId("delete", HTMLButtonElement);
  const retry = byId("retry", HTMLButtonElement);

  retry.addEventListener("click", () =>
    page.run(async () => {
      const { numbers } = await api.retry(state.studyId);
      feeds.refreshStudy("retried");
      toast(`${plural(numbers.length, "trial")} will run again, from the last checkpoint if there is one.`, "info");
    }),
  );

  pause.addEventListener("click", () =>
    page.run(async () => {
      const paused = state.study.state !== "PAUSED";
      await api.setPaused(state.studyId, paused);
      feeds.refreshStudy(paused ? "paused" : "resumed");
      toast(paused ? "The study is paused: its trials stop." : "The study continues.", "info");
    }),
  );

  confirmed(stop, byId("confirm", HTMLDialogElement), {
    words() {
      const open = numIn(state.study.trials, (each) => !TERMINAL.has(each));
      return `${plural(open, "trial")} of “${state.study.name}” will be cancelled. Results reported so far are kept. A stopped study cannot be resumed; a paused one can.`;
    },
    act: () =>
      page.run(async () => {
        await api.stop(state.studyId);
        feeds.refreshStudy("stopped");
        toast("The study is stopping: its trials are being cancelled.", "info");
      }),
  });

  confirmed(remove, byId("confirm-delete", HTMLDialogElement), {
    words: () =>
      `“${state.study.name}” with its ${plural(state.numTrials, "trial")}, their metrics, logs and checkpoints will be deleted. This cannot be undone.`,
    act: () => page.leaveAfter(() => api.remove(state.studyId), "/"),
  });

  function drawRequests() {
    const { spec, state: is, trials } = state.study;
    byId("copy").hidden = !spec.search.sampler; // another program runs it
    retry.hidden = !trials.FAILED || !["RUNNING", "PAUSED", "COMPLETED", "FAILED"].includes(is);
    setText(retry, `Retry ${plural(trials.FAILED ?? 0, "failed trial")}`);
  }

  return {
    shows: ["study"],
    draw() {
      const isLive = LIVE_STUDY.has(state.study.state);
      const isStopping = state.study.state === "STOPPING";
      pause.hidden = !isLive || isStopping;
      setText(pause, state.study.state === "PAUSED" ? "Resume study" : "Pause study");
      stop.hidden = !isLive;
      stop.disabled = isStopping;
      setText(stop, isStopping ? "Stopping…" : "Stop study");
      remove.hidden = isLive;
      drawRequests();
    },
  };
}

/**
 * Ask in `dialog` with `words()` when `button` is clicked, and `act()` after a yes.
 * @param {HTMLButtonElement} button
 * @param {HTMLDialogElement} dialog
 * @param {{words: () => string, act: () => unknown}} options
 */
function confirmed(button, dialog, { words, act }) {
  button.addEventListener("click", () => {
    setText(required(dialog.querySelector("p")), words());
    dialog.returnValue = "";
    dialog.showModal();
  });
  dialog.addEventListener("close", () => {
    if (dialog.returnValue === "yes") act();
  });
}
