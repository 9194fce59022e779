// Learning curves of one metric: of the running, the best and the newest trials.

import { Curves } from "../charts/curves.js";
import * as api from "../client.js";
import { aside, card, chartBox } from "../elements/card.js";
import { h, keyed, setText, setTitle } from "../elements/dom.js";
import { count, plural, stepUnit } from "../format.js";
import { filteredMark } from "./filtered.js";

/** @import { LiveEvent } from "../live.js" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const POINTS = 150; // of each of up to 200 lines, in a chart of about 500 pixels

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function curvesPanel({ state, page, open }) {
  const beside = aside("curves");
  const select = h("select", { id: "metric" });
  const box = chartBox("curves", "The chosen metric over training, one line per trial");
  const chart = new Curves(box, { open, onHover: (trial) => page.point(panel, trial) });
  const refresh = page.refresher((numbers) => load(numbers.filter((number) => state.leading.includes(number))), 3000);
  /** @type {number[] | null} the leading trials for which curves have been asked for */
  let led = null;
  /** @type {Set<number>} numbers of leading trials whose curves have been asked for */
  const asked = new Set();
  select.addEventListener("change", () => {
    asked.clear();
    state.chooseMetric(select.value);
    page.run(() => load(state.leading));
  });

  /** @param {number[]} numbers */
  async function load(numbers) {
    const name = state.metric;
    for (const number of numbers) asked.add(number);
    await api.curves(state.studyId, numbers, { metric: name, points: POINTS }, (found) =>
      state.keepCurves(name, found),
    );
  }

  /** Fetch the curves of trials that lead since the filter was changed. */
  function loadNew() {
    if (state.leading === led) return; // only an answer of the server replaces it
    led = state.leading;
    for (const number of asked) if (!state.leading.includes(number)) asked.delete(number);
    const missing = state.leading.filter((number) => !asked.has(number));
    if (missing.length) page.run(() => load(missing));
  }

  /** @param {LiveEvent} event */
  function refreshTrial({ trial_id: id }) {
    const number = state.numbers.get(id);
    if (number !== undefined) refresh(number);
  }

  function drawNames() {
    const names = new Set([state.study.spec.objective.metric, ...state.metricNames]);
    keyed(
      select,
      [...names],
      (name) => name,
      (name) => h("option", { value: name }, name),
    );
    if (select.value !== state.metric) select.value = state.metric;
    const isPart = state.hasMostCurves;
    setText(beside, isPart ? `${count(state.leading.length)} of ${plural(state.numInHistory, "trial")}` : "");
    setTitle(beside, isPart ? "Running trials, then the best, then the newest" : "");
  }

  function drawLines() {
    const drawn = state.leading.map((number) => state.lines.get(number)).filter((line) => line);
    const best = drawn.find((line) => line.trial.number === state.study.best?.trial);
    chart.update([...drawn.filter((line) => line !== best), ...(best ? [best] : [])], {
      name: state.metric,
      unit: stepUnit(state.study.spec),
      bestId: best?.trial.id ?? null,
    });
  }

  /** @type {Panel} */
  const panel = {
    card: card(
      {
        id: "curves",
        title: "Learning curves",
        span: 4,
        beside: [
          beside,
          filteredMark(state),
          h("label", { class: "visually-hidden", for: "metric" }, "Metric"),
          select,
        ],
      },
      h("div", { class: "body" }, box),
    ),
    shows: ["lines"],
    restMs: 500,
    draw() {
      drawNames();
      drawLines();
    },
    load() {
      state.watch((field) => field === "points" && state.isLoaded && loadNew());
      return load(state.leading);
    },
    on: {
      attempt: refreshTrial, // a resumed attempt repeats steps, and its values replace the older ones
      metrics: refreshTrial, // one event may cover several evaluations
    },
    point: (trial) => chart.highlight(trial?.id ?? null),
  };
  return panel;
}
