import assert from "node:assert/strict";
import { test } from "node:test";
import { extent, oneTwoFive, padded, tickSize } from "../../../api/static/charts/scales.js";
import { aligned, bestSoFar, byNumber } from "../../../api/static/charts/series.js";

test("the extent of many values does not overflow the stack", () => {
  const many = Array.from({ length: 300_000 }, (_, at) => at);
  assert.deepEqual(extent(many), [0, 299_999]);
});

test("an axis has room at both ends, also with one value or none", () => {
  assert.deepEqual(padded(0, 10, 0.1), [-1, 11]);
  assert.deepEqual(padded(5, 5), [4.5, 5.5]);
  assert.deepEqual(padded(0, 0), [-1, 1]);
  assert.deepEqual(padded(...extent([])), [0, 1]);
});

test("logarithmic ticks are 1, 2 and 5 times powers of ten, at most nine", () => {
  assert.deepEqual(oneTwoFive(0.04, 1.5), [0.05, 0.1, 0.2, 0.5, 1]);
  assert.deepEqual(oneTwoFive(0.001, 10), [0.001, 0.01, 0.1, 1, 10]);
});

test("the size of a tick is the least of 1, 2 and 5 times a power of ten with few enough ticks", () => {
  assert.deepEqual([tickSize(100, 10), tickSize(100, 9), tickSize(0.161, 8), tickSize(7, 7)], [10, 20, 0.05, 1]);
});

test("the best value so far follows completed trials alone, in the study's direction", () => {
  const points = byNumber([
    { number: 2, state: "COMPLETED", value: 0.4 },
    { number: 0, state: "RUNNING", value: 0.9 },
    { number: 1, state: "COMPLETED", value: 0.5 },
    { number: 3, state: "COMPLETED", value: null },
  ]);
  assert.deepEqual(
    points.map((point) => point.number),
    [0, 1, 2, 3],
  );
  assert.deepEqual(bestSoFar(points, "maximize"), [null, 0.5, 0.5, 0.5]);
  assert.deepEqual(bestSoFar(points, "minimize"), [null, 0.5, 0.4, 0.4]);
});

test("lines that were evaluated at other steps share one column of steps", () => {
  const lines = [
    {
      points: [
        [10, 0.1],
        [30, 0.3],
      ],
    },
    { points: [[20, 0.2]] },
  ];
  assert.deepEqual(aligned(lines), [
    [10, 20, 30],
    [0.1, undefined, 0.3],
    [undefined, 0.2, undefined],
  ]);
});
