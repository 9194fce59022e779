// Parallel coordinates of the trials that pass the table's filter. Its axes are the parameters whose columns are shown.

import { Parallel } from "../../charts/parallel.js";
import { aside, card, chartBox } from "../../elements/card.js";
import { h, setText } from "../../elements/dom.js";
import { count, plural } from "../../format.js";
import { chartLabel, outsideWords, partWords } from "../chart_words.js";
import { filteredMark } from "../filtered.js";
import { nameInFilter, rangeTerm, withRange, withoutRange } from "./range_filter.js";
import { InWords, parameterWords, rankLegend } from "./words.js";

/** @import { CandidatesView } from "../../answers.d.ts" */
/** @import { Axis } from "../../charts/axes.js" */
/** @import { Range } from "../../charts/parallel.js" */
/** @import { Marked, Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */
/** @import { TableWords } from "./words.js" */

const HELP =
  "Drag along an axis to filter by that range; click on the axis to remove the filter. The axes are the table's columns.";

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function parallelPanel(context) {
  return new ParallelPanel(context);
}

class ParallelPanel {
  /** @param {StudyContext} context */
  constructor({ state, page, feeds, open }) {
    this.state = state;
    this.feeds = feeds;
    this.shows = ["candidates", "view"];
    this.restMs = 300;
    this.isLazy = true;
    /** @type {CandidatesView | null} the candidates that are drawn */
    this.shown = null;
    this.beside = aside("parallel");
    this.box = chartBox("parallel", "Parallel coordinates");
    this.box.classList.add("parallel");
    this.box.tabIndex = 0;
    this.outside = h("span", { id: "parallel-outside" });
    this.words = new InWords(() => this.inWords());
    this.chart = new Parallel(this.box, {
      open,
      onHover: (trial) => page.point(this, trial),
      onBrush: (axis, range) => this.filter(axis, range),
    });
    this.card = card(
      { id: "parallel", title: "Parallel coordinates", beside: [this.beside, filteredMark(state)] },
      h("div", { class: "body" }, this.box),
      h("div", { class: "legend" }, rankLegend(), h("span", {}, HELP), this.outside),
      this.words.node,
    );
  }

  seen() {
    this.feeds.wantCandidates();
  }

  /**
   * Show only the trials in a range of an axis; null: in any.
   * @param {Axis} axis
   * @param {Range | null} range
   */
  filter(axis, range) {
    const isCount = this.state.study.spec.space[axis.name]?.repeat !== undefined;
    const axisInFilter = { ...axis, name: axis.place ? axis.name : "value" }; // the axis of the objective has no places
    const name = nameInFilter(axisInFilter.name, isCount);
    const { where } = this.state.view;
    const changed = range
      ? withRange(where, name, rangeTerm(axisInFilter, range[0], range[1], isCount))
      : withoutRange(where, name);
    this.state.look({ where: changed });
  }

  draw() {
    const { candidates, objective, shownParameters: names } = this.state;
    if (!candidates) return;
    const axes = names.flatMap((name) => candidates.axes.find((axis) => axis.name === name) ?? []);
    this.shown = { ...candidates, axes };
    this.chart.update(this.shown, objective);
    const { number, num_trials: all } = candidates;
    setText(this.beside, partWords(number.length, all) || plural(all, "trial"));
    setText(this.outside, outsideWords(this.chart.objective?.numOutside ?? 0, "the last axis"));
    const shown = `${plural(number.length, "trial")} as lines over ${names.join(", ")} and ${objective.metric}`;
    this.box.setAttribute("aria-label", chartLabel(shown, "from the best trial to the worst"));
    this.words.draw();
  }

  /** @param {Marked | null} trial */
  point(trial) {
    this.chart.highlight(trial?.number ?? null);
  }

  /**
   * The chart as a table; null before it has been drawn.
   * @returns {TableWords | null}
   */
  inWords() {
    if (!this.shown) return null;
    const rows = parameterWords(this.shown).map(({ name, best, all, without }) => [
      name,
      best,
      all,
      without ? count(without) : "–",
    ]);
    return { names: ["Parameter", "Best tenth", "All", "Without it"], rows };
  }
}
