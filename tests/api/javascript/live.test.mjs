import assert from "node:assert/strict";
import { test } from "node:test";
import { follow } from "../../../api/static/live.js";

const failing = () => {
  throw new Error("no such row");
};

test("an event whose handler fails is reported, and the others of its frame are handled", (context) => {
  const sources = [];
  const frames = [];
  globalThis.document = Object.assign(new EventTarget(), { hidden: false });
  globalThis.addEventListener = () => {};
  globalThis.requestAnimationFrame = (act) => frames.push(act);
  globalThis.EventSource = class extends EventTarget {
    constructor(address) {
      super();
      sources.push([address, this]);
    }
  };
  const reported = context.mock.method(console, "error", () => {});
  const seen = [];
  follow({ studyId: 7, after: 3, handlers: { study: failing, trial: (event) => seen.push(event.trial_id) } });
  const [[address, source]] = sources;
  assert.equal(address, "/v1/events?after=3&study_id=7");
  for (const kind of ["trial", "study", "trial"])
    source.dispatchEvent(new MessageEvent(kind, { data: `{"trial_id": ${seen.length + 5}}`, lastEventId: "4" }));
  assert.equal(frames.length, 1);
  frames[0]();
  assert.deepEqual(seen, [5, 5]);
  assert.equal(reported.mock.callCount(), 1);
  assert.match(String(reported.mock.calls[0].arguments[1]), /no such row/);
});
