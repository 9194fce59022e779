// Lineage: which trials began as copies of others, or with their weights, at which step, and what was changed in each. A
// bar is a trial over its steps; a line leads from a trial to the one that continues from it.

import * as api from "../client.js";
import { aside, card, scrolling } from "../elements/card.js";
import { h, setText, svg } from "../elements/dom.js";
import { setState } from "../elements/marks.js";
import { count, metric, paramValue, plural, stepUnit } from "../format.js";
import { partWords } from "./chart_words.js";

/** @import { DescendantView, LineageView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext, StudyState } from "./state.js" */

const ROW = 30; // height of a trial in CSS pixels, as in the style sheet
const TRIALS = 200;
const WIDTH = 100; // of the picture, in units that the browser stretches to the card
const MARGIN = 3; // on its left and right
const LEAST_BAR = 0.5; // so that a trial without a step is seen

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function lineagePanel({ state, page }) {
  const beside = aside("lineage");
  const box = scrolling("lineage", "scroll lineage");
  const section = card({ id: "lineage", title: "Lineage", beside, hidden: true }, box);
  /** @type {LineageView | null} */
  let found = null;
  const refresh = page.refresher(load, 10_000);

  async function load() {
    found = await api.lineage(state.studyId, TRIALS);
    state.changed("lineage");
  }

  /** @param {DescendantView[]} items */
  function drawRows(items) {
    const rows = items.map((item) => row(item, state));
    const list = h("ol", {}, rows);
    const light = (/** @type {Event} */ { target }) => {
      const at = rows.findIndex((node) => target instanceof Node && node.contains(target));
      const line = at < 0 ? new Set() : ancestors(items, items[at].number);
      rows.forEach((node, index) => node.classList.toggle("lit", line.has(items[index].number)));
      page.point(panel, at < 0 ? null : { id: null, number: items[at].number });
    };
    list.addEventListener("mouseover", light);
    list.addEventListener("focusin", light);
    list.addEventListener("mouseleave", light);
    box.replaceChildren(h("div", { class: "tree" }, picture(items, state.study.best?.trial), list));
  }

  /** @type {Panel} */
  const panel = {
    card: section,
    shows: ["lineage"],
    restMs: 500,
    isLazy: true,
    draw() {
      if (!found) return;
      section.hidden = !found.items.length;
      if (section.hidden) return;
      const { items, num_trials: all } = found;
      const part = partWords(items.length, all, "related trial");
      setText(beside, part ? `the best ${part}` : plural(all, "related trial"));
      drawRows(items);
    },
    load,
    on: { trial: ({ data }) => (data.parent_number !== null || found?.items.length) && refresh("trial") },
  };
  return panel;
}

/**
 * Numbers of a trial and all its ancestors among `items`.
 * @param {{number: number, parent_number: number | null}[]} items
 * @param {number} number
 * @returns {Set<number>}
 */
export function ancestors(items, number) {
  const parents = new Map(items.map((item) => [item.number, item.parent_number]));
  /** @type {Set<number>} */
  const line = new Set();
  /** @type {number | null | undefined} */
  let at = number;
  while (at !== null && at !== undefined && parents.has(at) && !line.has(at)) {
    line.add(at);
    at = parents.get(at);
  }
  return line;
}

/**
 * [{row, from, to, parentRow}] of the bars, as shares of the longest; `parentRow` is null without one. A bar shows the
 * steps of a trial. That of a copy begins at the step of its parent; that of a trial which only takes over weights begins
 * at zero.
 * @param {Pick<DescendantView, "number" | "origin" | "parent_number" | "parent_step" | "step">[]} items
 * @returns {{row: number, from: number, to: number, parentRow: number | null}[]}
 */
export function bars(items) {
  const rows = new Map(items.map((item, row) => [item.number, row]));
  const offsets = new Map(); // number → steps before its own step 0
  const spans = items.map(({ number, origin, parent_number: parent, parent_step: left, step }) => {
    const before = offsets.get(parent) ?? 0;
    const from = before + (left ?? 0);
    offsets.set(number, origin === "BRANCH" || left === null ? before : from);
    return [from, Math.max(from, offsets.get(number) + step)];
  });
  const most = Math.max(1, ...spans.map(([, to]) => to));
  return items.map(({ parent_number: parent }, row) => ({
    row,
    from: spans[row][0] / most,
    to: spans[row][1] / most,
    parentRow: parent === null ? null : (rows.get(parent) ?? null),
  }));
}

/**
 * @param {number} share
 * @returns {number}
 */
function acrossAt(share) {
  return MARGIN + (WIDTH - 2 * MARGIN) * share;
}

/**
 * @param {number} row
 * @returns {number}
 */
function middleOf(row) {
  return (row + 0.5) * ROW;
}

/**
 * @param {DescendantView[]} items
 * @param {number | undefined} best number of the best trial
 * @returns {SVGSVGElement}
 */
function picture(items, best) {
  const parts = bars(items).map(({ row, from, to, parentRow }) => {
    const [left, right, y] = [acrossAt(from), acrossAt(to), middleOf(row)];
    const { state, number } = items[row];
    return [
      parentRow === null ? null : svg("path", { class: "descent", d: `M${left} ${middleOf(parentRow)}V${y}` }),
      svg("path", {
        class: `bar state-${state.toLowerCase()} ${number === best ? "best" : ""}`,
        d: `M${left} ${y}H${Math.max(right, left + LEAST_BAR)}`,
      }),
    ];
  });
  const props = {
    viewBox: `0 0 ${WIDTH} ${items.length * ROW}`,
    preserveAspectRatio: "none",
    height: items.length * ROW,
    "aria-hidden": "true",
  };
  return svg("svg", props, parts.flat());
}

/**
 * @param {DescendantView} item
 * @param {StudyState} state
 * @returns {HTMLLIElement}
 */
function row(item, state) {
  const mark = h("span", { class: "mark" });
  setState(mark, item.state);
  const link = h("a", { href: `/studies/${state.studyId}/trials/${item.number}` }, count(item.number));
  const words = item.parent_number === null ? "" : copyWords(item, stepUnit(state.study.spec));
  return h(
    "li",
    { class: item.number === state.study.best?.trial ? "best" : null },
    h("span", { class: "who" }, h("span", { class: "visually-hidden" }, "Trial "), link),
    mark,
    h("span", { class: "num" }, metric(item.value)),
    h("span", { class: "words", title: words }, words),
  );
}

/**
 * How a copy differs from its parent. `unit`: of its steps.
 * @param {Pick<DescendantView, "origin" | "parent_number" | "parent_step" | "changes">} item
 * @param {string} [unit]
 * @returns {string}
 */
export function copyWords({ origin, parent_number: parent, parent_step: step, changes }, unit = "step") {
  const did = origin === "BRANCH" ? "copy" : "weights";
  const from = `${did} of ${parent}${step ? ` at ${unit} ${count(step)}` : ""}`;
  const changed = changes.map(({ name, before, after }) => `${name} ${shown(before)} → ${shown(after)}`);
  return changed.length ? `${changed.join(", ")} (${from})` : from;
}

/**
 * @param {any} value
 * @returns {string}
 */
function shown(value) {
  return value === null ? "none" : paramValue(value);
}
