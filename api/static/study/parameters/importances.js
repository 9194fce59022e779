// How much each parameter matters to be among the best trials, as bars. A click on one shows its slice.

import * as api from "../../client.js";
import { aside, card } from "../../elements/card.js";
import { h, keyed, setText } from "../../elements/dom.js";
import { count, plural } from "../../format.js";

/** @import { ImportanceView, ImportancesView } from "../../answers.d.ts" */
/** @import { Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */

const SHOWN = 12;

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function importancesPanel({ state, page }) {
  const beside = aside("importances");
  const list = h("ol", { class: "shares", id: "importances" });
  const blank = h("p", { class: "muted" }, "Loading …");
  const box = h("div", { class: "body" }, blank, list);
  /** @type {ImportancesView | null} */
  let found = null;
  const refresh = page.refresher(load, 10_000);

  async function load() {
    found = await api.importances(state.studyId);
    if (state.parameter === null && found.items.length) state.choose(found.items[0].name);
    state.changed("importances");
  }

  /** @param {ImportanceView} item */
  function row({ name }) {
    const bar = h("span", { class: "bar" }, h("span", { class: "fill" }));
    const button = h(
      "button",
      { type: "button", title: `Show the slice of ${name}`, onclick: () => state.choose(name) },
      h("span", { class: "name" }, name),
      bar,
      h("span", { class: "num" }),
    );
    return h("li", {}, button);
  }

  return {
    card: card({ id: "importances", title: "Importance of parameters", span: 4, beside }, box),
    shows: ["importances", "study", "parameter"],
    restMs: 300,
    draw() {
      if (!found) return;
      const items = found.items.slice(0, SHOWN);
      blank.hidden = items.length > 0;
      setText(blank, "They are known once 20 trials have completed and differ in at least one parameter.");
      setText(
        beside,
        items.length && found.num_trials < found.num_completed
          ? `from ${count(found.num_trials)} of ${plural(found.num_completed, "trial")}`
          : "",
      );
      keyed(
        list,
        items,
        (item) => item.name,
        row,
        (node, { name, share }) => {
          const button = node.firstChild;
          button.querySelector(".fill").style.width = `${100 * share}%`;
          setText(button.lastChild, `${(100 * share).toFixed(share < 0.095 ? 1 : 0)} %`);
          button.setAttribute("aria-pressed", String(name === state.parameter));
        },
      );
    },
    load,
    on: { trial: ({ data }) => data.state === "COMPLETED" && refresh("trial") },
  };
}
