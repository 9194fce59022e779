import assert from "node:assert/strict";
import { test } from "node:test";
import { differences } from "../../../api/static/compare/differences.js";
import { CompareState } from "../../../api/static/compare/state.js";

const study = (id, metric = "accuracy", direction = "maximize") => ({ id, spec: { objective: { metric, direction } } });
const history = {
  number: [2, 0, 1, 3],
  state: ["COMPLETED", "COMPLETED", "PRUNED", "COMPLETED"],
  value: [0.7, 0.5, 0.9, 0.6],
};

test("the address chooses studies, otherwise the two newest are", () => {
  const [named, newest] = [new CompareState([3, 0, NaN]), new CompareState([])];
  for (const state of [named, newest]) {
    state.keep([1, 2, 3].map((id) => study(id)));
    state.chooseFirst();
  }
  assert.deepEqual([...named.chosen], [3]);
  assert.deepEqual([...newest.chosen], [3, 2]);
  assert.equal(newest.colourOf(2), "g0");
});

test("only studies with the one objective of the newest are drawn together", () => {
  const state = new CompareState([1, 2, 3, 4]);
  const several = { id: 4, spec: { objectives: [{}, {}], objective: {} } };
  state.keep([study(1), study(2, "loss", "minimize"), study(3), several]);
  assert.deepEqual(
    state.comparable.map(({ id }) => id),
    [3, 1],
  );
});

test("the best value so far counts completed trials, in the order of their numbers", () => {
  const state = new CompareState([1]);
  state.keep([study(1)]);
  assert.deepEqual(state.bestOf(study(1)), []);
  state.keepHistory(1, history);
  assert.deepEqual(state.bestOf(study(1)), [
    [1, 0.5],
    [2, 0.5],
    [3, 0.7],
    [4, 0.7],
  ]);
});

test("only options that differ are listed, with a dash where a study lacks one", () => {
  const one = { name: "a", space: { lr: { low: 0.1, high: 1 } }, budget: { trials: 8, seconds: null }, tags: ["x"] };
  const other = { name: "b", space: { lr: { low: 0.1, high: 2, log: true } }, budget: { trials: 8 }, tags: ["x"] };
  assert.deepEqual(differences([one, other]), [
    ["space.lr.high", "1", "2"],
    ["space.lr.log", "–", "true"],
  ]);
  assert.deepEqual(differences([one, one]), []);
});
