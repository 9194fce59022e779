import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../../../api/static/format.js";

test("a number has four significant digits, and an exponent where it is tiny or huge", () => {
  const words = [0, 12.3, 0.95312, 1234567, 0.0003, -0.00012, 4096].map(format.num);
  assert.deepEqual(words, ["0", "12.3", "0.9531", "1.23e6", "3e-4", "-1.2e-4", "4,096"]);
  assert.deepEqual([null, undefined, "", "NaN"].map(format.num), ["–", "–", "–", "NaN"]);
});

test("what is counted before a training has no decimals", () => {
  const shown = [format.objectiveValue("predicted.parameters", 321), format.objectiveValue("accuracy", 1)];
  assert.deepEqual(shown, ["321", "1.0000"]);
});

test("metrics line up in a column", () => {
  assert.deepEqual([0.5, 0, 0.00012, 12345, null].map(format.metric), ["0.5000", "0.0000", "1.2e-4", "12,345", "–"]);
});

test("memory has a decimal below 100 MiB, and GiB in words from 10 GiB on", () => {
  assert.deepEqual([12.34, 99.96, 1234, 0, null].map(format.mib), ["12.3", "100.0", "1,234", "–", "–"]);
  assert.deepEqual(
    [0.0312, 0.94, 0.96].map(format.mib),
    ["0.031", "0.94", "1.0"],
    "what is small is not shown as zero",
  );
  assert.deepEqual([0.13, 5, 500, 10_100, 10 * 1024].map(format.mibWords), [
    "0.13 MiB",
    "5 MiB",
    "500 MiB",
    "10,100 MiB",
    "10.0 GiB",
  ]);
  assert.equal(format.mibWords(null), "–");
  assert.equal(format.toMib(3 * 2 ** 20), 3);
  assert.equal(format.toMib(0), null);
});

test("a duration has two units", () => {
  const words = [-1, 1.25, 9.96, 61, 3660, 90000, NaN].map(format.duration);
  assert.deepEqual(words, ["0 s", "1.3 s", "9 s", "1 m 01 s", "1 h 01 m", "1 d 1 h", "–"]);
});

test("a value of a metric has at most six digits", () => {
  assert.deepEqual([0.87654321, 12.34567, 131.91234, 9876.54321].map(format.metric), [
    "0.8765",
    "12.346",
    "131.91",
    "9876.5",
  ]);
});

test("the time of a step has three digits", () => {
  assert.deepEqual([0.0012345, 0.25, 1.2345, 75, null].map(format.stepWords), [
    "1.23 ms",
    "250 ms",
    "1.23 s",
    "1 m 15 s",
    "–",
  ]);
});

test("the time since its launch ends with a trial", () => {
  assert.equal(format.secondsSinceLaunch({ started_at: null }), null);
  assert.equal(format.secondsSinceLaunch({ started_at: 10, finished_at: 15 }), 5);
  assert.equal(format.secondsSinceLaunch({ started_at: 10, finished_at: null }, 30), 20);
});

test("a trial takes the time of its attempts, of which it trains a part", () => {
  const ended = { created_at: 7, started_at: 10, ended_at: 15 };
  const failed = { created_at: 30, started_at: null, ended_at: 40 };
  assert.equal(format.attemptSeconds([failed], "started_at"), null);
  assert.equal(format.attemptSeconds([ended, failed], "started_at"), 5);
  assert.equal(format.attemptSeconds([ended, failed], "created_at"), 18);
  assert.equal(format.attemptSeconds([ended, { ...failed, ended_at: null }], "created_at", 60), 38);
});

test("parameters that are the same in all trials are left out of the line", () => {
  assert.equal(format.paramsLine({ depth: 4, lr: 0.001, act: "gelu" }, { act: "gelu" }), "depth 4 · lr 0.001");
});

test("a plan is described with its effective batch, or why there is none", () => {
  assert.equal(format.planWords({ plan_text: "one rank", batch: 1024 }), "one rank; effective batch 1,024");
  assert.equal(format.planWords({ plan_text: "", state: "INFEASIBLE" }), "No plan fits");
  assert.equal(format.planWords({ plan_text: "", state: "COMPLETED" }), "It was measured elsewhere, not trained here");
  assert.equal(format.microBatch({ num_micro_batches: 4, micro_batch: 8 }), "4 × 8");
});

test("ages are rough", () => {
  assert.deepEqual(
    [30, 90, 7200, 200_000].map((age) => format.ago(1e6 - age, 1e6)),
    ["just now", "1 min ago", "2 h ago", "2 d ago"],
  );
});

test("lists, null and repeated blocks are shown as parameters, and absent ones are left out", () => {
  const layers = [
    { op: "conv", kernel: [3, 3] },
    { op: "skip", width: 1024 },
  ];
  assert.equal(format.paramValue(layers), "op conv, kernel [3,3] | op skip, width 1,024");
  assert.deepEqual([null, [1, null], [], {}].map(format.paramValue), ["null", "[1,null]", "[]", ""]);
  assert.equal(format.paramsLine({ a: [1, 2], b: null, layers: [{ op: "x" }] }, { a: [1, 2] }), "b null · layers op x");
});

test("the project and the priority of a study are named where they are not the usual ones", () => {
  assert.deepEqual(format.placeWords({}), []);
  assert.deepEqual(format.placeWords({ project: "default", priority: 0 }), []);
  assert.deepEqual(format.placeWords({ project: "vision", priority: -3 }), ["project vision", "priority -3"]);
});
