// The chart of the best value so far, with a line for each chosen study.

import { BestLines } from "../charts/best.js";
import { aside, card, chartBox } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { count } from "../format.js";

/** @import { Panel } from "../page.js" */
/** @import { CompareContext } from "./state.js" */

/**
 * @param {CompareContext} context
 * @returns {Panel}
 */
export function bestPanel({ state }) {
  const beside = aside("best");
  const box = chartBox("best-lines", "Best value so far by the number of trials; the table below has the best values");
  const chart = new BestLines(box);

  return {
    card: card({ id: "best", title: "Best value so far", beside: [beside] }, h("div", { class: "body" }, box)),
    shows: ["studies"],
    restMs: 500,
    draw() {
      const drawn = state.comparable;
      const lines = drawn.map((study) => ({
        name: study.name,
        colour: state.colourOf(study.id),
        points: state.bestOf(study),
      }));
      chart.update(lines, drawn[0]?.spec.objective ?? { metric: "", direction: "" });
      const others = state.chosenStudies.length - drawn.length;
      setText(beside, others ? `without ${count(others)} of another objective, or of several` : "");
    },
  };
}
