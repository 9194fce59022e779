// How much each parameter matters to be among the best trials, as bars. A click on one shows its slice.

import * as api from "../../client.js";
import { aside, card } from "../../elements/card.js";
import { h, keyed, setText } from "../../elements/dom.js";
import { plural } from "../../format.js";
import { partWords } from "../chart_words.js";

/** @import { ImportanceView, ImportancesView, TrialEvent } from "../../answers.d.ts" */
/** @import { Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */

const SHOWN = 12;

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function importancesPanel(context) {
  return new ImportancesPanel(context);
}

class ImportancesPanel {
  /** @param {StudyContext} context */
  constructor({ state, page }) {
    this.state = state;
    this.shows = ["importances", "study", "parameter"];
    this.restMs = 300;
    this.isLazy = true;
    /** @type {ImportancesView | null} */
    this.found = null;
    this.beside = aside("importances");
    this.blank = h("p", { class: "muted" }, "Loading …");
    this.list = h("ol", { class: "shares", id: "importances" });
    this.card = card(
      { id: "importances", title: "Importance of parameters", span: 4, beside: this.beside },
      h("div", { class: "body" }, this.blank, this.list),
    );
    const refresh = page.refresher(() => this.load(), 10_000);
    this.on = {
      trial: (/** @type {TrialEvent} */ { data }) =>
        (data.state === "COMPLETED" || data.state === "PRUNED") && refresh("trial"),
    };
  }

  async load() {
    const { state } = this;
    this.found = await api.importances(state.studyId);
    if (state.parameter === null && this.found.items.length) state.choose(this.found.items[0].name);
    state.changed("importances");
  }

  draw() {
    if (!this.found) return;
    const { items, num_trials: num, num_ended: all, is_rough: isRough } = this.found;
    this.blank.hidden = items.length > 0;
    setText(this.blank, "They are known once 8 trials have a value and differ in at least one parameter.");
    const part = isRough ? `${plural(num, "trial")}: rough` : partWords(num, all);
    setText(this.beside, items.length && part ? `from ${part}` : "");
    keyed(
      this.list,
      items.slice(0, SHOWN),
      (item) => item.name,
      (item) => this.createRow(item),
      (row, item) => this.updateRow(row, item),
    );
  }

  /** @param {ImportanceView} item */
  createRow({ name }) {
    const onclick = () => this.state.choose(name);
    const [fill, percent] = [h("span", { class: "fill" }), h("span", { class: "num" })];
    const button = h(
      "button",
      { type: "button", title: `Show the slice of ${name}`, onclick },
      h("span", { class: "name" }, name),
      h("span", { class: "bar" }, fill),
      percent,
    );
    return { node: h("li", {}, button), button, fill, percent };
  }

  /**
   * @param {ReturnType<ImportancesPanel["createRow"]>} row
   * @param {ImportanceView} item
   */
  updateRow({ button, fill, percent }, { name, share }) {
    fill.style.width = `${100 * share}%`;
    setText(percent, `${(100 * share).toFixed(share < 0.095 ? 1 : 0)} %`);
    button.setAttribute("aria-pressed", String(name === this.state.parameter));
  }
}
