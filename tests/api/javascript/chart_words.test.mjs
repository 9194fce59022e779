import assert from "node:assert/strict";
import { test } from "node:test";
import { required } from "../../../api/static/required.js";
import { chartLabel, outsideWords, partWords } from "../../../api/static/study/chart_words.js";
import { AskedCurves } from "../../../api/static/study/curves.js";

test("a chart says how many trials it shows only where it leaves some out", () => {
  assert.equal(partWords(5, 90), "5 of 90 trials");
  assert.equal(partWords(90, 90), "");
  assert.equal(partWords(1, 2, "related trial"), "1 of 2 related trials");
});

test("trials off the axis are counted, and a chart says how its keys work", () => {
  assert.equal(outsideWords(0), "");
  assert.equal(outsideWords(1), "1 trial beyond the end of the axis, at its edge.");
  assert.match(chartLabel("3 trials by lr"), /^3 trials by lr\. Arrow keys go from point to point, /);
});

test("curves are asked for once, until the trial no longer leads or another metric is chosen", () => {
  const asked = new AskedCurves();
  asked.add([0, 1]);
  const answer = [1, 2];
  assert.deepEqual(asked.missing(answer), [2]);
  asked.add([2]);
  assert.deepEqual(asked.missing(answer), []); // the same answer of the server
  assert.deepEqual(asked.missing([0, 1, 2]), [0]); // it did not lead in between
  asked.forget();
  assert.deepEqual(asked.missing([0]), [0]);
});

test("a value that has not come is an error of our own", () => {
  assert.equal(required(0), 0);
  assert.throws(() => required(null), /before it has come/);
});
