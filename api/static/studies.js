// The page of all studies, the newest first unless another order is chosen.

import * as api from "./client.js";
import { byId, setText } from "./elements/dom.js";
import { Page } from "./page.js";
import { emptyPanel } from "./studies/empty.js";
import { listPanel } from "./studies/list.js";
import { searchPanel } from "./studies/search.js";
import { StudiesState } from "./studies/state.js";

const PANELS = [searchPanel, listPanel, emptyPanel];

const state = new StudiesState();
const page = new Page(state);
const loadPage = async (/** @type {number} */ before) => {
  const chosen = state.chosen;
  const found = await api.studies(before, state.query);
  if (chosen === state.chosen) state.keepPage(found);
};

page.open({
  panels: PANELS.map((panel) => panel({ state, page, loadPage })),
  async load() {
    const cluster = await api.cluster();
    state.setCluster(cluster);
    await loadPage(0);
    return cluster.last_event_id;
  },
  failed: () => setText(byId("summary"), "The studies could not be loaded."),
});
