import assert from "node:assert/strict";
import { test } from "node:test";
import { clamped, objectiveAxis, objectiveRange, placeAt, shareOf, ticks } from "../../../api/static/charts/axes.js";
import { groups, heights } from "../../../api/static/charts/parallel_lines.js";
import { nameInFilter, rangeTerm, withRange, withoutRange } from "../../../api/static/study/parameters/range_filter.js";
import { gridWords, parameterWords, sliceWords } from "../../../api/static/study/parameters/words.js";

const LR = { name: "lr", choices: null, low: 1e-4, high: 1e-2, log: true, place: [1e-4, 1e-3, 1e-2, null] };
const NORM = { name: "norm", choices: [null, "layer", [1, 2]], low: 0, high: 1, log: false, place: [0, 1, 1, 2] };

test("a place has a share of its axis, and back", () => {
  assert.ok(Math.abs(shareOf(LR, 1e-3) - 0.5) < 1e-9);
  assert.equal(shareOf(NORM, 1), 0.5);
  assert.equal(shareOf({ ...LR, high: 1e-4 }, 1e-4), 0.5);
  assert.ok(Math.abs(placeAt(LR, 0.5) - 1e-3) < 1e-9);
  assert.deepEqual(
    [-1, 0.34, 2].map((at) => placeAt(NORM, at)),
    [0, 1, 2],
  );
});

test("ticks are few and within the axis", () => {
  assert.deepEqual(
    ticks(NORM).map(({ text }) => text),
    ["null", "layer", "[1,2]"],
  );
  for (const [low, high, log] of [
    [0, 1, false],
    [-3, 12_000, false],
    [1e-6, 1, true],
    [2, 3, true],
    [5, 5, false],
  ]) {
    const found = ticks({ choices: null, low, high, log }, 5);
    assert.ok(found.length > 0 && found.length <= 6, `${found.length} from ${low} to ${high}`);
    assert.ok(found.every(({ at }) => at >= -1e-6 && at <= 1 + 1e-6));
  }
});

const texts = (/** @type {any} */ axis) => ticks(axis).map(({ text }) => text);

test("an axis of whole numbers has ticks at whole numbers only", () => {
  const depth = { choices: null, low: 1, high: 3, log: false, place: [1, 3, null, 2] };
  assert.deepEqual(texts(depth), ["1", "2", "3"]);
  assert.ok(texts({ ...depth, place: [1, 1.25] }).includes("1.5"));
});

test("nothing is an outlier where no direction is the better one", () => {
  const axis = objectiveAxis("norm", [1, 1, 1, 2, 1e9, 1], "");
  assert.deepEqual([axis.low, axis.high, axis.numOutside], [1, 1e9, 0]);
});

test("outliers at the worse end do not squash the others", () => {
  const values = [...Array.from({ length: 100 }, (_, index) => 1 + index / 100), 1e9];
  const axis = objectiveAxis("loss", values, "minimize");
  assert.equal(axis.low, 1);
  assert.ok(axis.high < 10 && axis.numOutside === 1);
  assert.equal(clamped(axis, 1e9), axis.high);
  const reversed = objectiveAxis(
    "score",
    values.map((value) => -value),
    "maximize",
  );
  assert.deepEqual([reversed.high, reversed.numOutside], [-1, 1]);
  assert.equal(objectiveAxis("loss", [2, 2], "minimize").numOutside, 0);
});

test("an objective that differs by magnitudes has a logarithmic axis", () => {
  const values = Array.from({ length: 50 }, (_, index) => 10 ** (-index / 10));
  const axis = objectiveAxis("loss", values, "minimize");
  assert.deepEqual([axis.log, axis.high, axis.numOutside], [true, 1, 0]);
  const [low, high] = objectiveRange(axis, 0.1);
  assert.ok(low > 0 && low < axis.low && high > 1);
  assert.ok(!objectiveAxis("score", [-1, 0, 1000], "maximize").log);
});

