// The table of studies: state, progress, best value, devices in use.

import * as api from "../client.js";
import { byId, h, keyed, setText, setTitle } from "../elements/dom.js";
import { progressBar, setProgress, setStudyState } from "../elements/marks.js";
import { ago, count, dateTime, metric, placeWords } from "../format.js";
import { objectiveWords } from "../objectives.js";
import { progressOf } from "../states.js";

/** @import { ClusterView, EventView, StudyView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudiesContext } from "./state.js" */

/**
 * @param {StudiesContext} context
 * @returns {Panel}
 */
export function listPanel({ state, page, loadPage }) {
  const older = byId("older");
  older.addEventListener("click", () => page.run(() => loadPage(state.older ?? 0)));
  const refresh = page.refresher((/** @type {number[]} */ ids) => Promise.all(ids.map(refreshOne)));
  const changed = (/** @type {EventView} */ { study_id: id }) => id !== null && refresh(id);

  /** @param {number} id */
  async function refreshOne(id) {
    const study = await api.listedStudy(id);
    if (!study || (state.isChosen && !state.studies.has(id))) return; // not among those that are chosen
    if (state.isListed(study)) state.keep([study]);
    else state.forget(id);
  }

  function draw() {
    const { listed } = state;
    const ended = `${count(listed.length - state.numLive)}${state.older === null ? "" : " or more"} ended`;
    setText(byId("summary"), listed.length ? `${count(state.numLive)} running, ${ended}` : "");
    if (!listed.length && state.isChosen) setText(byId("summary"), "There are no such studies.");
    byId("list").hidden = !listed.length;
    older.hidden = state.older === null;
    keyed(
      byId("rows"),
      listed,
      (study) => study.id,
      create,
      (row, study) => update(row, study, state.knownCluster),
    );
  }

  return {
    shows: ["studies", "cluster"],
    draw,
    on: {
      study: (event) => event.data.state !== "DELETED" && changed(event),
      trial: changed,
      attempt: changed,
    },
    tick: draw, // how long ago each was submitted
    everyMs: 30_000,
  };
}

/** @param {StudyView} study */
function create(study) {
  const parts = {
    name: h("a", { class: "name", href: `/studies/${study.id}` }),
    about: h("span", { class: "sub" }),
    state: h("td", { class: "c-state" }),
    bar: progressBar(),
    progress: h("span", { class: "sub" }),
    best: h("td", { class: "c-best num", "data-label": "best" }),
    devices: h("td", { class: "c-devices num", "data-label": "devices" }),
    age: h("td", { class: "c-age num" }),
  };
  const name = h("td", { class: "c-name" }, parts.name, parts.about);
  const progress = h("td", { class: "c-progress" }, parts.bar, parts.progress);
  return { node: h("tr", {}, name, parts.state, progress, parts.best, parts.devices, parts.age), ...parts };
}

/**
 * @param {ReturnType<typeof create>} row
 * @param {StudyView} study
 * @param {ClusterView | null} cluster
 */
function update(row, study, cluster) {
  setText(row.name, study.name || `study ${study.id}`); // Optuna allows an empty name
  setTitle(row.name, [study.name, study.note].filter(Boolean).join("\n\n"));
  setText(
    row.about,
    [
      `study ${study.id}`,
      study.spec.workload,
      objectiveWords(study.spec),
      ...placeWords(study.spec),
      study.owner && `by ${study.owner}`,
      ...study.tags.map((tag) => `#${tag}`),
    ]
      .filter(Boolean)
      .join(" · "),
  );
  setStudyState(row.state, study);
  setProgress(row.bar, study.trials, study.spec.budget.trials);
  setText(row.progress, progressWords(study));
  setText(row.best, study.best ? metric(study.best.value) : "–");
  setTitle(row.best, study.best ? `trial ${study.best.trial}` : "");
  setText(row.devices, count(devicesInUse(cluster, study.id)));
  setText(row.age, ago(study.created_at));
  setTitle(row.age, dateTime(study.created_at));
}

/**
 * How many trials have ended and run.
 * @param {StudyView} study
 * @returns {string}
 */
export function progressWords(study) {
  const running = study.trials.RUNNING ?? 0;
  const { ended, total } = progressOf(study);
  return `${count(ended)} of ${count(total)} done${running ? `, ${count(running)} running` : ""}`;
}

/**
 * Number of devices on which the study has a gang.
 * @param {ClusterView | null} cluster
 * @param {number} studyId
 * @returns {number}
 */
export function devicesInUse(cluster, studyId) {
  return (cluster?.devices ?? []).filter((device) => device.gangs.some((gang) => gang.study_id === studyId)).length;
}
