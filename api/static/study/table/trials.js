// The table of all trials. The server sorts and filters it, and only the rows that are seen are fetched. Its columns,
// order and filter are in the page's address; what the filter leaves is also what the charts of parameters show.

import * as api from "../../client.js";
import { card, scrolling } from "../../elements/card.js";
import { columnChooser } from "../../elements/column_chooser.js";
import { h, setText } from "../../elements/dom.js";
import { PagedTable } from "../../elements/table.js";
import { count, plural } from "../../format.js";
import { LIVE_STUDY } from "../../states.js";
import { filterForm, stateButtons } from "./filter.js";
import { TrialOrder } from "./order.js";
import { ShownColumns } from "./shown_columns.js";
import { added, moved, orderOf, queryOf, writeView } from "./view.js";

/** @import { Panel } from "../../page.js" */
/** @import { StudyContext, StudyState } from "../state.js" */
/** @import { Wanted } from "./order.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function trialsPanel({ state, page, feeds, open }) {
  const download = h("a", { class: "button", download: true }, "CSV");
  const counted = h("span", { id: "trials-aside" });
  const columns = new ShownColumns(state);
  const order = new TrialOrder(
    () => wantedOrder(state),
    (query) => api.order(state.studyId, query),
  );
  const buttons = stateButtons(state);
  const filter = filterForm(state);
  const marks = new RowMarks(state);
  const table = trialTable(columns, { state, feeds, open, marks, onHover: (trial) => page.point(panel, trial) });
  const [choose, chooser] = columnChooser({
    every: () => columns.every(),
    chosen: () => columns.keys(),
    onChange: (chosen) => state.look({ columns: chosen }),
    added,
    moved,
  });
  const [refreshSeen, refreshUnseen] = [2000, 10_000].map((restMs) =>
    page.refresher(async () => order.numbers && sort(), restMs),
  );
  const refreshOrder = (/** @type {string} */ key) => (page.sees(panel.card) ? refreshSeen(key) : refreshUnseen(key));
  let drawnColumns = ""; // keys of the columns that the table has, as text

  async function sort() {
    try {
      const complaint = await order.fetch();
      if (complaint !== null) filter.complain(complaint);
    } finally {
      state.changed("order");
    }
  }

  function drawColumns() {
    const wanted = columns.keys().join();
    if (wanted === drawnColumns) return;
    drawnColumns = wanted;
    table.setColumns(columns.shown());
  }

  function drawRows() {
    const { by, descending } = orderOf(state.view, state.direction());
    const shown = order.rows(state.numTrials, descending);
    setText(counted, shownWords(state, order, shown.length));
    download.href = api.csvAddress(state.studyId, queryOf({ ...state.view, by, descending }));
    table.setSort(by, descending);
    table.setOrder(shown);
  }

  /** @type {Panel} */
  const panel = {
    card: card(
      { id: "trials", title: "Trials", beside: h("span", { class: "aside tools" }, counted, choose, download) },
      filter.form,
      buttons.element,
      table.box,
      chooser,
    ),
    shows: ["study", "rows", "order", "view", "candidates"],
    restMs: 100,
    draw() {
      buttons.draw();
      drawColumns();
      marks.update();
      drawRows();
    },
    load() {
      state.watch((field) => {
        if (field !== "view") return;
        history.replaceState(history.state, "", `${location.pathname}${writeView(state.view)}${location.hash}`);
        if (order.isOutdated) page.run(sort);
      });
      return sort();
    },
    on: {
      trial: () => order.numbers && refreshOrder("trial"),
      metrics({ trial_id: id, data }) {
        const hasValue = state.numbers.has(id) && state.objectiveIn(data.values) !== null;
        const mayMove = table.sortBy === "value" || state.view.where;
        if (hasValue && order.numbers && mayMove) refreshOrder("value");
      },
    },
    tick: () => LIVE_STUDY.has(state.study.state) && table.draw(),
    point(trial) {
      marks.lit = trial?.number ?? null;
      table.draw();
    },
  };
  return panel;
}

/** Which rows stand out: the best trials, and the one under the pointer in another panel. */
class RowMarks {
  /** @param {StudyState} state */
  constructor(state) {
    this.state = state;
    /** @type {Set<number>} numbers of the trials on the Pareto front of a study with several objectives */
    this.front = new Set();
    /** @type {number | null} number of the trial under the pointer in another panel */
    this.lit = null;
  }

  update() {
    this.front = new Set(this.state.study.summary.front.map(({ trial }) => trial));
  }

  /**
   * @param {number} number
   * @returns {string}
   */
  classOf(number) {
    const isBest = number === this.state.study.best?.trial || this.front.has(number);
    return `${isBest ? "best" : ""} ${number === this.lit ? "lit" : ""}`;
  }
}

/**
 * @param {ShownColumns} columns
 * @param {Pick<StudyContext, "state" | "feeds" | "open"> & {marks: RowMarks, onHover: (trial: any) => void}} options
 * @returns {PagedTable}
 */
function trialTable(columns, { state, feeds, open, marks, onHover }) {
  const box = scrolling("trials", "rows scroll");
  box.id = "trials";
  return new PagedTable(box, {
    columns: columns.standing.filter((column) => !column.isExtra),
    caption: "Trials of this study",
    sortBy: "value",
    empty: () => (state.numTrials ? "No trial passes the filter. Change it above." : "No trial has been proposed yet."),
    rowAt: (number) => state.rows.get(number),
    rowClass: (number) => marks.classOf(number),
    onMissing: (missing) => missing.forEach((number) => feeds.fetchRow(number)),
    onSort(by, descending) {
      const isBest = by === "value" && descending === (state.direction() === "maximize");
      state.look({ sort: isBest ? "best" : by, descending: !isBest && descending });
    },
    onOpen: (number) => open({ number }),
    onHover,
  });
}

/**
 * What the page's address asks for; see `order.js`.
 * @param {StudyState} state
 * @returns {Wanted}
 */
function wantedOrder(state) {
  const { states, where } = state.view;
  const order = orderOf(state.view, state.direction());
  const query = queryOf({ ...state.view, ...order }).toString();
  return { query, isKnown: order.by === "number" && !states.length && !where, where };
}

/**
 * How many trials the table shows, in words.
 * @param {StudyState} state
 * @param {TrialOrder} order
 * @param {number} numShown
 * @returns {string}
 */
function shownWords(state, order, numShown) {
  if (!state.view.states.length && !state.view.where) return plural(state.numTrials, "trial");
  return order.isPending ? "filtering …" : `${count(numShown)} of ${count(state.numTrials)}`;
}
