// A form that asks when the queue would be done with more devices, and what it would take.

import { request } from "../client.js";
import { card } from "../elements/card.js";
import { h } from "../elements/dom.js";
import { duration, num } from "../format.js";

/** @import { WhatIfView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { ClusterContext } from "./links.js" */

/**
 * @param {ClusterContext} context
 * @returns {Panel}
 */
export function whatIfPanel({ page }) {
  const props = { name: "add", required: true, placeholder: "8xA100-40", autocomplete: "off", maxlength: 200 };
  const field = h(
    "label",
    {},
    "Devices to add ",
    h("input", { ...props, title: "[NODESx]DEVICESxKIND, joined with commas" }),
  );
  const form = h(
    "form",
    { class: "inline-form", id: "what-if-form" },
    field,
    h("button", { type: "submit" }, "Simulate"),
  );
  const answer = h("p", { class: "body", id: "what-if-answer", role: "status", hidden: true });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void page.run(async () => {
      const add = String(new FormData(form).get("add"));
      answer.textContent = whatIfWords(await request(`/v1/cluster/what-if?${new URLSearchParams({ add })}`));
      answer.hidden = false;
    });
  });
  const words = "When would the queue be done with more devices, also of other kinds?";
  return { card: card({ id: "what-if", title: "More devices" }, h("p", { class: "muted body" }, words), form, answer) };
}

/**
 * @param {WhatIfView} answer
 * @returns {string}
 */
export function whatIfWords({ now, then, added }) {
  const devices = Object.entries(added).map(([kind, number]) => `${number} × ${kind}`);
  const [before, after] = [now, then].map((forecast) => {
    const never = forecast.num_never ? `, and ${num(forecast.num_never)} fit nowhere` : "";
    return `in ${duration(forecast.makespan_seconds)} with ${num(forecast.device_hours)} device-hours${never}`;
  });
  return `All that waits and runs is done ${before}; with ${devices.join(" + ")} ${after}.`;
}
