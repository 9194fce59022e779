import assert from "node:assert/strict";
import { test } from "node:test";
import { asKind } from "../../../api/static/new/space.js";
import { withParameter } from "../../../api/static/new/space_text.js";

const LR = { name: "lr", kind: "float", low: "1", high: "1e-1", step: "", log: true, values: "" };
const DEPTH = { ...LR, name: "depth", kind: "choice", values: "2, 4" };
const TEXT = `name: a
space:
  # what is searched
  lr: {low: 0.1, high: 0.2}   # the rate
  depth:
    choice:
      - 2

budget: {trials: 8}
`;

test("a parameter's lines are replaced, and everything else stays", () => {
  assert.equal(
    withParameter(TEXT, "lr", LR),
    TEXT.replace("{low: 0.1, high: 0.2}", "{low: 1.0, high: 1e-1, log: true}"),
  );
  assert.equal(
    withParameter(TEXT, "depth", DEPTH),
    TEXT.replace("  depth:\n    choice:\n      - 2\n", "  depth: {choice: [2, 4]}\n"),
  );
  assert.equal(withParameter(TEXT, "depth", null), TEXT.replace("  depth:\n    choice:\n      - 2\n", ""));
});

test("a new parameter follows the others, and begins the space where there is none", () => {
  const added = withParameter(TEXT, "width", { ...LR, name: "width", kind: "int", low: "8", high: "64" });
  assert.equal(added, TEXT.replace("      - 2\n", "      - 2\n  width: {low: 8, high: 64, log: true}\n"));
  assert.equal(withParameter("name: a\n", "depth", DEPTH), "name: a\nspace:\n  depth: {choice: [2, 4]}\n");
  assert.equal(withParameter("space: {lr: {low: 0, high: 1}}\n", "lr", LR), null, "it has no line");
});

test("a study in JSON stays JSON", () => {
  const changed = withParameter('{"name": "a", "space": {"lr": 1}}', "lr", { ...DEPTH, values: '"a", "b"' });
  assert.deepEqual(JSON.parse(changed), { name: "a", space: { lr: { choice: ["a", "b"] } } });
  assert.equal(withParameter("{", "lr", LR), null);
});

test("another kind begins with values near to those before", () => {
  assert.equal(asKind({ ...LR, low: "0.5", high: "3" }, "choice").values, "0.5, 3");
  const { low, high } = asKind(DEPTH, "int");
  assert.deepEqual([low, high], ["1", "4"]);
});
