// Who has submitted and changed the study; hidden where there are no users.

import { request } from "../client.js";
import { aside, card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { h } from "../elements/dom.js";
import { dateTime, detailWords } from "../format.js";

/** @import { AuditView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const COLUMNS = [{ name: "When" }, { name: "Who" }, { name: "What" }, { name: "Detail" }];
const SHOWN = 50;

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function changesPanel({ state, page }) {
  const body = h("tbody", { id: "study-changes" });
  const table = h("table", { class: "plain" }, tableHead(COLUMNS), body);
  const section = card(
    { id: "changes", title: "Changes", beside: aside("changes", `the newest ${SHOWN}`), hidden: true },
    scrolling("changes", "scroll list stacks", table),
  );
  /** @type {AuditView[]} */
  let changes = [];
  const refresh = page.refresher(load, 3000);

  async function load() {
    changes = (await request(`/v1/studies/${state.studyId}/changes?limit=${SHOWN}`)).items;
    state.changed("changes");
  }

  return {
    card: section,
    shows: ["changes"],
    draw() {
      section.hidden = !changes.some(({ actor }) => actor);
      fillRows(body, changes, {
        columns: COLUMNS,
        empty: "Nothing was changed yet.",
        keyOf: ({ id }) => String(id),
        create,
        update: () => {},
      });
    },
    load,
    on: { study: () => refresh("study") },
  };
}

/** @param {AuditView} change */
function create({ time, actor, action, detail }) {
  const cells = [dateTime(time), actor || "–", action, detailWords(detail)];
  return {
    node: h(
      "tr",
      {},
      cells.map((words) => h("td", { class: "wrap" }, words)),
    ),
  };
}
