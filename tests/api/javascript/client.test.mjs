import assert from "node:assert/strict";
import { test } from "node:test";
import { request } from "../../../api/static/client.js";

/** What becomes of a request that is answered with this status: {page, error}. */
async function answered(status, body = {}) {
  const seen = { page: null, error: null };
  globalThis.location = { pathname: "/studies/3", search: "?sort=-number", assign: (page) => (seen.page = page) };
  globalThis.fetch = async () => ({ ok: false, status, statusText: "", json: async () => body });
  request("/v1/studies/3").then(
    () => assert.fail("it has no answer"),
    (error) => (seen.error = error),
  );
  await new Promise((resolve) => setTimeout(resolve, 10));
  return seen;
}

test("without a token the page to sign in is opened, and no error is shown meanwhile", async () => {
  assert.deepEqual(await answered(401), { page: "/login?next=%2Fstudies%2F3%3Fsort%3D-number", error: null });
});

test("any other failure is an error that says what to do", async () => {
  const { page, error } = await answered(404, { detail: "there is no study 3" });
  assert.equal(page, null);
  assert.deepEqual([error.status, error.message], [404, "there is no study 3"]);
});
