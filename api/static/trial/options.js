// The plans that were compared for a trial, and why each was taken or not.

import { aside, card, scrolling, tableHead } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { count, stepWords } from "../format.js";

/** @import { OptionView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

const COLUMNS = [
  { name: "Plan" },
  { name: "Devices", numeric: true },
  { name: "MiB on each", numeric: true },
  { name: "Device time", numeric: true, title: "devices × seconds of a step, over that of the chosen plan" },
  {
    name: "Step",
    numeric: true,
    id: "options-seconds",
    title: "by the costs of blocks, if every rank has a core for itself",
  },
  { name: "" },
];

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function optionsPanel({ state }) {
  const beside = aside("options");
  const body = h("tbody", { id: "options-rows" });
  const table = h("table", { class: "plain", id: "options" }, tableHead(COLUMNS), body);
  const section = card(
    { id: "options", title: "Plans compared", beside, hidden: true },
    scrolling("options", "scroll stacks", table),
  );

  return {
    card: section,
    shows: ["trial"],
    draw() {
      const { options } = state;
      section.hidden = options.length < 2;
      setText(beside, options.findIndex((option) => option.chosen) > 0 ? "the first plan that fits was chosen" : "");
      keyed(
        body,
        options.map((option) => ({ key: JSON.stringify(option), option })),
        (row) => row.key,
        (row) => optionRow(row.option),
      );
    },
  };
}

/**
 * @param {OptionView} option
 * @returns {HTMLElement}
 */
function optionRow(option) {
  const least = option.at_least ? "≥ " : option.traced ? "" : "~ ";
  const cells = [
    count(option.num_ranks),
    `${least}${count(option.reserved_mib)}`,
    option.relative_device_seconds === null ? "–" : `× ${option.relative_device_seconds.toFixed(2)}`,
    stepWords(option.seconds),
  ];
  const verdict = option.chosen
    ? "chosen"
    : option.fits
      ? "faster, on more devices"
      : `over ${count(option.offered_mib)} MiB`;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, option.plan_text),
    cells.map((text, at) => h("td", { class: "num", "data-label": COLUMNS[at + 1].name }, text)),
    h("td", {}, verdict),
  );
}
