// The end of a trial's log, and a search in all of it. No event announces its lines, so they are fetched regularly while
// the trial is live.

import * as api from "../client.js";
import { aside, card } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { plural } from "../format.js";
import { TERMINAL } from "../states.js";
import { LogTail, logLine } from "./log_tail.js";

/** @import { EventView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

const PAGE = 1000; // lines of one answer

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function logPanel({ state, page }) {
  const beside = aside("log");
  const toEnd = h("button", { type: "button", class: "quiet", id: "log-end", hidden: true }, "Jump to the end");
  const blank = h("li", { class: "blank" });
  const box = h(
    "ol",
    { class: "log", id: "log", "aria-live": "polite", tabindex: "0", "aria-labelledby": "log-title" },
    blank,
  );
  const tail = new LogTail(box, toEnd, beside);
  const search = h("input", {
    type: "search",
    id: "log-search",
    placeholder: "Search",
    "aria-label": "Search the log",
    oninput: find,
  });
  const matches = h("span", { class: "aside", role: "status" });
  const found = h("ol", { class: "log", tabindex: "0", "aria-label": "Lines that were found", hidden: true });
  let lastLine = -1; // -1: fetch the last lines

  async function load() {
    let isMore = true;
    while (isMore) {
      const lines = await api.logs(state.studyId, state.number, lastLine);
      tail.add(lines.filter(({ id }) => id > lastLine)); // another call may have added some meanwhile
      lastLine = Math.max(lastLine, lines.at(-1)?.id ?? 0);
      isMore = lines.length === PAGE;
    }
  }

  async function find() {
    const words = search.value.trim();
    box.hidden = beside.hidden = Boolean(words);
    found.hidden = matches.hidden = !words;
    if (!words) return;
    const lines = await page.run(() => api.logs(state.studyId, state.number, 0, words));
    if (!lines || words !== search.value.trim()) return;
    found.replaceChildren(...lines.map(logLine));
    setText(matches, `${plural(lines.length, "line")}${lines.length === PAGE ? " or more" : ""} with it`);
  }

  const refresh = page.refresher(load);
  const refreshMine = (/** @type {EventView} */ event) => state.isMine(event) && refresh("log");
  return {
    card: card({ id: "log", title: "Log", beside: [beside, matches, search, toEnd] }, box, found),
    load,
    shows: ["trial"],
    draw: () => setText(blank, blankWords(state.trial.state)),
    on: { trial: refreshMine, attempt: refreshMine, metrics: refreshMine },
    tick: () => !TERMINAL.has(state.trial.state) && refresh("log"),
    everyMs: 2000,
  };
}

/**
 * What a log without lines says.
 * @param {string} state of the trial
 * @returns {string}
 */
function blankWords(state) {
  return TERMINAL.has(state) ? "It has ended without logging anything." : "Nothing has been logged yet.";
}
