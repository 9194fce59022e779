import assert from "node:assert/strict";
import { test } from "node:test";
import { TrialOrder } from "../../../api/static/study/table/order.js";
import { ShownColumns } from "../../../api/static/study/table/shown_columns.js";

const BY_VALUE = { query: "sort=best", where: "" };

function numbersIn(rows) {
  return Array.from({ length: rows.length }, (_, index) => rows.at(index));
}

function refusal(status) {
  return Object.assign(new Error("unknown name"), { status });
}

test("an answer that comes after a later question is dropped", async () => {
  const answers = new Map();
  const wanted = { ...BY_VALUE };
  const order = new TrialOrder(
    () => ({ ...wanted }),
    (query) => new Promise((resolve) => answers.set(query, resolve)),
  );
  const first = order.fetch();
  wanted.query = "sort=lr";
  assert.ok(order.isOutdated);
  const second = order.fetch();
  answers.get("sort=lr")({ number: [2, 0, 1], num_trials: 3 });
  assert.equal(await second, "");
  answers.get("sort=best")({ number: [0, 1, 2], num_trials: 3 });
  assert.equal(await first, null);
  assert.deepEqual(numbersIn(order.rows(3, false)), [2, 0, 1]);
  assert.ok(!order.isPending && !order.isOutdated);
});

test("the first numbers come first, and all once somebody scrolls beyond them", async () => {
  const limits = [];
  const wanted = { ...BY_VALUE };
  const order = new TrialOrder(
    () => ({ ...wanted }),
    async (query, limit) => {
      limits.push(limit);
      return { number: limit ? [4, 2] : [4, 2, 0], num_trials: 3 };
    },
  );
  assert.ok(order.isComing && order.rows(3, false).length === 0, "no rows that would be replaced at once");
  await order.fetch();
  assert.deepEqual(numbersIn(order.rows(3, false)), [4, 2, undefined]);
  assert.ok(order.wantWhole() && !order.wantWhole());
  await order.fetch();
  await order.fetch();
  assert.deepEqual(numbersIn(order.rows(3, false)), [4, 2, 0]);
  wanted.query = "sort=lr";
  await order.fetch();
  assert.ok(limits[0] > 0);
  assert.deepEqual(limits, [limits[0], null, null, limits[0]]);
});

test("a mistake in the user's filter is told, and any other error is raised", async () => {
  const wanted = { ...BY_VALUE, where: "lrr < 1" };
  let status = 422;
  const order = new TrialOrder(
    () => wanted,
    async () => {
      throw refusal(status);
    },
  );
  assert.equal(await order.fetch(), "unknown name");
  assert.deepEqual(numbersIn(order.rows(2, true)), [1, 0], "by number while no order is known");
  status = 500;
  await assert.rejects(order.fetch());
  assert.ok(!order.isPending);
});

function stateOf(objectives) {
  return {
    studyId: 1,
    study: { spec: { fixed: {}, space: { lr: { low: 0, high: 1 } }, objective: objectives[0], objectives } },
    parameterNames: ["lr"],
    view: { columns: null },
    direction: () => objectives[0].direction,
  };
}

test("several objectives take the place of the value, and a chosen column of none is left out", () => {
  const [accuracy, loss] = [
    { metric: "accuracy", direction: "maximize" },
    { metric: "loss", direction: "minimize" },
  ];
  const several = new ShownColumns(stateOf([accuracy, loss]));
  const keys = several.shown().map(({ key }) => key);
  assert.ok(keys.includes("values.0") && keys.includes("values.1") && !keys.includes("value"));
  const one = new ShownColumns(stateOf([accuracy]));
  one.state.view.columns = ["number", "values.1", "value"];
  assert.deepEqual(
    one.shown().map(({ key }) => key),
    ["number", "value"],
  );
});
