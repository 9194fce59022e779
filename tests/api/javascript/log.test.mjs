import assert from "node:assert/strict";
import { test } from "node:test";
import { logPanel } from "../../../api/static/trial/log.js";
import { LogTail } from "../../../api/static/trial/log_tail.js";

const nothing = () => {};

test("two requests for the log that overlap show each line once", async (context) => {
  const made = () => Object.assign(new EventTarget(), { setAttribute: nothing, append: nothing });
  globalThis.document = { createElement: made };
  const items = [1, 2].map((id) => ({ id, text: `line ${id}` }));
  context.mock.method(globalThis, "fetch", async () => Response.json({ items }));
  const shown = [];
  context.mock.method(LogTail.prototype, "add", (lines) => shown.push(...lines.map(({ id }) => id)));
  const { load } = logPanel({ state: { studyId: 1, number: 0 }, page: { refresher: nothing } });
  await Promise.all([load(), load()]);
  assert.deepEqual(shown, [1, 2]);
});
