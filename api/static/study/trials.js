// The table of all trials. The server sorts and filters it, and only the rows that are seen are fetched.

import * as api from "../client.js";
import { aside, card, scrolling } from "../elements/card.js";
import { h, keyed, setText } from "../elements/dom.js";
import { stateMark } from "../elements/marks.js";
import { PagedTable } from "../elements/table.js";
import { count, plural } from "../format.js";
import { LIVE_STUDY, TRIAL_STATES } from "../states.js";
import { trialColumns } from "./columns.js";

export function trialsPanel({ state, page, feeds, open }) {
  const beside = aside("trials");
  const filters = h("div", { class: "filters", id: "filters", role: "group", "aria-label": "Show trials by state" });
  const box = scrolling("trials", "rows scroll");
  box.id = "trials";
  const chosen = new Set(); // states that are shown; all of them if it is empty
  let order = null; // numbers of the trials in the table; null: by number, all of them
  let lit = null; // number of the trial under the pointer in another panel

  const table = new PagedTable(box, {
    columns: trialColumns(state.studyId, () => state.study.spec.fixed),
    caption: "Trials of this study",
    sortBy: "number",
    empty: () =>
      state.numTrials
        ? "No trial is in the selected states. Select another state above."
        : "No trial has been proposed yet.",
    rowAt: (number) => state.rows.get(number),
    rowClass: (number) => `${number === state.study.best?.trial ? "best" : ""} ${number === lit ? "lit" : ""}`,
    onMissing: (missing) => missing.forEach((number) => feeds.fetchRow(number)),
    onSort: () => page.run(sort),
    onOpen: (number) => open({ number }),
    onHover: (trial) => page.point(panel, trial),
  });
  const refreshOrder = page.refresher(async () => order && sort(), 2000);

  /** Fetch the order of the rows, unless it is that of the numbers, which is known. */
  async function sort() {
    const asked = { by: table.sortBy, descending: table.descending, states: [...chosen] };
    const isKnown = asked.by === "number" && !asked.states.length;
    const found = isKnown ? null : await api.order(state.studyId, asked);
    const isCurrent =
      asked.by === table.sortBy && asked.descending === table.descending && asked.states.join() === [...chosen].join();
    if (!isCurrent) return; // another click came later
    order = found;
    state.changed("order");
  }

  function toggle(each) {
    if (!chosen.delete(each)) chosen.add(each);
    state.changed("order");
    page.run(sort);
  }

  function drawFilters() {
    keyed(
      filters,
      TRIAL_STATES.filter((each) => state.study.trials[each]),
      (each) => each,
      (each) =>
        h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle(each) }, stateMark(each), h("b")),
      (button, each) => {
        setText(button.lastChild, count(state.study.trials[each]));
        const pressed = String(chosen.has(each));
        if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
      },
    );
  }

  const panel = {
    card: card({ id: "trials", title: "Trials", beside }, filters, box),
    shows: ["study", "rows", "order"],
    restMs: 100,
    draw() {
      drawFilters();
      const total = state.numTrials;
      const shown = order ?? inOrder(total, table.descending);
      setText(beside, chosen.size ? `${count(shown.length)} of ${count(total)}` : plural(total, "trial"));
      table.setOrder(shown);
    },
    on: {
      trial: () => order && refreshOrder("trial"),
      metrics({ trial_id: id, data }) {
        const hasValue = state.numbers.has(id) && state.objectiveIn(data.values) !== null;
        if (hasValue && order && table.sortBy === "value") refreshOrder("value");
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

/** The numbers below `total`, in order, without an array of them. */
export function inOrder(total, descending) {
  return { length: total, at: (index) => (descending ? total - 1 - index : index) };
}
