// The webhooks and e-mails about the study, if it names receivers, and a button that sends a test.

import * as api from "../client.js";
import { card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { h, setText } from "../elements/dom.js";
import { toast } from "../elements/notices.js";
import { dateTime, plural } from "../format.js";

/** @import { DeliveryView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

const COLUMNS = [{ name: "Due" }, { name: "About" }, { name: "To" }, { name: "Result" }, { name: "Text" }];
const SHOWN = 20;

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function noticesPanel({ state, page }) {
  const body = h("tbody", { id: "deliveries" });
  const props = { type: "button", class: "for-editors", id: "test-receivers", onclick: sendTest };
  const test = h("button", props, "Send a test");
  const table = h("table", { class: "plain" }, tableHead(COLUMNS), body);
  const section = card(
    { id: "notices", title: "Notices", beside: [test], hidden: true },
    scrolling("notices", "scroll list stacks", table),
  );
  /** @type {DeliveryView[]} */
  let deliveries = [];
  const isShown = () => Boolean(state.study.spec.notify?.length);
  const refresh = page.refresher(load, 3000);

  async function load() {
    if (!isShown()) return;
    deliveries = (await api.deliveries(state.studyId, SHOWN)).items;
    state.changed("deliveries");
  }

  function sendTest() {
    page.run(async () => {
      const tests = await api.testReceivers(state.studyId);
      toast(
        `A test is on its way to ${plural(tests.length, "receiver")}; its result is in the list of notices.`,
        "info",
      );
      await load();
    });
  }

  return {
    card: section,
    shows: ["study", "deliveries"],
    restMs: 200,
    draw() {
      section.hidden = !isShown();
      fillRows(body, deliveries, {
        columns: COLUMNS,
        empty: "Nobody was told anything yet.",
        keyOf: ({ id }) => String(id),
        create,
        update,
      });
    },
    load,
    everyMs: 3000,
    tick: () => deliveries.some(({ state: is }) => is === "WAITING") && refresh("waiting"),
    on: { study: () => refresh("study"), trial: () => refresh("trial") },
  };
}

/**
 * What came of a delivery.
 * @param {Pick<DeliveryView, "state" | "answer" | "num_attempts" | "next_at">} delivery
 * @returns {string}
 */
export function resultWords({ state, answer, num_attempts: attempts, next_at: next }) {
  const is = { WAITING: attempts ? "not yet delivered" : "waits", DELIVERED: "delivered", GIVEN_UP: "given up" }[state];
  const tried = attempts > 1 ? [`${attempts} attempts`] : [];
  const again = next && attempts ? [`again at ${dateTime(next)}`] : [];
  return [answer ? `${is}: ${answer}` : is, ...tried, ...again].join(", ");
}

/** @param {DeliveryView} delivery */
function create({ created_at: due, kind, to, text }) {
  const result = h("td", { class: "wrap" });
  const cells = [
    h("td", {}, dateTime(due)),
    h("td", {}, kind),
    h("td", {}, to),
    result,
    h("td", { class: "wrap" }, text),
  ];
  return { node: h("tr", {}, cells), result };
}

/**
 * @param {ReturnType<typeof create>} row
 * @param {DeliveryView} delivery
 */
function update(row, delivery) {
  setText(row.result, resultWords(delivery));
}
