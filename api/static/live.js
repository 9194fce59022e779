// The event stream of a page: the browser reconnects by itself, and missed events are replayed. A dot at the top of the
// page shows whether events arrive.

import { byId, setText } from "./elements/dom.js";

/**
 * One change, as the API streams it. `data` depends on the kind: see EventView of the API.
 * @typedef {{study_id: number | null, trial_id: number | null, data: any}} LiveEvent
 */

/** @typedef {(event: LiveEvent) => unknown} Handler */

/** Kinds of live events. */
export const KINDS = ["study", "trial", "attempt", "metrics", "cluster"];
const RETRY_MS = 3000;
const HIDDEN_MS = 30_000;
const HIDDEN_FRAME_MS = 500;

/**
 * Follow the events after `after`. `handlers` has a function for each kind, which gets {study_id, trial_id, data}. The
 * events of a frame are handled at once. A page that is hidden for long closes its connection (a browser has six per
 * host), and replays when it is shown again.
 * @param {{studyId?: number | null, after: number, handlers: Record<string, Handler>}} options
 * @returns {void}
 */
export function follow({ studyId = null, after, handlers }) {
  let last = after;
  /** @type {EventSource | null} */
  let source = null;
  let timer = 0;
  /** @type {[string, string][]} kind and JSON of the events that wait for the next frame */
  let arrived = [];
  const handle = () => {
    const events = arrived;
    arrived = [];
    for (const [kind, data] of events) handleOne(kind, data);
  };
  const handleOne = (/** @type {string} */ kind, /** @type {string} */ data) => {
    try {
      handlers[kind](JSON.parse(data));
    } catch (error) {
      console.error(`an event of kind ${kind} cannot be shown:`, error); // the other events of the frame still count
    }
  };
  const arrive = (/** @type {string} */ kind, /** @type {string} */ data) => {
    if (arrived.push([kind, data]) > 1) return;
    if (document.hidden) setTimeout(handle, HIDDEN_FRAME_MS); // a hidden page has no frames
    else requestAnimationFrame(handle);
  };

  const open = () => {
    clearTimeout(timer);
    source?.close();
    const query = new URLSearchParams({ after: String(last) });
    if (studyId !== null) query.set("study_id", String(studyId));
    source = new EventSource(`/v1/events?${query}`);
    source.addEventListener("open", () => setConnection("live", "Live"));
    source.addEventListener("error", () => {
      setConnection("lost", "Reconnecting…");
      // The browser gives up when the answer is not a stream, such as a proxy's 502 while ScaMP restarts: open it again.
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    });
    for (const kind of KINDS) {
      source.addEventListener(kind, (message) => {
        last = Number(message.lastEventId) || last;
        if (handlers[kind]) arrive(kind, message.data);
      });
    }
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(close, HIDDEN_MS);
    else if (!source || source.readyState === EventSource.CLOSED) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}

/**
 * @param {string} kind class of the dot
 * @param {string} words
 */
function setConnection(kind, words) {
  const indicator = byId("connection");
  indicator.className = `connection ${kind}`;
  setText(indicator.querySelector(".words"), words);
}
