import assert from "node:assert/strict";
import { test } from "node:test";
import { chosenFiles } from "../../../api/static/new/files.js";
import { changedLimits } from "../../../api/static/study/limits.js";
import { parsed } from "../../../api/static/study/candidate.js";

const file = (path) => ({ name: path.split("/").at(-1), webkitRelativePath: path, size: 1 });

test("files of a folder have their paths inside of it, and what no workload needs is left out", () => {
  const folder = ["p/b.py", "p/sub/a.py", "p/.env", "p/venv/x.py", "p/sub/__pycache__/a.pyc", "p/c.pyc"].map(file);
  const single = { ...file("b.py"), size: 2, webkitRelativePath: "" };
  const chosen = chosenFiles([single], folder);
  assert.deepEqual(
    chosen.map(({ path, file: { size } }) => [path, size]),
    [
      ["b.py", 2],
      ["sub/a.py", 1],
    ],
  );
});

test("only limits that differ are sent, and an empty field drops a limit", () => {
  const budget = { trials: 8, seconds: 60, device_hours: null };
  const request = (values) => changedLimits(budget, (name) => values[name] ?? "");
  assert.deepEqual(request({ trials: "8", seconds: "60" }), {});
  assert.deepEqual(request({ trials: "9", device_hours: "1.5" }), { trials: 9, device_hours: 1.5, drop: ["seconds"] });
  const kept = { trials: "8", seconds: "60" };
  assert.deepEqual(request({ ...kept, target: "0.9" }), { target: 0.9 });
  assert.deepEqual(request({ ...kept, target: "acc=0.9, size=3" }), { target: { acc: 0.9, size: 3 } });
  assert.throws(() => request({ ...kept, target: "high" }), /Write the target as a number/);
  assert.deepEqual(
    changedLimits({ target: 1, terminator: { regret: 1 } }, () => "", false),
    { drop: ["terminator", "target"] },
  );
});

test("parameters are a JSON object", () => {
  assert.deepEqual(parsed('{"lr": 1e-3, "ops": ["a"]}'), { lr: 0.001, ops: ["a"] });
  for (const text of ["", "{lr: 1}"]) assert.throws(() => parsed(text), /This is not JSON/);
  for (const text of ["[1]", "null", "3"]) assert.throws(() => parsed(text), /Write the parameters as/);
});
