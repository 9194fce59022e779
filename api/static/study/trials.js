// The table of all trials. The server sorts and filters it, and only the rows that are seen are fetched. Its columns,
// order and filter are in the page's address; what the filter leaves is also what the charts of parameters show.

import * as api from "../client.js";
import { card, scrolling } from "../elements/card.js";
import { columnChooser } from "../elements/column_chooser.js";
import { h, keyed, setText } from "../elements/dom.js";
import { stateMark } from "../elements/marks.js";
import { PagedTable } from "../elements/table.js";
import { count, plural } from "../format.js";
import { LIVE_STUDY, TRIAL_STATES } from "../states.js";
import { objectiveColumns, parameterColumn, trialColumns } from "./columns.js";
import { added, defaultColumns, moved, orderOf, parameterOf, queryOf, writeView } from "./table_view.js";

const TYPING_MS = 600;

export function trialsPanel({ state, page, feeds, open }) {
  const download = h("a", { class: "button", download: true }, "CSV");
  const counted = h("span", { id: "trials-aside" });
  const filters = h("div", { class: "filters", id: "filters", role: "group", "aria-label": "Show trials by state" });
  const box = scrolling("trials", "rows scroll");
  box.id = "trials";
  let order = null; // numbers of the trials in the table; null: by number, all of them
  let asked = ""; // query of the newest request for an order
  let isPending = false; // whether an order is being fetched
  let front = new Set(); // numbers of the trials on the Pareto front of a study with several objectives
  let lit = null; // number of the trial under the pointer in another panel
  let columns = ""; // keys of the columns that the table has, as text

  const { direction } = state;
  const isLargeFirst = () => direction() === "maximize";
  const standing = trialColumns(state.studyId, () => state.study.spec.fixed, isLargeFirst);
  const known = new Map(standing.map((column) => [column.key, column]));

  const table = new PagedTable(box, {
    columns: standing.filter((column) => !column.isExtra),
    caption: "Trials of this study",
    sortBy: "value",
    empty: () => (state.numTrials ? "No trial passes the filter. Change it above." : "No trial has been proposed yet."),
    rowAt: (number) => state.rows.get(number),
    rowClass: (number) => `${isBest(number) ? "best" : ""} ${number === lit ? "lit" : ""}`,
    onMissing: (missing) => missing.forEach((number) => feeds.fetchRow(number)),
    onSort(by, descending) {
      const isBest = by === "value" && descending === isLargeFirst();
      state.look({ sort: isBest ? "best" : by, descending: !isBest && descending });
    },
    onOpen: (number) => open({ number }),
    onHover: (trial) => page.point(panel, trial),
  });
  const isBest = (number) => number === state.study.best?.trial || front.has(number);
  const sortAgain = async () => order && sort();
  const [refreshSeen, refreshUnseen] = [2000, 10_000].map((restMs) => page.refresher(sortAgain, restMs));
  const refreshOrder = (key) => (page.sees(panel.card) ? refreshSeen(key) : refreshUnseen(key));
  const filter = filterForm(state);
  const [choose, chooser] = columnChooser({
    every: () => [...standing, ...objectiveColumns(state.study.spec), ...state.parameterNames.map(columnOf)],
    chosen: () => keys(),
    onChange: (chosen) => state.look({ columns: chosen }),
    added,
    moved,
  });

  const keys = () => state.view.columns ?? defaultColumns(withObjectives(), state.parameterNames);

  /** All columns but those of parameters; several objectives take the place of the value. */
  function withObjectives() {
    const several = objectiveColumns(state.study.spec);
    return several.length ? standing.flatMap((column) => (column.key === "value" ? several : [column])) : standing;
  }

  function columnOf(name) {
    return parameterColumn(name, state.study.spec.space[name]);
  }

  const wantedQuery = () => queryOf({ ...state.view, ...orderOf(state.view, direction()) }).toString();

  /** Fetch the order of the rows, unless it is that of the numbers, which is known. */
  async function sort() {
    const { by } = orderOf(state.view, direction());
    const { states, where } = state.view;
    const query = wantedQuery();
    asked = query;
    isPending = true;
    const isKnown = by === "number" && !states.length && !where;
    try {
      const found = isKnown ? null : await api.order(state.studyId, query);
      if (asked !== query) return; // another click came later
      order = found;
      filter.complain("");
    } catch (error) {
      if (error.status !== 422 || !where) throw error;
      if (asked === query) filter.complain(error.message);
    } finally {
      if (asked === query) isPending = false;
      state.changed("order");
    }
  }

  function toggle(each) {
    const { states } = state.view;
    state.look({ states: states.includes(each) ? states.filter((other) => other !== each) : [...states, each] });
  }

  function drawFilters() {
    keyed(
      filters,
      TRIAL_STATES.filter((each) => state.study.trials[each] || state.view.states.includes(each)),
      (each) => each,
      (each) =>
        h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle(each) }, stateMark(each), h("b")),
      (button, each) => {
        setText(button.lastChild, count(state.study.trials[each] ?? 0));
        const pressed = String(state.view.states.includes(each));
        if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
      },
    );
  }

  function drawColumns() {
    const wanted = keys();
    if (wanted.join() === columns) return;
    columns = wanted.join();
    const several = new Map(objectiveColumns(state.study.spec).map((column) => [column.key, column]));
    const shown = wanted.map((key) =>
      parameterOf(key) === null ? (known.get(key) ?? several.get(key)) : columnOf(parameterOf(key)),
    );
    table.setColumns(shown.filter(Boolean));
  }

  const panel = {
    card: card(
      { id: "trials", title: "Trials", beside: h("span", { class: "aside tools" }, counted, choose, download) },
      filter.form,
      filters,
      box,
      chooser,
    ),
    shows: ["study", "rows", "order", "view", "candidates"],
    restMs: 100,
    draw() {
      drawFilters();
      drawColumns();
      front = new Set(state.study.summary.front.map(({ trial }) => trial));
      const total = state.numTrials;
      const { by, descending } = orderOf(state.view, direction());
      const shown = order ?? inOrder(total, descending);
      const isPart = state.view.states.length || state.view.where;
      if (isPart && isPending) setText(counted, "filtering …");
      else setText(counted, isPart ? `${count(shown.length)} of ${count(total)}` : plural(total, "trial"));
      download.href = api.csvAddress(state.studyId, queryOf({ ...state.view, by, descending }));
      table.setSort(by, descending);
      table.setOrder(shown);
    },
    load() {
      state.watch((field) => {
        if (field !== "view") return;
        history.replaceState(history.state, "", `${location.pathname}${writeView(state.view)}${location.hash}`);
        if (wantedQuery() !== asked) page.run(sort);
      });
      return sort();
    },
    on: {
      trial: () => order && refreshOrder("trial"),
      metrics({ trial_id: id, data }) {
        const hasValue = state.numbers.has(id) && state.objectiveIn(data.values) !== null;
        if (hasValue && order && (table.sortBy === "value" || state.view.where)) refreshOrder("value");
      },
    },
    tick: () => LIVE_STUDY.has(state.study.state) && table.draw(),
    point(trial) {
      lit = trial?.number ?? null;
      table.draw();
    },
  };
  return panel;
}

