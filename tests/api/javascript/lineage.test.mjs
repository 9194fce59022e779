import assert from "node:assert/strict";
import { test } from "node:test";
import { isBlocks, looks, runs } from "../../../api/static/elements/architecture.js";
import { ancestors, bars, copyWords } from "../../../api/static/study/lineage.js";

const ITEMS = [
  { number: 3, origin: "SEARCH", parent_number: null, parent_step: null, step: 100 },
  { number: 7, origin: "BRANCH", parent_number: 3, parent_step: 40, step: 150 },
  { number: 8, origin: "SEARCH", parent_number: 7, parent_step: 100, step: 100 },
  { number: 9, origin: "BRANCH", parent_number: 8, parent_step: 50, step: 100 },
  { number: 4, origin: "BRANCH", parent_number: 1, parent_step: 20, step: 50 },
];

test("a bar begins where the trial left its parent, which may not be drawn", () => {
  assert.deepEqual(bars(ITEMS), [
    { row: 0, from: 0, to: 0.5, parentRow: null },
    { row: 1, from: 0.2, to: 0.75, parentRow: 0 },
    { row: 2, from: 0.5, to: 1, parentRow: 1 },
    { row: 3, from: 0.75, to: 1, parentRow: 2 },
    { row: 4, from: 0.1, to: 0.25, parentRow: null },
  ]);
  assert.deepEqual([...ancestors(ITEMS, 9)], [9, 8, 7, 3]);
  assert.deepEqual([...ancestors([{ number: 1, parent_number: 1 }], 1)], [1]);
});

test("a copy says what was changed", () => {
  const changes = [
    { name: "lr", before: 0.001, after: 0.0012 },
    { name: "momentum", before: null, after: 0.9 },
  ];
  assert.equal(
    copyWords({ origin: "BRANCH", parent_number: 3, parent_step: 1400, changes }),
    "lr 0.001 → 0.0012, momentum none → 0.9 (copy of 3 at step 1,400)",
  );
  assert.equal(
    copyWords({ origin: "SEARCH", parent_number: 3, parent_step: 2, changes: [] }, "epoch"),
    "weights of 3 at epoch 2",
  );
});

test("equal neighbours are one box, with the width of a number and the colour of a choice", () => {
  const conv = { op: "conv", width: 64 };
  const blocks = [conv, conv, { op: "mlp", width: 32, act: null }, conv];
  assert.deepEqual(
    runs(blocks).map(({ first, times }) => [first, times]),
    [
      [0, 2],
      [2, 1],
      [3, 1],
    ],
  );
  assert.deepEqual(looks(blocks), { size: "width", kind: "op" });
  assert.deepEqual(looks([{ bias: true }]), { size: null, kind: null });
  assert.ok(isBlocks(blocks) && !isBlocks([]) && !isBlocks([1, 2]) && !isBlocks(null));
});
