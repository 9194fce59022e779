// Learning curves of one metric: of the running, the best and the newest trials.

import { Curves } from "../charts/curves.js";
import * as api from "../client.js";
import { aside, card, chartBox } from "../elements/card.js";
import { fillChoice, namedOptions } from "../elements/choice.js";
import { h, setText, setTitle } from "../elements/dom.js";
import { stepUnit } from "../format.js";
import { directionOf } from "../objectives.js";
import { partWords } from "./chart_words.js";
import { filteredMark } from "./filtered.js";

/** @import { EventView } from "../answers.d.ts" */
/** @import { Marked, Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const POINTS = 150; // of each of up to 200 lines, in a chart of about 500 pixels

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function curvesPanel(context) {
  return new CurvesPanel(context);
}

class CurvesPanel {
  /** @param {StudyContext} context */
  constructor({ state, page, open }) {
    this.state = state;
    this.page = page;
    this.shows = ["curves"];
    this.restMs = 500;
    this.isLazy = true;
    this.beside = aside("curves");
    this.select = h("select", { id: "metric" });
    this.select.addEventListener("change", () => this.chooseMetric());
    const box = chartBox("curves", "The chosen metric over training, one line per trial");
    this.chart = new Curves(box, { open, onHover: (trial) => page.point(this, trial) });
    this.card = this.framed(box);
    this.asked = new AskedCurves();
    const refresh = page.refresher((/** @type {number[]} */ numbers) => this.fetch(numbers), 3000);
    const refreshTrial = (/** @type {EventView} */ event) => {
      const number = state.numberOf(event);
      if (number !== undefined) refresh(number);
    };
    this.on = {
      attempt: refreshTrial, // a resumed attempt repeats steps, and its values replace the older ones
      metrics: refreshTrial, // one event may cover several evaluations
    };
  }

  /** @param {HTMLElement} box of the chart */
  framed(box) {
    const label = h("label", { class: "visually-hidden", for: "metric" }, "Metric");
    const beside = [this.beside, filteredMark(this.state), label, this.select];
    return card({ id: "curves", title: "Learning curves", span: 4, beside }, h("div", { class: "body" }, box));
  }

  load() {
    const { state } = this;
    state.watch((field) => field === "points" && state.isLoaded && this.fetchNew());
    return this.fetch(state.curves.leading);
  }

  draw() {
    const { objective, curves, numInHistory } = this.state;
    fillChoice(this.select, namedOptions(new Set([objective.metric, ...curves.metricNames])), curves.metric);
    const part = curves.hasMost ? partWords(curves.leading.length, numInHistory) : "";
    setText(this.beside, part);
    setTitle(this.beside, part ? "Running trials, then the best, then the newest" : "");
    this.drawLines();
  }

  drawLines() {
    const { study, curves } = this.state;
    const { leading, lines, metric } = curves;
    const drawn = leading.flatMap((number) => lines.get(number) ?? []);
    const best = drawn.find((line) => line.trial.number === study.best?.trial);
    this.chart.update([...drawn.filter((line) => line !== best), ...(best ? [best] : [])], {
      name: metric,
      direction: directionOf(study.spec, metric),
      unit: stepUnit(study.spec),
      bestId: best?.trial.id ?? null,
    });
  }

  /** @param {Marked | null} trial */
  point(trial) {
    this.chart.highlight(trial?.id ?? null);
  }

  chooseMetric() {
    this.asked.forget();
    this.state.curves.choose(this.select.value);
    this.page.run(() => this.fetch(this.state.curves.leading));
  }

  /**
   * Fetch the curves of those of these trials that lead.
   * @param {number[]} numbers
   */
  async fetch(numbers) {
    const { state } = this;
    const name = state.curves.metric;
    const leading = numbers.filter((number) => state.curves.leading.includes(number));
    this.asked.add(leading);
    await api.curves(state.studyId, leading, { metric: name, points: POINTS }, (found) =>
      state.keepCurves(name, found),
    );
  }

  /** Fetch the curves of trials that lead since the filter was changed. */
  fetchNew() {
    const missing = this.asked.missing(this.state.curves.leading);
    if (missing.length) this.page.run(() => this.fetch(missing));
  }
}

/** The leading trials whose curves have been asked for. */
export class AskedCurves {
  constructor() {
    /** @type {Set<number>} */
    this.numbers = new Set();
    /** @type {number[] | null} the answer of the server that was looked at last; only another answer replaces it */
    this.answer = null;
  }

  /** @param {number[]} numbers */
  add(numbers) {
    for (const number of numbers) this.numbers.add(number);
  }

  /** Begin anew, with another metric. */
  forget() {
    this.numbers.clear();
  }

  /**
   * The trials of a new answer for which nothing has been asked; those that lead no more are forgotten.
   * @param {number[]} leading
   * @returns {number[]}
   */
  missing(leading) {
    if (leading === this.answer) return [];
    this.answer = leading;
    for (const number of this.numbers) if (!leading.includes(number)) this.numbers.delete(number);
    return leading.filter((number) => !this.numbers.has(number));
  }
}
