// The page that compares studies: the best value so far of each, and what it has cost. ?study=1&study=2 chooses them.

import * as api from "./client.js";
import { bestPanel } from "./compare/best.js";
import { choicePanel } from "./compare/choice.js";
import { differencesPanel, importancesPanel } from "./compare/differences.js";
import { CompareState } from "./compare/state.js";
import { byId, setText } from "./elements/dom.js";
import { Page } from "./page.js";

/** @import { EventView } from "./answers.d.ts" */

const PANELS = [bestPanel, choicePanel, differencesPanel, importancesPanel];
const REST_MS = 5000;

const named = new URLSearchParams(location.search).getAll("study").map(Number);
const state = new CompareState(named);
const page = new Page(state, byId("panels"));

const refresh = page.refresher(async (/** @type {number[]} */ ids) => {
  await Promise.all(ids.map((id) => loadStudy(id)));
}, REST_MS);
const changed = (/** @type {EventView} */ { study_id: id }) => id !== null && state.chosen.has(id) && refresh(id);

/** @param {number} id */
async function loadStudy(id) {
  const study = await api.listedStudy(id);
  if (study === null) return state.forget(id); // it was deleted
  state.keep([study]);
  state.keepHistory(id, await api.history(id));
  state.keepImportances(id, (await api.importances(id)).items);
}

page.open({
  panels: [{ on: { study: changed, trial: changed } }, ...PANELS.map((panel) => panel({ state, page, loadStudy }))],
  async load() {
    const cluster = await api.cluster();
    state.setCluster(cluster);
    const { items } = await api.studies();
    state.keep(items);
    state.chooseFirst();
    await Promise.all([...state.chosen].map((id) => loadStudy(id)));
    return cluster.last_event_id;
  },
  failed: () => setText(byId("summary"), "The studies could not be loaded."),
});
