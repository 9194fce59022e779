// A slice through the trials that pass the table's filter: the objective by one parameter, which the user chooses, or two
// parameters against each other.

import { Slice } from "../../charts/slice.js";
import { aside, card, chartBox } from "../../elements/card.js";
import { h, keyed, setText } from "../../elements/dom.js";
import { plural } from "../../format.js";
import { filteredMark } from "../filtered.js";
import { InWords, gridWords, rankLegend, sliceRows } from "./words.js";

/** @import { AxisView } from "../../answers.d.ts" */
/** @import { Panel } from "../../page.js" */
/** @import { StudyContext } from "../state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function slicePanel({ state, feeds, open }) {
  const beside = aside("slice");
  const select = h("select", { id: "slice-parameter" });
  const against = h("select", { id: "slice-against" });
  const tools = h(
    "span",
    { class: "tools" },
    h("label", { class: "visually-hidden", for: "slice-against" }, "Upwards"),
    against,
    h("label", { for: "slice-parameter", "aria-label": "Parameter" }, "by"),
    select,
  );
  const box = chartBox("slice", "");
  const outside = h("span");
  const words = new InWords(inWords);
  const chart = new Slice(box, open);
  const ranks = rankLegend();
  select.addEventListener("change", () => state.choose(select.value));
  against.addEventListener("change", () => state.chooseAgainst(against.value || null));

  function axis() {
    const axes = state.candidates?.axes ?? [];
    return axes.find(({ name }) => name === state.parameter) ?? axes[0] ?? null;
  }

  function inWords() {
    const found = axis();
    if (!found) return null;
    const other = upwards();
    const { value } = state.candidates;
    if (!other)
      return {
        names: [found.name, "Trials shown", "Best", "Median"],
        rows: sliceRows(found, value, state.direction()),
      };
    const { names, rows } = gridWords(found, other, value, state.direction());
    return { names: [`Best by ${other.name} and ${found.name}`, ...names], rows };
  }

  /** The axis of the parameter that goes up; null: the objective does, or the parameter has not been fetched yet. */
  function upwards() {
    return state.candidates?.axes.find(({ name }) => name === state.against && name !== axis().name) ?? null;
  }

  /** @param {AxisView | null} found */
  function drawChoices(found) {
    const parameters = state.parameterNames.map((name) => ({ name, text: name }));
    fillChoice(select, parameters);
    fillChoice(against, [{ name: "", text: state.study.spec.objective.metric }, ...parameters]);
    if (found && select.value !== found.name) select.value = found.name;
    if (against.value !== (state.against ?? "")) against.value = state.against ?? "";
  }

  return {
    card: card(
      {
        id: "slice",
        title: "Slice",
        span: 8,
        beside: [beside, filteredMark(state), tools],
      },
      h("div", { class: "body" }, box),
      h("div", { class: "legend" }, ranks, outside),
      words.node,
    ),
    shows: ["candidates", "parameter"],
    restMs: 300,
    isLazy: true,
    seen: () => feeds.wantCandidates(),
    draw() {
      const { candidates, study } = state;
      if (!candidates) return;
      const found = axis();
      const other = upwards();
      drawChoices(found);
      chart.update(found, other, candidates, study.spec.objective);
      for (const node of ranks) node.hidden = !other;
      const { numOutside } = chart.objective;
      const hasOutside = numOutside && !other;
      setText(outside, hasOutside ? `${plural(numOutside, "trial")} beyond the end of the axis, at its edge.` : "");
      box.setAttribute(
        "aria-label",
        `${other ? other.name : study.spec.objective.metric} of ${plural(candidates.number.length, "trial")} by ${found?.name ?? "a parameter"}. Arrow keys go from point to point, Enter opens a trial; the table below has the numbers.`,
      );
      words.draw();
    },
  };
}

/**
 * Fill a select with these choices.
 * @param {HTMLSelectElement} select
 * @param {{name: string, text: string}[]} choices
 */
function fillChoice(select, choices) {
  keyed(
    select,
    choices,
    ({ name }) => name,
    ({ name, text }) => h("option", { value: name }, text),
  );
}
