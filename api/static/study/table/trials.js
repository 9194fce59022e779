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

/** @import { MetricsEvent } from "../../answers.d.ts" */
/** @import { Trial } from "../../client.js" */
/** @import { Rows, TableOptions } from "../../elements/table.js" */
/** @import { Marked, Page, Panel } from "../../page.js" */
/** @import { StudyContext, StudyState } from "../state.js" */
/** @import { Wanted } from "./order.js" */

const SEEN_MS = 2000;
const UNSEEN_MS = 10_000;

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function trialsPanel(context) {
  return new TrialsPanel(context);
}

class TrialsPanel {
  /** @param {StudyContext} context */
  constructor({ state, page, feeds, open }) {
    this.state = state;
    this.page = page;
    this.seen = () => feeds.wantCandidates(); // which name the parameters of columns
    this.shows = ["study", "rows", "order", "view", "candidates"];
    this.restMs = 100;
    this.columns = new ShownColumns(state);
    this.drawnColumns = ""; // keys of the columns that the table has, as text
    this.order = new TrialOrder(
      () => wantedOrder(state),
      (query, limit) => api.order(state.studyId, query, limit),
    );
    this.marks = new RowMarks(state);
    this.table = trialTable(this.columns, {
      state,
      feeds,
      open,
      marks: this.marks,
      onHover: (trial) => page.point(this, trial),
      empty: () => this.emptyWords(),
      onBeyond: () => this.order.wantWhole() && page.run(() => this.sort()),
    });
    this.buttons = stateButtons(state);
    this.filter = filterForm(state);
    this.counted = h("span", { id: "trials-aside" });
    this.download = h("a", { class: "button", download: true }, "CSV");
    this.card = this.framed();
    this.refreshOrder = this.refresher(page);
    this.on = {
      trial: () => this.order.numbers && this.refreshOrder("trial"),
      metrics: (/** @type {MetricsEvent} */ event) => this.onMetrics(event),
    };
  }

  framed() {
    const { state, columns } = this;
    const [choose, chooser] = columnChooser({
      every: () => columns.every(),
      chosen: () => columns.keys(),
      onChange: (chosen) => state.look({ columns: chosen }),
      added,
      moved,
    });
    const beside = h("span", { class: "aside tools" }, this.counted, choose, this.download);
    const content = [this.filter.form, this.buttons.element, this.table.box, chooser];
    return card({ id: "trials", title: "Trials", beside }, ...content);
  }

  /**
   * A function that fetches the order again soon, and less often while the table is not seen.
   * @param {Page} page
   * @returns {(key: string) => void}
   */
  refresher(page) {
    const [seen, unseen] = [SEEN_MS, UNSEEN_MS].map((restMs) =>
      page.refresher(async () => this.order.numbers && this.sort(), restMs),
    );
    return (key) => (page.sees(this.card) ? seen(key) : unseen(key));
  }

  load() {
    const { state, page, order } = this;
    state.watch((field) => {
      if (field !== "view") return;
      history.replaceState(history.state, "", `${location.pathname}${writeView(state.view)}${location.hash}`);
      if (order.isOutdated) page.run(() => this.sort());
    });
    return this.sort();
  }

  async sort() {
    try {
      const complaint = await this.order.fetch();
      if (complaint !== null) this.filter.complain(complaint);
      this.setRows();
    } finally {
      this.state.changed("order");
    }
  }

  /**
   * Why there are no rows.
   * @returns {string}
   */
  emptyWords() {
    if (this.order.isComing) return "Loading …";
    return this.state.numTrials ? "No trial passes the filter. Change it above." : "No trial has been proposed yet.";
  }

  /** @param {MetricsEvent} event */
  onMetrics({ trial_id: id, data }) {
    const { state, order, table } = this;
    const hasValue = id !== null && state.numbers.has(id) && state.objectiveIn(data.values) !== null;
    const mayMove = table.sortBy === "value" || state.view.where;
    if (hasValue && order.numbers && mayMove) this.refreshOrder("value");
  }

  draw() {
    this.buttons.draw();
    this.drawColumns();
    this.marks.update();
    this.drawRows();
  }

  drawColumns() {
    const wanted = this.columns.keys().join();
    if (wanted === this.drawnColumns) return;
    this.drawnColumns = wanted;
    this.table.setColumns(this.columns.shown());
  }

  drawRows() {
    const { state, order, table } = this;
    const { by, descending } = orderOf(state.view, state.direction);
    setText(this.counted, shownWords(state, order, this.setRows().length));
    this.download.href = api.csvAddress(state.studyId, queryOf({ ...state.view, by, descending }).toString());
    table.setSort(by, descending);
  }

  /**
   * Let the table show the rows in their order, and return them.
   * @returns {Rows}
   */
  setRows() {
    const { state, order, table } = this;
    const rows = order.rows(state.numTrials, orderOf(state.view, state.direction).descending);
    table.setOrder(rows);
    return rows;
  }

  tick() {
    if (LIVE_STUDY.has(this.state.study.state)) this.table.draw();
  }

  /** @param {Marked | null} trial */
  point(trial) {
    this.marks.lit = trial?.number ?? null;
    this.table.draw();
  }
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
 * @param {Pick<StudyContext, "state" | "feeds" | "open"> & {marks: RowMarks} & Pick<TableOptions<Trial>, "empty" | "onBeyond" | "onHover">} options
 * @returns {PagedTable<Trial>}
 */
function trialTable(columns, { state, feeds, open, marks, ...more }) {
  const box = scrolling("trials", "rows scroll");
  box.id = "trials";
  return new PagedTable(box, {
    columns: columns.standing.filter((column) => !column.isExtra),
    caption: "Trials of this study",
    sortBy: "value",
    rowAt: (number) => state.rows.get(number),
    rowClass: (number) => marks.classOf(number),
    onMissing: (missing) => missing.forEach((number) => feeds.fetchRow(number)),
    onSort(by, descending) {
      const isBest = by === "value" && descending === (state.direction === "maximize");
      state.look({ sort: isBest ? "best" : by, descending: !isBest && descending });
    },
    onOpen: (number) => open({ number }),
    ...more,
  });
}

/**
 * What the page's address asks for; see `order.js`.
 * @param {StudyState} state
 * @returns {Wanted}
 */
function wantedOrder(state) {
  const { where } = state.view;
  const order = orderOf(state.view, state.direction);
  const query = queryOf({ ...state.view, ...order }).toString();
  return { query, where };
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
