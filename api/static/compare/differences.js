// Two tables with a column for each chosen study: what differs between their specs, and how much each parameter matters.

import { card, scrolling } from "../elements/card.js";
import { h } from "../elements/dom.js";

/** @import { StudyView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { CompareContext, CompareState } from "./state.js" */

/**
 * @param {CompareContext} context
 * @returns {Panel}
 */
export function differencesPanel({ state }) {
  const rows = () => differences(state.chosenStudies.map(({ spec }) => spec));
  return tablePanel(state, "differences", "What differs", "The studies are the same but for their names.", rows);
}

/**
 * @param {CompareContext} context
 * @returns {Panel}
 */
export function importancesPanel({ state }) {
  const rows = () => {
    const shares = state.chosenStudies.map(({ id }) => state.importances.get(id) ?? {});
    const most = (/** @type {string} */ name) => Math.max(...shares.map((each) => each[name] ?? 0));
    const names = [...new Set(shares.flatMap((each) => Object.keys(each)))].sort((a, b) => most(b) - most(a));
    return names.map((name) => [name, ...shares.map((each) => percent(each[name]))]);
  };
  const empty = "They are known once 8 trials of a study have a value and differ in a parameter.";
  return tablePanel(state, "importances", "Importance of parameters", empty, rows);
}

/** @param {number | undefined} share */
function percent(share) {
  return share === undefined ? "–" : `${Math.round(100 * share)} %`;
}

/**
 * A table with a column for each chosen study. It is hidden while fewer than two are chosen.
 * @param {CompareState} state
 * @param {string} id
 * @param {string} title
 * @param {string} empty
 * @param {() => string[][]} rowsOf the name of each row, and its text for each study
 * @returns {Panel}
 */
function tablePanel(state, id, title, empty, rowsOf) {
  const table = h("table", { class: "plain" });
  const blank = h("p", { class: "muted body" }, empty);
  const section = card({ id, title }, blank, scrolling(id, "scroll list", table));
  let drawn = "";

  function draw() {
    const [studies, rows] = [state.chosenStudies, rowsOf()];
    section.hidden = studies.length < 2;
    blank.hidden = rows.length > 0;
    const shown = JSON.stringify([studies.map((study) => [study.id, study.name]), rows]);
    if (shown === drawn) return; // a selection of text stays
    drawn = shown;
    const heads = studies.map((study) =>
      h(
        "th",
        { scope: "col" },
        h("span", { class: `swatch ${state.colourOf(study.id)}` }),
        `${study.id} ${study.name}`,
      ),
    );
    const body = rows.map(([name, ...texts]) =>
      h("tr", {}, h("th", { scope: "row" }, name), ...texts.map((text) => h("td", { class: "wrap" }, text))),
    );
    const head = h(
      "thead",
      {},
      h("tr", {}, h("th", { scope: "col" }, id === "importances" ? "Parameter" : "Option"), heads),
    );
    table.replaceChildren(...(rows.length ? [head, h("tbody", {}, body)] : []));
  }

  return { card: section, shows: ["studies"], restMs: 500, draw };
}

/**
 * The options in which specs differ, each with its text in every spec; – where one lacks it. Names are no difference.
 * @param {Record<string, any>[]} specs
 * @returns {string[][]}
 */
export function differences(specs) {
  const flat = specs.map((spec) => new Map(leaves(spec)));
  const names = [...new Set(flat.flatMap((each) => [...each.keys()]))].filter((name) => name !== "name");
  const rows = names.map((name) => [name, ...flat.map((each) => each.get(name) ?? "–")]);
  return rows.filter(([, first, ...others]) => others.some((text) => text !== first));
}

/**
 * Each option with its path, and its value as text. What is null is not there.
 * @param {any} value
 * @param {string} [path]
 * @returns {[string, string][]}
 */
function leaves(value, path = "") {
  if (value === null || value === undefined) return [];
  if (typeof value !== "object" || Array.isArray(value))
    return [[path, typeof value === "string" ? value : JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, inner]) => leaves(inner, path ? `${path}.${name}` : name));
}