/** The line in which a user writes a filter; `complain(words)` says what is wrong with it. */
function filterForm(state) {
  const input = h("input", {
    type: "search",
    id: "where",
    placeholder: "lr < 1e-3 and state == COMPLETED",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    maxlength: "600",
    "aria-describedby": "where-wrong",
    value: state.view.where,
  });
  const wrong = h("p", { id: "where-wrong", class: "wrong", role: "status" });
  const apply = () => input.value.trim() !== state.view.where && state.look({ where: input.value.trim() });
  let typing = null;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING_MS);
  });
  const help = h(
    "details",
    { class: "help" },
    h("summary", {}, "What can I write?"),
    h(
      "p",
      {},
      "Parameters and objectives by their names, and number, state, value, values, step, attempts, oom, parent, ranks, batch, predicted_mib, measured_mib, step_seconds, seconds, num_params, reason. ",
      "Compare them with <, <=, ==, !=, in [a, b], and join with and, or, not (…). Blocks are lists: layers[0].width > 64, size(layers) > 3. What a trial does not have is null.",
    ),
  );
  const form = h(
    "form",
    { class: "where", role: "search" },
    h("label", { for: "where" }, "Filter"),
    input,
    help,
    wrong,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    apply();
  });
  state.watch((field) => {
    if (field === "view" && document.activeElement !== input) input.value = state.view.where;
  });
  const complain = (words) => {
    setText(wrong, words);
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  return { form, complain };
}

/** The numbers below `total`, in order, without an array of them. */
export function inOrder(total, descending) {
  return { length: total, at: (index) => (descending ? total - 1 - index : index) };
}
