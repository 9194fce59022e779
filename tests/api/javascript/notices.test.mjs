import assert from "node:assert/strict";
import { test } from "node:test";
import { resultWords } from "../../../api/static/study/notices.js";

/** @param {any} changes */
const words = (changes) => resultWords({ state: "WAITING", answer: "", num_attempts: 0, next_at: 0, ...changes });

test("the result of a notice says whether it arrived, and when it is tried again", () => {
  assert.equal(words({}), "waits");
  assert.equal(words({ state: "DELIVERED", answer: "HTTP 200", num_attempts: 1 }), "delivered: HTTP 200");
  assert.equal(words({ state: "GIVEN_UP", answer: "HTTP 500", num_attempts: 12 }), "given up: HTTP 500, 12 attempts");
  const later = words({ answer: "no answer within 10 s", num_attempts: 1, next_at: 1_800_000_000 });
  assert.match(later, /^not yet delivered: no answer within 10 s, again at /);
});
