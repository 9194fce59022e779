import assert from "node:assert/strict";
import { test } from "node:test";
import { rowsInView } from "../../../api/static/elements/table.js";
import { LIVE_STUDY, TERMINAL, TRIAL_STATES, label, numIn, shape } from "../../../api/static/states.js";
import { progressWords, devicesInUse } from "../../../api/static/studies/list.js";
import { trialColumns } from "../../../api/static/study/table/columns.js";
import { inOrder } from "../../../api/static/study/table/order.js";
import { objectiveFirst } from "../../../api/static/trial/curves.js";

test("only the rows in view and some around them are created", () => {
  assert.deepEqual(rowsInView(0, 320, 5), [0, 5]);
  const [first, after] = rowsInView(32_000, 320, 100_000);
  assert.ok(first < 1000 && after > 1010 && after - first < 40);
  assert.deepEqual(rowsInView(0, 320, 0), [0, 0]);
});

test("numbers in order need no array", () => {
  for (const [order, numbers] of [
    [inOrder(3, false), [0, 1, 2]],
    [inOrder(3, true), [2, 1, 0]],
  ]) {
    assert.equal(order.length, 3);
    assert.deepEqual([0, 1, 2].map(order.at), numbers);
  }
});

test("the curve of the objective comes first, the others by name", () => {
  const curves = ["loss", "accuracy", "auc"].map((metric) => ({ metric }));
  assert.deepEqual(
    objectiveFirst(curves, "loss").map((curve) => curve.metric),
    ["loss", "accuracy", "auc"],
  );
});

test("every state has a shape of its own", () => {
  assert.equal(new Set(TRIAL_STATES.map(shape)).size, TRIAL_STATES.length);
  assert.ok([...TERMINAL].every((state) => TRIAL_STATES.includes(state)));
  assert.equal(label("INFEASIBLE"), "Infeasible");
  assert.ok(LIVE_STUDY.has("STOPPING") && !LIVE_STUDY.has("STOPPED"));
});

test("trials are counted by state", () => {
  const counts = { COMPLETED: 3, FAILED: 1, RUNNING: 2 };
  assert.equal(numIn(counts), 6);
  assert.equal(
    numIn(counts, (state) => TERMINAL.has(state)),
    4,
  );
  const study = { trials: counts, spec: { budget: { trials: 12 } } };
  assert.equal(progressWords(study), "4 of 12 done, 2 running");
});

test("devices of a study are those with one of its gangs", () => {
  const cluster = {
    devices: [{ gangs: [{ study_id: 1 }, { study_id: 1 }] }, { gangs: [{ study_id: 2 }] }, { gangs: [] }],
  };
  assert.equal(devicesInUse(cluster, 1), 1);
  assert.equal(devicesInUse(null, 1), 0);
});

test("columns show a trial as text", () => {
  const trial = {
    value: 0.5,
    deviations: [],
    params: { depth: 4, act: "gelu" },
    plan_short: "TP ×2",
    plan_text: "tensor parallel",
    batch: 16,
    plan: { num_micro_batches: 4, micro_batch: 4, recompute: false },
    predicted_mib: 12.34,
    measured_mib: null,
    reserved_mib: 20,
    attempt: 2,
    num_oom: 1,
    num_lost: 0,
    healed: true,
    started_at: 10,
    finished_at: 70,
  };
  const shown = {};
  for (const column of trialColumns(1, () => ({ act: "gelu" }))) {
    if (["number", "state", "reason"].includes(column.key)) continue; // they have elements
    const cell = { textContent: "", title: "" };
    column.cell(cell, trial);
    shown[column.key] = cell.textContent;
    if (column.key === "attempts") assert.equal(cell.title, "1 × out of memory, healed by a new plan");
  }
  assert.deepEqual(shown, {
    value: "0.5000",
    params: "depth 4",
    ranks: "TP ×2",
    batch: "16",
    micro_batch: "4 × 4",
    recompute: "no",
    predicted: "12.3",
    measured: "–",
    reserved: "20",
    attempts: "2 · 1 OOM",
    seconds: "1 m 00 s",
  });
});
