// Optimisation history: the objective by trial number.

import { History } from "../charts/history.js";
import { byNumber } from "../charts/series.js";
import { aside, card, chartBox } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { stateMark } from "../elements/marks.js";
import { stepUnit } from "../format.js";
import { isSeveral } from "../objectives.js";
import { TRIAL_STATES } from "../states.js";
import { outsideWords, partWords } from "./chart_words.js";
import { filteredMark } from "./filtered.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function historyPanel({ state, open }) {
  const beside = aside("history");
  const box = chartBox("history", "Objective by trial number; the table below has the same values");
  const legend = h("div", { class: "legend", id: "history-legend" });
  const chart = new History(box, open, (trial) => state.rows.get(trial.number)?.reason ?? "");

  const section = card(
    { id: "history", title: "Optimisation history", span: 8, beside: [beside, filteredMark(state)] },
    h("div", { class: "body" }, box),
    legend,
  );

  return {
    card: section,
    shows: ["study", "points"],
    needs: "points",
    restMs: 500,
    draw() {
      const { points, study, numInHistory } = state;
      section.classList.toggle("span-8", !isSeveral(study.spec)); // then there is no best trial beside it
      chart.update(byNumber(points.values()), state.numTrials, study.spec.objective, stepUnit(study.spec));
      setText(beside, partWords(points.size, numInHistory));
      const outside = outsideWords(chart.shown.numOutside);
      const present = TRIAL_STATES.filter((each) => study.trials[each]);
      keyed(
        legend,
        ["best", ...present, ...(outside ? ["outside"] : [])],
        (each) => each,
        legendEntry,
        (node, each) => each === "outside" && setText(node, outside),
      );
    },
  };
}

/**
 * @param {string} each
 * @returns {HTMLElement}
 */
function legendEntry(each) {
  if (each === "outside") return h("span");
  return each === "best" ? h("span", { class: "line" }, "best so far") : stateMark(each);
}
