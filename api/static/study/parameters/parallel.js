// Parallel coordinates of the trials that pass the table's filter. Its axes are the parameters whose columns are shown.

import { Parallel } from "../../charts/parallel.js";
import { aside, card, chartBox } from "../../elements/card.js";
import { h, setText } from "../../elements/dom.js";
import { count, plural } from "../../format.js";
import { filteredMark } from "../filtered.js";
import { nameInFilter, rangeTerm, withRange, withoutRange } from "./range_filter.js";
import { InWords, parameterWords, rankLegend } from "./words.js";

/** @import { CandidatesView } from "../../answers.d.ts" */
/** @import { Axis } from "../../charts/axes.js" */
/** @import { Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function parallelPanel({ state, page, feeds, open }) {
  const beside = aside("parallel");
  const box = chartBox("parallel", "");
  box.classList.add("parallel");
  box.tabIndex = 0;
  const outside = h("span", { id: "parallel-outside" });
  const legend = h(
    "div",
    { class: "legend" },
    rankLegend(),
    h(
      "span",
      {},
      "Drag along an axis to filter by that range; click on the axis to remove the filter. The axes are the table's columns.",
    ),
    outside,
  );
  const chart = new Parallel(box, { open, onHover: (trial) => page.point(panel, trial), onBrush: brush });
  /** @type {CandidatesView | null} those that are drawn */
  let shown = null;
  const words = new InWords(() => shown && { names: ["Parameter", "Best tenth", "All", "Without it"], rows: rows() });

  /**
   * @param {Axis} axis
   * @param {number | null} from
   * @param {number | null} to
   */
  function brush(axis, from, to) {
    const isCount = state.study.spec.space[axis.name]?.repeat !== undefined;
    const name = nameInFilter(axis.place ? axis.name : "value", isCount);
    const term =
      from === null ? null : rangeTerm({ ...axis, name: axis.place ? axis.name : "value" }, from, to, isCount);
    const { where } = state.view;
    state.look({ where: term === null ? withoutRange(where, name) : withRange(where, name, term) });
  }

  function rows() {
    return parameterWords(shown).map(({ name, best, all, without }) => [
      name,
      best,
      all,
      without ? count(without) : "–",
    ]);
  }

  /** @type {Panel} */
  const panel = {
    card: card(
      { id: "parallel", title: "Parallel coordinates", beside: [beside, filteredMark(state)] },
      h("div", { class: "body" }, box),
      legend,
      words.node,
    ),
    shows: ["candidates", "view"],
    restMs: 300,
    isLazy: true,
    seen: () => feeds.wantCandidates(),
    draw() {
      const { candidates, study } = state;
      if (!candidates) return;
      const names = state.shownParameters;
      const axes = names.map((name) => candidates.axes.find((axis) => axis.name === name)).filter(Boolean);
      shown = { ...candidates, axes };
      chart.update(shown, study.spec.objective);
      const { number, num_trials: all } = candidates;
      setText(
        beside,
        number.length < all ? `${count(number.length)} of ${plural(all, "trial")}` : plural(all, "trial"),
      );
      const { numOutside } = chart.objective;
      setText(outside, numOutside ? `${plural(numOutside, "trial")} beyond the end of the last axis.` : "");
      box.setAttribute(
        "aria-label",
        `${plural(number.length, "trial")} as lines over ${names.join(", ")} and ${study.spec.objective.metric}. Arrow keys go from the best trial to the worst, Enter opens one; the table below has the numbers.`,
      );
      words.draw();
    },
    point: (trial) => chart.highlight(trial?.number ?? null),
  };
  return panel;
}
