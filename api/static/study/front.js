// The Pareto front of a study with several objectives: trials by two of them, and the trials of the front as a table.

import { Front } from "../charts/front.js";
import * as api from "../client.js";
import { aside, card, chartBox, scrolling, tableHead } from "../elements/card.js";
import { fillChoice } from "../elements/choice.js";
import { h, setText } from "../elements/dom.js";
import { count, objectiveValue, paramsLine, plural } from "../format.js";
import { isSeveral } from "../objectives.js";
import { chartLabel, outsideWords, partWords } from "./chart_words.js";

/** @import { FrontView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext, StudyState } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function frontPanel(context) {
  return new FrontPanel(context);
}

class FrontPanel {
  /** @param {StudyContext} context */
  constructor({ state, page, open }) {
    this.state = state;
    this.shows = ["front", "study"];
    this.restMs = 500;
    /** @type {FrontView | null} */
    this.found = null;
    this.beside = aside("front");
    this.axes = new AxesChoice(() => state.changed("front"));
    this.box = chartBox("front", "");
    this.edge = h("span", { class: "line" });
    this.outside = h("span");
    this.list = scrolling("front", "front scroll");
    this.card = card(
      { id: "front", title: "Pareto front", beside: [this.beside, this.axes.element], hidden: true },
      h("div", { class: "body" }, this.box),
      h("div", { class: "legend" }, this.edge, h("span", {}, "large: on the front"), this.outside),
      this.list,
    );
    this.chart = new Front(this.box, open);
    const refresh = page.refresher(() => this.load(), 5000);
    this.on = {
      trial: () => this.isWanted && refresh("trial"),
      metrics: () => this.isWanted && refresh("metrics"),
    };
  }

  get isWanted() {
    return isSeveral(this.state.study.spec);
  }

  async load() {
    if (!this.isWanted) return;
    this.found = await api.front(this.state.studyId);
    this.state.changed("front");
  }

  draw() {
    const { found, state } = this;
    this.card.hidden = !this.isWanted;
    if (this.card.hidden || !found) return;
    this.axes.draw(found.metrics);
    this.chart.update(found, this.axes.across, this.axes.up);
    this.drawWords(found);
    this.list.replaceChildren(tableOf(found.metrics, state));
    this.list.hidden = !state.study.summary.front.length;
  }

  /** @param {FrontView} found */
  drawWords({ metrics, directions, number, num_trials: all, on_front: isOnFront }) {
    const num = isOnFront.filter(Boolean).length;
    const trials = partWords(number.length, all) || plural(all, "trial");
    setText(this.beside, `${count(num)} on the front, ${trials}`);
    setText(this.edge, metrics.length > 2 ? "front of these two objectives" : "Pareto front");
    setText(this.outside, outsideWords(this.chart.numOutside, "an axis"));
    const objectives = metrics.map((name, index) => `${directions[index]} ${name}`).join(" and ");
    const words = `${plural(number.length, "trial")} by objectives: ${objectives}; ${num} on the Pareto front`;
    this.box.setAttribute("aria-label", chartLabel(words));
  }
}

/** Two selects for the objectives that are drawn, shown where there are more than two. */
class AxesChoice {
  /** @param {() => void} onChange */
  constructor(onChange) {
    this.selects = ["across", "up"].map((name) => h("select", { id: `front-${name}`, onchange: onChange }));
    const [across, up] = this.selects;
    this.element = h(
      "span",
      { class: "aside tools", hidden: true },
      h("label", { for: "front-up" }, "up"),
      up,
      h("label", { for: "front-across" }, "across"),
      across,
    );
  }

  /** Index of the objective that goes across. */
  get across() {
    return Number(this.selects[0].value);
  }

  /** Index of the objective that goes up. */
  get up() {
    return Number(this.selects[1].value);
  }

  /** @param {string[]} metrics at first the first two are chosen */
  draw(metrics) {
    this.element.hidden = metrics.length < 3;
    const options = metrics.map((name, index) => ({ value: String(index), text: name }));
    this.selects.forEach((select, index) => fillChoice(select, options, select.value || String(index)));
  }
}

/**
 * The trials of the front as a table.
 * @param {string[]} metrics
 * @param {StudyState} state
 * @returns {HTMLTableElement}
 */
function tableOf(metrics, { study, studyId }) {
  const columns = [
    { name: "#", numeric: true },
    ...metrics.map((name) => ({ name, numeric: true })),
    { name: "Parameters" },
    { name: "Plan" },
  ];
  const rows = study.summary.front.map(({ trial, values, params, plan }) =>
    h(
      "tr",
      {},
      h("td", { class: "num" }, h("a", { href: `/studies/${studyId}/trials/${trial}` }, count(trial))),
      values.map((value, index) => h("td", { class: "num value" }, objectiveValue(metrics[index], value))),
      h("td", { class: "wrap" }, paramsLine(params, study.spec.fixed)),
      h("td", {}, plan || "–"),
    ),
  );
  return h("table", { class: "plain" }, tableHead(columns), h("tbody", {}, rows));
}
