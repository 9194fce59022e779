// A slice through the trials that pass the table's filter: the objective by one parameter, which the user chooses.

import { Slice } from "../../charts/slice.js";
import { aside, card, chartBox } from "../../elements/card.js";
import { h, keyed, setText } from "../../elements/dom.js";
import { plural } from "../../format.js";
import { filteredMark } from "../filtered.js";
import { sliceRows, tableInWords } from "./words.js";

export function slicePanel({ state, open }) {
  const beside = aside("slice");
  const select = h("select", { id: "slice-parameter" });
  const box = chartBox("slice", "");
  const outside = h("span");
  const words = h("details", { class: "in-words" }, h("summary", {}, "As a table"));
  const chart = new Slice(box, open);
  select.addEventListener("change", () => state.choose(select.value));
  words.addEventListener("toggle", () => drawWords());

  function axis() {
    const axes = state.candidates?.axes ?? [];
    return axes.find(({ name }) => name === state.parameter) ?? axes[0] ?? null;
  }

  function drawWords() {
    const found = axis();
    if (!words.open || !found) return;
    if (words.lastElementChild.tagName !== "SUMMARY") words.lastElementChild.remove();
    const rows = sliceRows(found, state.candidates.value, state.direction());
    words.append(tableInWords([found.name, "Trials shown", "Best", "Median"], rows));
  }

  return {
    card: card(
      {
        id: "slice",
        title: "Slice",
        span: 8,
        beside: [
          beside,
          filteredMark(state),
          h("label", { class: "visually-hidden", for: "slice-parameter" }, "Parameter"),
          select,
        ],
      },
      h("div", { class: "body" }, box),
      h("div", { class: "legend" }, outside),
      words,
    ),
    shows: ["candidates", "parameter"],
    restMs: 300,
    draw() {
      const { candidates, study } = state;
      if (!candidates) return;
      const found = axis();
      keyed(
        select,
        state.parameterNames,
        (name) => name,
        (name) => h("option", { value: name }, name),
      );
      if (found && select.value !== found.name) select.value = found.name;
      chart.update(found, candidates, study.spec.objective);
      const { numOutside } = chart.objective;
      setText(outside, numOutside ? `${plural(numOutside, "trial")} beyond the end of the axis, at its edge.` : "");
      box.setAttribute(
        "aria-label",
        `${study.spec.objective.metric} of ${plural(candidates.number.length, "trial")} by ${found?.name ?? "a parameter"}. Arrow keys go from point to point, Enter opens a trial; the table below has the numbers.`,
      );
      drawWords();
    },
  };
}
