import assert from "node:assert/strict";
import { test } from "node:test";
import { parameterColumn, trialColumns } from "../../../api/static/study/table/columns.js";
import {
  added,
  defaultColumns,
  moved,
  orderOf,
  parameterOf,
  queryOf,
  readView,
  valueAt,
  writeView,
} from "../../../api/static/study/table/view.js";

test("a view survives the address, and the default one leaves it empty", () => {
  assert.equal(writeView(readView("")), "");
  const view = {
    columns: ["number", "params.a,b", "params.layers.0.width", "value"],
    sort: "params.lr",
    descending: true,
    states: ["COMPLETED", "PRUNED"],
    where: "lr < 1e-3 and depth == 2 && x != '%2C'",
  };
  assert.deepEqual(readView(writeView(view)), view);
  assert.match(writeView(view), /^\?columns=number,/);
  assert.deepEqual(readView("?columns=&sort="), { ...readView(""), columns: [] });
});

test("the best comes first in the direction of the objective", () => {
  assert.deepEqual(orderOf(readView(""), "minimize"), { by: "value", descending: false });
  assert.deepEqual(orderOf(readView(""), "maximize"), { by: "value", descending: true });
  assert.deepEqual(orderOf(readView("?sort=-number"), "maximize"), { by: "number", descending: true });
  assert.equal(
    queryOf({ by: "value", descending: true, states: ["FAILED"], where: "lr < 1" }).toString(),
    "by=value&descending=true&state=FAILED&where=lr+%3C+1",
  );
});

test("flat names lead into blocks, and what is missing has no value", () => {
  const params = { lr: 0.1, norm: null, layers: [{ op: "conv", inner: [{ k: 3 }] }], "a.b": 5 };
  const found = ["lr", "norm", "layers.0.op", "layers.0.inner.0.k", "a.b", "layers.1.op", "lr.x", "nothing"];
  assert.deepEqual(
    found.map((name) => valueAt(params, name)),
    [0.1, null, "conv", 3, 5, undefined, undefined, undefined],
  );
});

test("parameters are shown between the reason and the plan, and can be moved", () => {
  const standing = trialColumns(1, () => ({}));
  const keys = defaultColumns(standing, ["lr", "layers", "layers.0.op"]);
  assert.deepEqual(keys.slice(0, 6), ["number", "state", "value", "reason", "params.lr", "params.layers"]);
  assert.ok(!keys.includes("params"));
  assert.deepEqual(moved(["a", "b", "c"], 2, -1), ["a", "c", "b"]);
  assert.deepEqual(moved(["a", "b", "c"], 0, -1), ["a", "b", "c"]);
  assert.deepEqual(added(["value", "params.a", "ranks"], "params.b"), ["value", "params.a", "params.b", "ranks"]);
  assert.deepEqual(added(["value", "ranks"], "params.b"), ["value", "params.b", "ranks"]);
  assert.deepEqual(added(["ranks"], "batch"), ["ranks", "batch"]);
  assert.equal(parameterOf("params.layers.0.op"), "layers.0.op");
  assert.equal(parameterOf("value"), null);
});

function shown(name, params) {
  const cell = { textContent: "", title: "" };
  parameterColumn(name, undefined).cell(cell, { params });
  return [cell.textContent, cell.title];
}

test("a cell shows a parameter, the number of blocks, or a dash", () => {
  assert.deepEqual(shown("lr", { lr: 0.00012345 }), ["1.23e-4", "0.00012345"]);
  assert.deepEqual(shown("layers", { layers: [{ op: "a" }, { op: "b" }] }), ["2", '[{"op":"a"},{"op":"b"}]']);
  assert.deepEqual(shown("norm", { norm: null }), ["null", "null"]);
  assert.deepEqual(shown("momentum", { lr: 1 }), ["–", ""]);
});
