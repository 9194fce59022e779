// The event stream of a page: the browser reconnects by itself, and missed events are replayed. Also the parts of every
// page: the connection indicator, the banner about the cluster, toasts, and copy buttons.

import { byId, h, setText } from "./dom.js";
import { duration } from "./format.js";
import { request } from "./client.js";

const KINDS = ["study", "trial", "attempt", "metrics", "cluster"];
const CLUSTER_EVERY_MS = 5000;
const RETRY_MS = 3000;
const HIDDEN_MS = 30_000;
const HIDDEN_FRAME_MS = 500;
const REFRESH_MS = 1000;
const SHARE = 10; // a refresh that took a while is followed by a rest of so many times its length

/**
 * Follow the events after `after`. `handlers` has a function for each kind, which gets {study_id, trial_id, data}. The
 * events of a frame are handled at once. A page that is hidden for long closes its connection (a browser has six per
 * host), and replays when it is shown again.
 */
export function follow({ studyId = null, after, handlers }) {
  let last = after;
  let source = null;
  let timer = null;
  let arrived = [];
  const handle = () => {
    const events = arrived;
    arrived = [];
    for (const [kind, data] of events) handlers[kind](JSON.parse(data));
  };
  const arrive = (kind, data) => {
    if (arrived.push([kind, data]) > 1) return;
    if (document.hidden) setTimeout(handle, HIDDEN_FRAME_MS); // a hidden page has no frames
    else requestAnimationFrame(handle);
  };

  const open = () => {
    clearTimeout(timer);
    source?.close();
    const query = new URLSearchParams({ after: last });
    if (studyId !== null) query.set("study_id", studyId);
    source = new EventSource(`/v1/events?${query}`);
    source.onopen = () => setConnection("live", "Live");
    source.onerror = () => {
      setConnection("lost", "Reconnecting…");
      // The browser gives up when the answer is not a stream, such as a proxy's 502 while ScaMP restarts: open it again.
      if (source.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    };
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
 * Returns a function that collects keys, which `fetch(keys)` fetches at most once in `restMs`. It retries failures, and
 * rests longer when answers take long, so that a page never keeps the server busy.
 */
export function refresher(fetch, restMs = REFRESH_MS) {
  const dirty = new Set();
  let running = false;
  const run = async () => {
    const keys = [...dirty];
    dirty.clear();
    const began = performance.now();
    try {
      await fetch(keys);
    } catch {
      for (const key of keys) dirty.add(key); // the connection indicator shows it; a toast each second would not help
    }
    const rest = Math.max(restMs, SHARE * (performance.now() - began));
    setTimeout(() => (dirty.size ? run() : (running = false)), rest);
  };
  return (key) => {
    dirty.add(key);
    if (running) return;
    running = true;
    setTimeout(run, restMs / 5);
  };
}

function setConnection(kind, words) {
  const indicator = byId("connection");
  indicator.className = `connection ${kind}`;
  setText(indicator.querySelector(".words"), words);
}

/** Show a message that says what went wrong and what to do. It replaces an earlier toast with the same message. */
export function toast(message, kind = "error") {
  const toasts = byId("toasts");
  for (const old of toasts.children) if (old.dataset.message === message) old.remove();
  const close = h("button", { class: "quiet", type: "button", "aria-label": "Dismiss", onclick: () => node.remove() }, "✕");
  const node = h("div", { class: `toast ${kind}`, "data-message": message }, h("p", {}, message), close);
  toasts.append(node);
  if (kind !== "error") setTimeout(() => node.remove(), 5000);
}

/** Run `work`, and show a toast when it fails; returns its result, or undefined. */
export async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    if (!error.status && error.status !== 0) console.error(error);
    toast(error.message);
    return undefined;
  }
}

/** Fetch the cluster regularly, update the banner about a starting or silent controller, and call `onCluster`. */
export function watchCluster(onCluster = () => {}) {
  const look = async () => {
    try {
      const cluster = await request("/v1/cluster");
      showBanner(cluster);
      onCluster(cluster);
    } catch {
      // The connection indicator already shows that ScaMP cannot be reached.
    }
  };
  look();
  setInterval(look, CLUSTER_EVERY_MS);
  return look;
}

function showBanner(cluster) {
  const banner = byId("banner");
  const words = trouble(cluster);
  banner.hidden = !words;
  banner.classList.toggle("down", !cluster.controller_alive || Boolean(cluster.data_directory));
  setText(banner, words);
}

/** Why no trial is started now, or an empty string. */
function trouble(cluster) {
  if (cluster.data_directory) return `The data directory ${cluster.data_directory}.`;
  const detail = cluster.detail ? ` ${cluster.detail}` : "";
  if (cluster.controller_alive) return cluster.status === "ready" ? "" : `The cluster is ${cluster.status}. Trials stay queued until its devices are ready.${detail}`;
  const silent = cluster.controller_silent_seconds;
  if (silent === null) return "The cluster is starting: no controller has reported yet. If this message stays, run “scamp serve”.";
  return `The controller has been silent for ${duration(silent)}. Running trials continue, but no trial is started or stopped. Run “scamp serve” to restart it.`;
}

/** A button that copies the text returned by `text()`. */
export function copyButton(text, name = "Copy") {
  const button = h("button", { type: "button" }, name);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      setText(button, "Copied");
    } catch {
      toast("The browser does not allow pages to copy here. Select the text and copy it with the keyboard.");
    }
    setTimeout(() => setText(button, name), 1500);
  });
  return button;
}
