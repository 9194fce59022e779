import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as later } from "node:timers/promises";
import { trouble } from "../../../api/static/banner.js";
import { asTrial } from "../../../api/static/client.js";
import { Page } from "../../../api/static/page.js";
import { PageState } from "../../../api/static/page_state.js";
import { Requests } from "../../../api/static/requests.js";
import { StudiesState } from "../../../api/static/studies/state.js";
import { errorWords, failureWords, learnedWords } from "../../../api/static/study/memory.js";
import { stepErrorWords } from "../../../api/static/study/steps.js";
import { TrialState } from "../../../api/static/trial/state.js";

test("keys that come together are fetched together, and those of a failure again", async () => {
  const asked = [];
  const refresh = new Requests().refresher(async (keys) => {
    asked.push(keys);
    if (asked.length === 1) throw new Error("not now");
  }, 5);
  refresh(1);
  refresh(2);
  refresh(1);
  for (let tries = 0; tries < 200 && asked.length < 2; tries += 1) await later(5);
  assert.deepEqual(asked, [
    [1, 2],
    [1, 2],
  ]);
});

test("closed requests end first, and none begins until they are open again", async () => {
  const requests = new Requests();
  const done = [];
  const slow = requests.run(async () => {
    await later(10);
    done.push("slow");
  });
  const refresh = requests.refresher(async ([key]) => done.push(key), 1);
  const closed = requests.close();
  refresh("refreshed");
  assert.equal(await requests.run(async () => done.push("late")), undefined);
  await closed;
  await later(10);
  assert.deepEqual(done, ["slow"]);
  requests.reopen();
  for (let tries = 0; tries < 1000 && done.length < 2; tries += 1) await later(1);
  assert.deepEqual(done, ["slow", "refreshed"]);
  await slow;
});

test("watchers hear which fields have changed", () => {
  const state = new PageState();
  const heard = [];
  state.watch((field) => heard.push(field));
  assert.equal(state.isLoaded, false);
  state.setCluster({});
  assert.equal(state.isLoaded, true);
  assert.deepEqual(heard, ["cluster"]);
});

test("a deleted study leaves the list", () => {
  const state = new StudiesState();
  state.keepPage({
    items: [
      { id: 1, state: "RUNNING" },
      { id: 2, state: "COMPLETED" },
    ],
    next: null,
  });
  assert.deepEqual(
    state.listed.map((study) => study.id),
    [2, 1],
  );
  assert.equal(state.numLive, 1);
  state.on.study({ study_id: 2, data: { state: "STOPPED" } });
  state.on.study({ study_id: 1, data: { state: "DELETED" } });
  assert.deepEqual(
    state.listed.map((study) => study.id),
    [2],
  );
});

test("a trial's page hears only the events of its trial", () => {
  const state = new TrialState(1, 0);
  state.keepTrial({ id: 5, state: "QUEUED", attempts: [], options: [] });
  state.on.trial({ trial_id: 6, data: { state: "FAILED" } });
  assert.equal(state.trial.state, "QUEUED");
  state.on.trial({ trial_id: 5, data: { state: "RUNNING" } });
  assert.equal(state.trial.state, "RUNNING");
});

test("a value that is not finite is none", () => {
  assert.equal(asTrial({ value: "NaN" }).value, null);
  assert.equal(asTrial({ value: 0 }).value, 0);
  assert.equal(asTrial({ value: 1, expected_bytes: 2 ** 21 }).predicted_mib, 2);
});

test("the banner says why no trial is started", () => {
  const ready = { controller_alive: true, status: "ready", detail: "" };
  assert.equal(trouble(ready), "");
  assert.equal(trouble({ ...ready, detail: "this is a rehearsal" }), "This is a rehearsal.");
  assert.match(
    trouble({ ...ready, status: "starting", detail: "Ray starts." }),
    /^The cluster is starting\. .* Ray starts\.$/,
  );
  assert.match(trouble({ controller_alive: false, controller_silent_seconds: 75 }), /silent for 1 m 15 s/);
  assert.match(trouble({ controller_alive: false, controller_silent_seconds: null }), /no controller has reported yet/);
  assert.equal(trouble({ ...ready, data_directory: "/x is full" }), "The data directory /x is full.");
});

