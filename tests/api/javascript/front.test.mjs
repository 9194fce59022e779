import assert from "node:assert/strict";
import { test } from "node:test";
import { staircase } from "../../../api/static/charts/front.js";
import { isSeveral, objectiveWords, objectivesOf } from "../../../api/static/objectives.js";
import { taskWords } from "../../../api/static/study/head.js";
import { objectiveColumns } from "../../../api/static/study/table/columns.js";

const ONE = { objective: { metric: "loss", direction: "minimize" }, objectives: [] };
const TWO = {
  objective: { metric: "accuracy", direction: "maximize" },
  objectives: [
    { metric: "accuracy", direction: "maximize" },
    { metric: "predicted.peak_mib", direction: "minimize" },
  ],
};

test("a study has one objective or several, also one of another tool", () => {
  assert.deepEqual([ONE, TWO].map(isSeveral), [false, true]);
  assert.equal(objectiveWords(TWO), "maximize accuracy and minimize predicted.peak_mib");
  const foreign = { objective: { metric: "value" }, directions: ["minimize", "maximize"] };
  assert.deepEqual(
    objectivesOf(foreign).map(({ metric }) => metric),
    ["value_0", "value_1"],
  );
  assert.equal(isSeveral({ objective: { metric: "value" }, directions: ["minimize"] }), false);
});

test("several objectives have a column each, with the better values first", () => {
  assert.deepEqual(objectiveColumns(ONE), []);
  const columns = objectiveColumns(TWO);
  assert.deepEqual(
    columns.map(({ key, name }) => [key, name]),
    [
      ["values.0", "accuracy"],
      ["values.1", "predicted.peak_mib"],
    ],
  );
  assert.deepEqual(
    columns.map((column) => column.isLargeFirst()),
    [true, false],
  );
  const cell = { textContent: "" };
  columns[1].cell(cell, { values: [0.9, null] });
  assert.equal(cell.textContent, "–");
});

test("the front in two of several objectives leaves out what is beaten in both", () => {
  const points = [
    [1, 5],
    [2, 3],
    [3, 4],
    [4, 1],
    [4, 2],
  ];
  assert.deepEqual(staircase(points, ["minimize", "minimize"]), [
    [1, 5],
    [2, 3],
    [4, 1],
  ]);
  assert.deepEqual(staircase(points, ["maximize", "maximize"]), [
    [1, 5],
    [3, 4],
    [4, 2],
  ]);
  assert.deepEqual(staircase([], ["minimize", "minimize"]), []);
});

test("the task of a study is one line, also of one that another program runs", () => {
  const foreign = {
    objective: { metric: "value", direction: "minimize" },
    directions: ["minimize"],
    workload: "optuna",
  };
  assert.equal(
    taskWords({ ...foreign, search: {}, stopping: { rule: "none" }, budget: { trials: 0, steps: 0 } }),
    "minimize value · optuna · run by another program",
  );
  const own = { ...TWO, workload: "vit_digits", search: { sampler: { name: "nsga2" } }, stopping: { rule: "asha" } };
  assert.equal(
    taskWords({ ...own, budget: { steps: 60 } }),
    "maximize accuracy and minimize predicted.peak_mib · vit_digits · nsga2, ASHA · 60 steps per trial",
  );
  assert.match(
    taskWords({ ...own, budget: { steps: 60 }, project: "vision" }),
    / · 60 steps per trial · project vision$/,
  );
});
