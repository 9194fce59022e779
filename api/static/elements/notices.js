// Messages at the corner of a page, and the work that shows one when it fails.

import { byId, h } from "./dom.js";

/**
 * Show a message that says what went wrong and what to do. It replaces an earlier toast with the same message.
 * @param {string} message
 * @param {string} [kind] "error", or "info", which goes by itself
 */
export function toast(message, kind = "error") {
  const toasts = byId("toasts");
  for (const old of toasts.children) if (old.getAttribute("data-message") === message) old.remove();
  const close = h(
    "button",
    { class: "quiet", type: "button", "aria-label": "Dismiss", onclick: () => node.remove() },
    "✕",
  );
  const node = h("div", { class: `toast ${kind}`, "data-message": message }, h("p", {}, message), close);
  toasts.append(node);
  if (kind !== "error") setTimeout(() => node.remove(), 5000);
}

/**
 * Run `work`, and show a toast when it fails; returns its result, or undefined.
 * @template Result
 * @param {() => Promise<Result> | Result} work
 * @returns {Promise<Result | undefined>}
 */
export async function guarded(work) {
  try {
    return await work();
  } catch (thrown) {
    const error = /** @type {any} */ (thrown);
    if (!error.status && error.status !== 0) console.error(error);
    toast(error.message);
    return undefined;
  }
}
