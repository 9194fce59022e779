// The event stream of a page: the browser reconnects by itself, and missed events are replayed. A dot at the top of the
// page shows whether events arrive.

import { byId, setText } from "./elements/dom.js";
import { required } from "./required.js";

/** @import { EventView } from "./answers.d.ts" */

/**
 * A function for each kind of event that is wanted.
 * @typedef {{[Kind in EventView["kind"]]?: (event: Extract<EventView, {kind: Kind}>) => unknown}} Handlers
 */

/** Kinds of live events. */
export const KINDS = /** @type {const} */ (["study", "trial", "attempt", "metrics", "cluster"]);
const RETRY_MS = 3000;
const HIDDEN_MS = 30_000;
const HIDDEN_FRAME_MS = 500;

/**
 * Follow the events after `after`, of all studies or of one. A page that is hidden for long closes its connection (a
 * browser has six per host), and replays when it is shown again.
 * @param {{studyId?: number | null, after: number, handlers: Handlers}} options
 * @returns {void}
 */
export function follow({ studyId = null, after, handlers }) {
  const stream = new EventStream(studyId, after, new Arrivals(handlers));
  let timer = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => stream.close(), HIDDEN_MS);
    else if (!stream.isOpen) stream.open();
  });
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (event) => event.persisted && stream.open());
  stream.open();
}

/** The connection. It continues after the last event that has arrived. */
class EventStream {
  /**
   * @param {number | null} studyId
   * @param {number} after
   * @param {Arrivals} arrivals
   */
  constructor(studyId, after, arrivals) {
    this.studyId = studyId;
    this.last = after;
    this.arrivals = arrivals;
    /** @type {EventSource | null} */
    this.source = null;
    this.retry = 0; // the timer after which it is opened again
  }

  /** Whether it is open, or the browser opens it again by itself. */
  get isOpen() {
    return this.source !== null && this.source.readyState !== EventSource.CLOSED;
  }

  open() {
    this.close();
    const query = new URLSearchParams({ after: String(this.last) });
    if (this.studyId !== null) query.set("study_id", String(this.studyId));
    const source = new EventSource(`/v1/events?${query}`);
    source.addEventListener("open", () => setConnection("live", "Live"));
    source.addEventListener("error", () => this.failed(source));
    for (const kind of KINDS) source.addEventListener(kind, (message) => this.receive(kind, message));
    this.source = source;
  }

  close() {
    clearTimeout(this.retry);
    this.source?.close();
    this.source = null;
  }

  /**
   * The browser gives up when the answer is not a stream, such as a proxy's 502 while ScaMP restarts: open it again.
   * @param {EventSource} source
   */
  failed(source) {
    setConnection("lost", "Reconnecting…");
    if (source.readyState === EventSource.CLOSED) this.retry = setTimeout(() => this.open(), RETRY_MS);
  }

  /**
   * @param {EventView["kind"]} kind
   * @param {MessageEvent} message
   */
  receive(kind, message) {
    this.last = Number(message.lastEventId) || this.last;
    this.arrivals.add(kind, message.data);
  }
}

/** The events that have arrived since the last frame. Those of a frame are handled at once. */
class Arrivals {
  /** @param {Handlers} handlers */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {[EventView["kind"], string][]} kind and JSON */
    this.waiting = [];
  }

  /**
   * @param {EventView["kind"]} kind
   * @param {string} data
   */
  add(kind, data) {
    if (!this.handlers[kind] || this.waiting.push([kind, data]) > 1) return;
    if (document.hidden) setTimeout(() => this.handle(), HIDDEN_FRAME_MS); // a hidden page has no frames
    else requestAnimationFrame(() => this.handle());
  }

  handle() {
    const events = this.waiting;
    this.waiting = [];
    for (const [kind, data] of events) this.handleOne(kind, data);
  }

  /**
   * @param {EventView["kind"]} kind
   * @param {string} data
   */
  handleOne(kind, data) {
    try {
      this.handlers[kind]?.(JSON.parse(data));
    } catch (error) {
      console.error(`an event of kind ${kind} cannot be shown:`, error); // the other events of the frame still count
    }
  }
}

/**
 * @param {string} kind class of the dot
 * @param {string} words
 */
function setConnection(kind, words) {
  const indicator = byId("connection");
  indicator.className = `connection ${kind}`;
  setText(required(indicator.querySelector(".words")), words);
}
