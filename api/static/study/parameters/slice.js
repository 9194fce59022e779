// A slice through the trials that pass the table's filter: the objective by one parameter, which the user chooses, or two
// parameters against each other.

import { Slice } from "../../charts/slice.js";
import { aside, card, chartBox } from "../../elements/card.js";
import { fillChoice, namedOptions } from "../../elements/choice.js";
import { h, setText } from "../../elements/dom.js";
import { plural } from "../../format.js";
import { chartLabel, outsideWords } from "../chart_words.js";
import { filteredMark } from "../filtered.js";
import { InWords, gridWords, rankLegend, sliceRows } from "./words.js";

/** @import { AxisView } from "../../answers.d.ts" */
/** @import { Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */
/** @import { TableWords } from "./words.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function slicePanel(context) {
  return new SlicePanel(context);
}

class SlicePanel {
  /** @param {StudyContext} context */
  constructor({ state, feeds, open }) {
    this.state = state;
    this.feeds = feeds;
    this.shows = ["candidates", "parameter"];
    this.restMs = 300;
    this.isLazy = true;
    this.parameter = h("select", { id: "slice-parameter", onchange: () => state.choose(this.parameter.value) });
    this.against = h("select", {
      id: "slice-against",
      onchange: () => state.chooseAgainst(this.against.value || null),
    });
    this.box = chartBox("slice", "Slice of a parameter");
    this.chart = new Slice(this.box, open);
    this.ranks = rankLegend();
    this.outside = h("span");
    this.words = new InWords(() => this.inWords());
    this.card = card(
      { id: "slice", title: "Slice", span: 8, beside: [aside("slice"), filteredMark(state), this.tools()] },
      h("div", { class: "body" }, this.box),
      h("div", { class: "legend" }, this.ranks, this.outside),
      this.words.node,
    );
  }

  tools() {
    return h(
      "span",
      { class: "tools" },
      h("label", { class: "visually-hidden", for: "slice-against" }, "Upwards"),
      this.against,
      h("label", { for: "slice-parameter", "aria-label": "Parameter" }, "by"),
      this.parameter,
    );
  }

  seen() {
    this.feeds.wantCandidates();
  }

  /**
   * The axis of the parameter that goes across; null: there is none yet.
   * @returns {AxisView | null}
   */
  get across() {
    const axes = this.state.candidates?.axes ?? [];
    return axes.find(({ name }) => name === this.state.parameter) ?? axes[0] ?? null;
  }

  /**
   * The axis of the parameter that goes up; null: the objective does, or the parameter has not been fetched yet.
   * @returns {AxisView | null}
   */
  get up() {
    const { candidates, against } = this.state;
    const across = this.across?.name;
    return candidates?.axes.find(({ name }) => name === against && name !== across) ?? null;
  }

  draw() {
    const { candidates, objective } = this.state;
    if (!candidates) return;
    const { across, up } = this;
    this.drawChoices(across);
    this.chart.update(across, up, candidates, objective);
    for (const node of this.ranks) node.hidden = !up;
    setText(this.outside, up ? "" : outsideWords(this.chart.objective.numOutside));
    const trials = plural(candidates.number.length, "trial");
    const shown = `${up?.name ?? objective.metric} of ${trials} by ${across?.name ?? "a parameter"}`;
    this.box.setAttribute("aria-label", chartLabel(shown));
    this.words.draw();
  }

  /** @param {AxisView | null} across */
  drawChoices(across) {
    const { objective, parameterNames, against } = this.state;
    const parameters = namedOptions(parameterNames);
    fillChoice(this.parameter, parameters, across?.name ?? this.parameter.value);
    fillChoice(this.against, [{ value: "", text: objective.metric }, ...parameters], against ?? "");
  }

  /**
   * The chart as a table; null without trials.
   * @returns {TableWords | null}
   */
  inWords() {
    const { across, up, state } = this;
    if (!across || !state.candidates) return null;
    const { value } = state.candidates;
    if (!up) {
      const rows = sliceRows(across, value, state.direction);
      return { names: [across.name, "Trials shown", "Best", "Median"], rows };
    }
    const { names, rows } = gridWords(across, up, value, state.direction);
    return { names: [`Best by ${up.name} and ${across.name}`, ...names], rows };
  }
}