test("errors of predictions are said in words, or nothing is said", () => {
  assert.equal(errorWords({ prediction_error_pct: { median: null } }), "");
  assert.match(errorWords({ prediction_error_pct: { median: null }, is_uneven: true }), /for the largest samples/);
  const error = { median: 3.14, max: 11.7 };
  assert.equal(errorWords({ prediction_error_pct: error }), "Median error 3.1 %, worst 11.7 %, by tensors.");
  const words = "Attempts that had enough memory: median error 3.1 %, worst 11.7 %, by tensors.";
  assert.equal(errorWords({ prediction_error_pct: error, out_of_memory: { attempts: 1 } }), words);
  assert.equal(failureWords({ out_of_memory: { attempts: 0 } }), "");
  assert.match(
    failureWords({ out_of_memory: { attempts: 1, least_excess_pct: 7.5 } }),
    /^1 attempt out of memory: .* 8 % more/,
  );
  assert.match(
    failureWords({ out_of_memory: { attempts: 1, least_excess_pct: 159_087 } }),
    /the worst needed at least 1,591 times the MiB predicted\.$/,
  );
  assert.equal(
    learnedWords([{ num_trials: 2, extra_bytes: 0 }]),
    "Learned from 2 trials: the constant margin is enough.",
  );
  const raised = { num_trials: 5, extra_bytes: 13 * 2 ** 20, layout: "single", studies: [1] };
  assert.equal(learnedWords([raised]), "Learned: +13.0 MiB from 5 trials of a family with layout single (study 1).");
  assert.match(
    learnedWords([raised, { num_trials: 1, extra_bytes: 0 }]),
    /; for others the constant margin is enough\.$/,
  );
  assert.match(
    stepErrorWords({ step_error_pct: { median: 18.2, max: 26 } }, new Map()),
    /^Median error 18 %, worst 26 %\./,
  );
  const timed = new Map([
    [0, { attempts: [{ measured_step_seconds: 0.1 }, { measured_step_seconds: null }] }],
    [1, { attempts: [{ measured_step_seconds: 2 }] }],
  ]);
  assert.match(
    stepErrorWords({ step_error_pct: { median: null } }, timed),
    /^Measured: 100 ms to 2 s\. None was predicted/,
  );
});

/** A page whose frames are drawn by `frame()`, with a state that is loaded. */
function hosted(panels) {
  const waiting = [];
  globalThis.requestAnimationFrame = (draw) => waiting.push(draw);
  const state = new PageState();
  const page = new Page(state);
  page.panels = panels;
  page.redrawChanges();
  return { state, page, frame: () => waiting.splice(0).forEach((draw) => draw()) };
}

test("a panel is drawn once per frame, after what it shows has changed, and not before something is loaded", () => {
  const drawn = [];
  const { state, frame } = hosted([
    { shows: ["cluster", "rows"], draw: () => drawn.push("both") },
    { shows: ["rows"], draw: () => drawn.push("rows") },
    { load() {} },
  ]);
  state.changed("rows");
  frame();
  assert.deepEqual(drawn, []);
  state.setCluster({});
  state.setCluster({});
  frame();
  assert.deepEqual(drawn.splice(0), ["both", "rows"], "also what has come before");
  state.changed("cluster");
  frame();
  assert.deepEqual(drawn.splice(0), ["both"]);
  state.changed("cluster", "rows");
  frame();
  assert.deepEqual(drawn, ["both", "rows"]);
});

test("a panel is first drawn once it has what it needs, whatever comes first", () => {
  for (const fields of [
    ["study", "points"],
    ["points", "study"],
  ]) {
    const drawn = [];
    const { state, frame } = hosted([
      { shows: ["study", "points"], needs: "points", draw: () => drawn.push("points") },
    ]);
    state.setCluster({});
    for (const field of fields) {
      frame();
      assert.deepEqual(drawn, []);
      state.changed(field);
      if (field === "points") break;
    }
    frame();
    assert.deepEqual(drawn, ["points"]);
  }
});

test("a lazy panel loads once its card comes near, or if it is hidden, and hears no events before that", async () => {
  const heard = [];
  const panelOf = (name, card) => ({
    card,
    isLazy: true,
    load: () => heard.push(name),
    on: { trial: () => heard.push(`${name} hears`) },
  });
  const [near, far, hidden] = [{ hidden: false }, { hidden: false }, { hidden: true }];
  const panels = [panelOf("near", near), panelOf("far", far), panelOf("hidden", hidden)];
  const { page } = hosted(panels);
  for (const panel of panels) page.unloaded.add(panel);
  page.comesNear(near, panels[0]);
  assert.deepEqual(heard, [], "not before the page's state has come");
  page.opened();
  assert.deepEqual(heard.splice(0), ["near", "hidden"]);
  page.handlers().trial({});
  assert.deepEqual(heard.splice(0), ["near hears", "hidden hears"]);
  page.comesNear(far, panels[1]);
  page.near.delete(far);
  page.comesNear(far, panels[1]);
  assert.deepEqual(heard, ["far"]);
});

test("an event changes the state first, and kinds that nobody listens to are not followed", () => {
  const heard = [];
  const { state, page } = hosted([{ on: { trial: () => heard.push("panel") } }, {}]);
  state.on = { trial: () => heard.push("state"), study: () => heard.push("study") };
  const handlers = page.handlers();
  assert.deepEqual(Object.keys(handlers), ["study", "trial"]);
  handlers.trial({});
  assert.deepEqual(heard, ["state", "panel"]);
});

test("the trial under the pointer is marked in all panels but the one under it", () => {
  const marked = [];
  const panels = ["a", "b"].map((name) => ({ point: (trial) => marked.push([name, trial]) }));
  const { page } = hosted([...panels, {}]);
  page.point(panels[0], 7);
  assert.deepEqual(marked, [["b", 7]]);
});

test("a page leaves once what it shows is removed, and asks for nothing meanwhile", async () => {
  const { page } = hosted([]);
  const went = [];
  globalThis.location = { assign: (address) => went.push(address) };
  const removed = page.leaveAfter(async () => went.push("removed"), "/");
  assert.equal(await page.run(async () => "asked"), undefined);
  await removed;
  assert.deepEqual(went, ["removed", "/"]);
});
