// The list of studies, newest first: state, progress, best value, devices in use. Events refresh it.

import * as api from "./client.js";
import { byId, coalesced, h, keyed, setText } from "./dom.js";
import { ago, count, dateTime, metric } from "./format.js";
import { copyButton, follow, guarded, refresher, watchCluster } from "./live.js";
import { LIVE_STUDY, TERMINAL, progressBar, setProgress, setStudyState } from "./states.js";

const FIRST_STUDY = `{"spec": {
  "name": "first study",
  "workload": "vit_digits",
  "objective": {"metric": "accuracy", "direction": "maximize"},
  "space": {"depth": {"choice": [2, 4]}, "lr": {"low": 0.0003, "high": 0.003, "log": true}},
  "budget": {"trials": 8, "steps": 60}
}}`;
const studies = new Map();
let older = null; // cursor of the next page of older studies; null: there is none
let cluster = null;
const draw = coalesced(drawNow);

function drawNow() {
  const listed = [...studies.values()].sort((a, b) => b.id - a.id);
  const live = listed.filter((study) => LIVE_STUDY.has(study.state)).length;
  setText(byId("summary"), listed.length ? `${count(live)} running, ${count(listed.length - live)}${older === null ? "" : " or more"} ended` : "");
  byId("list").hidden = !listed.length;
  byId("empty").hidden = listed.length > 0;
  keyed(byId("rows"), listed, (study) => study.id, create, update);
}

function create(study) {
  const bar = progressBar();
  return h(
    "tr",
    {},
    h("td", { class: "c-name" }, h("a", { class: "name", href: `/studies/${study.id}` }, study.name), h("span", { class: "sub" })),
    h("td", { class: "c-state" }),
    h("td", { class: "c-progress" }, bar, h("span", { class: "sub" })),
    h("td", { class: "c-best num", "data-label": "best" }),
    h("td", { class: "c-devices num", "data-label": "devices" }),
    h("td", { class: "c-age num" }),
  );
}

function update(row, study) {
  const [name, state, progress, best, devices, age] = row.children;
  setText(name.firstChild, study.name);
  name.firstChild.title = study.name;
  const { metric: objective, direction } = study.spec.objective;
  setText(name.lastChild, `${study.spec.workload} · ${direction} ${objective}`);
  setStudyState(state, study);
  setProgress(progress.firstChild, study.trials, study.spec.budget.trials);
  setText(progress.lastChild, progressWords(study));
  setText(best, study.best ? metric(study.best.value) : "–");
  best.title = study.best ? `trial ${study.best.trial}` : "";
  setText(devices, count(api.devicesInUse(cluster, study.id)));
  setText(age, ago(study.created_at));
  age.title = dateTime(study.created_at);
}

function progressWords({ trials, spec }) {
  const sum = (keep) => Object.entries(trials).reduce((total, [state, number]) => total + (keep(state) ? number : 0), 0);
  const running = trials.RUNNING ?? 0;
  const total = Math.max(spec.budget.trials, sum(() => true));
  return `${count(sum((state) => TERMINAL.has(state)))} of ${count(total)} done${running ? `, ${count(running)} running` : ""}`;
}

function howToSubmit() {
  const cli = `scamp submit examples/digits.yaml --address ${location.origin}`;
  const curl = `curl ${location.origin}/v1/studies -H 'Content-Type: application/json' -d '${FIRST_STUDY}'`;
  for (const [id, text] of [["cli", cli], ["curl", curl]]) {
    byId(id).textContent = text;
    byId(id).after(copyButton(() => text));
  }
}

function keep(items) {
  for (const study of items) studies.set(study.id, study);
  draw();
}

async function loadPage(before) {
  const page = await api.studies(before);
  older = page.next;
  byId("older").hidden = older === null;
  keep(page.items);
}

const refresh = refresher((ids) => Promise.all(ids.map(async (id) => keep(await api.listedStudy(id)))));
const changed = ({ study_id: id }) => id !== null && refresh(id);
const studyChanged = (event) => {
  if (event.data.state !== "DELETED") return changed(event);
  studies.delete(event.study_id);
  draw();
};

howToSubmit();
byId("older").addEventListener("click", () => guarded(() => loadPage(older)));
setInterval(draw, 30_000);
const after = await guarded(async () => {
  cluster = await api.cluster();
  await loadPage(0);
  return cluster.last_event_id;
});
watchCluster((snapshot) => {
  cluster = snapshot;
  draw();
});
if (after !== undefined) follow({ after, handlers: { study: studyChanged, trial: changed, attempt: changed } });
else setText(byId("summary"), "The studies could not be loaded.");
