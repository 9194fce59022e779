import assert from "node:assert/strict";
import { test } from "node:test";
import { StudyState } from "../../../api/static/study/state.js";

/** A state with trials 0 (running, in the table) and 1 (in the history alone), and the fields that changed since. */
function known() {
  const state = new StudyState(7, 200);
  state.setStudy({
    spec: { objective: { metric: "accuracy", direction: "maximize" } },
    trials: { RUNNING: 2 },
    summary: { best_metrics: { loss: 1 } },
  });
  state.keepHistory({
    id: [10, 11],
    number: [0, 1],
    state: ["RUNNING", "RUNNING"],
    step: [5, 5],
    value: [0.1, 0.2],
    num_trials: 2,
    leading: [0, 1],
  });
  state.keepRows([
    {
      id: 10,
      number: 0,
      state: "RUNNING",
      step: 5,
      value: 0.1,
      attempt: 1,
      num_ranks: 2,
      predicted_mib: 20,
      measured_mib: 19,
    },
  ]);
  state.keepCurves("accuracy", [{ trial_id: 10, number: 0, step: [5], value: [0.1] }]);
  const changes = new Set();
  state.watch((field) => changes.add(field));
  return { state, changes };
}

function metrics(id, step, values) {
  return { trial_id: id, data: { step, values } };
}

test("an evaluation reaches the row, the history and the curve of its trial", () => {
  const { state, changes } = known();
  state.on.metrics(metrics(10, 10, { accuracy: 0.3, loss: 2, auc: 0.5 }));
  assert.equal(state.rows.get(0).value, 0.3);
  assert.deepEqual(state.points.get(0), { id: 10, number: 0, state: "RUNNING", step: 10, value: 0.3 });
  assert.deepEqual(state.curves.lines.get(0).points, [
    [5, 0.1],
    [10, 0.3],
  ]);
  assert.deepEqual([...state.curves.metricNames], ["loss", "accuracy", "auc"]);
  assert.deepEqual([...changes].sort(), ["curves", "points", "rows"]);
});

test("an evaluation of a trial that has no row moves its point alone", () => {
  const { state, changes } = known();
  state.on.metrics(metrics(11, 10, { accuracy: 0.4 }));
  assert.equal(state.points.get(1).value, 0.4);
  assert.ok(!state.rows.has(1));
  assert.deepEqual([...changes], ["points"]);
});

test("an evaluation of an unknown trial, or without a finite objective, changes no value", () => {
  const { state, changes } = known();
  state.on.metrics(metrics(99, 10, { accuracy: 0.4 }));
  state.on.metrics(metrics(10, 10, { accuracy: null }));
  assert.equal(state.rows.get(0).value, 0.1);
  assert.deepEqual([...changes], []);
});

test("a replayed evaluation does not draw a curve backwards", () => {
  const { state } = known();
  state.on.metrics(metrics(10, 5, { accuracy: 0.3 }));
  assert.deepEqual(state.curves.lines.get(0).points, [[5, 0.1]]);
});

test("a trial's event moves its row and keeps what the event does not carry", () => {
  const { state } = known();
  state.on.trial({ trial_id: 10, data: { id: 10, number: 0, state: "COMPLETED", value: 0.9, step: 20, attempt: 1 } });
  const { num_ranks: numRanks, predicted_mib: predicted, state: now } = state.rows.get(0);
  assert.deepEqual([numRanks, predicted, now], [2, 20, "COMPLETED"]);
  assert.equal(state.points.get(0).state, "COMPLETED");
  assert.equal(state.curves.lines.get(0).trial.state, "COMPLETED");
  assert.deepEqual(state.runningRows, []);
});

test("a new trial has a point once it was launched, and its curve is drawn", () => {
  const { state } = known();
  const data = { id: 12, number: 2, state: "QUEUED", value: null, step: -1, attempt: 0 };
  state.on.trial({ trial_id: 12, data });
  assert.ok(!state.points.has(2) && !state.curves.leading.includes(2));
  state.on.trial({ trial_id: 12, data: { ...data, state: "RUNNING", attempt: 1 } });
  assert.ok(state.points.has(2) && state.curves.leading.includes(2));
});

test("with a filter only the server adds trials to the history and the curves", () => {
  const { state } = known();
  state.look({ where: "lr < 1e-3" });
  assert.ok(state.isFiltered);
  state.on.trial({ trial_id: 12, data: { id: 12, number: 2, state: "RUNNING", attempt: 1, value: null } });
  assert.deepEqual([state.points.has(2), state.curves.leading], [false, [0, 1]]);
  state.on.metrics({ trial_id: 11, data: { values: { accuracy: 0.7 }, step: 9 } });
  assert.equal(state.points.get(1).value, 0.7);
});

test("no more than 200 curves are drawn", () => {
  const { state } = known();
  for (let number = 2; number < 300; number += 1) state.lead(number);
  assert.equal(state.curves.leading.length, 200);
  assert.ok(state.curves.hasMost);
});

test("the history asks to be thinned again when it has grown", () => {
  const { state } = known();
  for (let number = 0; number <= 3000; number += 1)
    state.keepPoint({ id: number, number, state: "COMPLETED", step: 1, value: 1 });
  assert.ok(state.isCrowded);
  state.keepHistory({
    id: [1],
    number: [1],
    state: ["COMPLETED"],
    step: [1],
    value: [1],
    num_trials: 3001,
    leading: [1],
  });
  assert.ok(!state.isCrowded);
  assert.deepEqual([...state.curves.lines.keys()], [], "the curve of a trial that no longer leads is forgotten");
});

test("the oldest rows are forgotten, but none that runs", () => {
  const { state } = known();
  state.keepRows(Array.from({ length: 4000 }, (_, at) => ({ id: 100 + at, number: 100 + at, state: "COMPLETED" })));
  assert.equal(state.rows.size, 3000);
  assert.ok(state.rows.has(0) && !state.rows.has(100) && state.rows.has(4099));
});

test("curves of another metric that arrive late are not drawn", () => {
  const { state } = known();
  state.curves.choose("loss");
  state.keepCurves("accuracy", [{ trial_id: 10, number: 0, step: [5], value: [0.1] }]);
  assert.equal(state.curves.lines.size, 0);
});

test("peaks are kept in MiB", () => {
  const { state } = known();
  state.keepPeaks([{ number: 0, attempts: [{ attempt: 1, predicted_bytes: 2 ** 21, measured_bytes: 0 }] }]);
  const [peak] = state.peaks.get(0).attempts;
  assert.deepEqual([peak.predicted_mib, peak.measured_mib], [2, null]);
});