test("lines have a height on each axis, with the best value on top", () => {
  const found = heights([NORM], [3, 1, 2, 2], { choices: null, low: 1, high: 3, log: false }, "minimize");
  assert.deepEqual(found[1], [0, 1, 0.5, 0.5]);
  assert.deepEqual(heights([LR], [3, 1, 2, 2], { choices: null, low: 1, high: 3, log: false }, "maximize")[0][3], null);
  const [rest, half, best] = groups([1, 2, 3, 0], [0.9, 0.01, 0.2, 0.6]);
  assert.deepEqual([rest.indices, half.indices, best.indices], [[0, 3], [2], [1]]);
});

test("a range becomes a part of the filter, and replaces an earlier one", () => {
  const lr = rangeTerm(LR, 1.2345e-4, 2e-3);
  assert.equal(lr, "lr >= 0.000123 and lr <= 0.002");
  assert.equal(rangeTerm(NORM, 0, 1), 'norm in [null,"layer"]');
  const both = withRange(withRange("", "lr", lr), "norm", rangeTerm(NORM, 1, 2));
  assert.equal(both, `${lr} and norm in ["layer",[1,2]]`);
  assert.equal(withRange(both, "lr", "lr >= 1 and lr <= 2"), 'norm in ["layer",[1,2]] and lr >= 1 and lr <= 2');
  assert.equal(withoutRange(both, "norm"), lr);
  assert.equal(withoutRange(lr, "lr"), "");
  assert.equal(withoutRange("lr >= 1e-7 and lr <= 2e-7 and depth == 2", "lr"), "depth == 2");
  assert.equal(withRange("a == 1 or b == 2", "lr", lr), `(a == 1 or b == 2) and ${lr}`);
  assert.equal(withRange('a == "x or y"', "lr", lr), `a == "x or y" and ${lr}`);
});

test("a filter names parameters of blocks, counts and words that are none", () => {
  assert.equal(nameInFilter("layers.0.width"), "layers[0].width");
  assert.equal(nameInFilter("layers", true), "size(layers)");
  assert.equal(nameInFilter("my lr"), 'params["my lr"]');
  const odd = rangeTerm({ ...LR, name: 'x "y"' }, 1, 2);
  assert.equal(withoutRange(`${odd} and depth == 2`, nameInFilter('x "y"')), "depth == 2");
});

test("charts of parameters can be read as words, with conditional parameters", () => {
  const rank = [0.05, 0.3, 0.6, 0.8];
  const [lr, norm] = parameterWords({ axes: [LR, NORM], rank });
  assert.deepEqual(lr, { name: "lr", best: "1e-4", all: "1e-4 to 0.01", without: 1 });
  assert.equal(norm.all, "layer 50 %, null 25 %, [1,2] 25 %");
  assert.deepEqual(
    sliceWords(LR, [1, 2, 3, 4], "minimize").map(({ name, number, best }) => [name, number, best]),
    [
      ["without it", 1, 4],
      ["1e-4 to 2.15e-4", 1, 1],
      ["0.001 to 0.002154", 1, 2],
      ["0.004642 to 0.01", 1, 3],
    ],
  );
  assert.deepEqual(
    sliceWords(NORM, [1, 2, 3, 4], "maximize").map(({ name, best, middle }) => [name, best, middle]),
    [
      ["null", 1, 1],
      ["layer", 3, 3],
      ["[1,2]", 4, 4],
    ],
  );
});

test("two parameters against each other are a grid of the best values", () => {
  const { names, rows } = gridWords(NORM, LR, [4, 3, 2, 1], "minimize");
  assert.deepEqual(names, ["null", "layer", "[1,2]"]);
  assert.deepEqual(rows, [
    ["without it", "–", "–", "1.0000"],
    ["1e-4 to 2.15e-4", "4.0000", "–", "–"],
    ["0.001 to 0.002154", "–", "3.0000", "–"],
    ["0.004642 to 0.01", "–", "2.0000", "–"],
  ]);
});
