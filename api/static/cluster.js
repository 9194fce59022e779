// The page of the cluster: its devices, the gangs on them, the trials that wait, and the controller.

import * as api from "./client.js";
import { controllerPanel } from "./cluster/controller.js";
import { gangsPanel } from "./cluster/gangs.js";
import { mapPanel } from "./cluster/map.js";
import { waitingPanel } from "./cluster/waiting.js";
import { whatIfPanel } from "./cluster/what_if.js";
import { byId, setText } from "./elements/dom.js";
import { Page } from "./page.js";
import { PageState } from "./page_state.js";

/** The panels in the order of the page. */
const PANELS = [mapPanel, gangsPanel, waitingPanel, whatIfPanel, controllerPanel];

const state = new PageState();
const page = new Page(state, byId("panels"));

async function load() {
  const cluster = await api.cluster();
  state.setCluster(cluster);
  return cluster.last_event_id;
}

const refresh = page.refresher(load);
const changed = () => refresh("cluster");
const feed = { on: { trial: changed, attempt: changed, cluster: changed, study: changed } };

page.open({
  panels: [feed, ...PANELS.map((panel) => panel({ state, page }))],
  load,
  failed: () => setText(byId("summary"), "The cluster could not be loaded."),
});
