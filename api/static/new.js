// The page to submit a study: its file, and a user's own files. With ?from=7 it begins as a copy of study 7.

import * as api from "./client.js";
import { Page } from "./page.js";
import { beginningsPanel } from "./new/beginnings.js";
import { spacePanel } from "./new/space.js";
import { NewStudyState } from "./new/state.js";
import { submissionPanel } from "./new/submission.js";

const PANELS = [beginningsPanel, spacePanel, submissionPanel];

const state = new NewStudyState(Number(new URLSearchParams(location.search).get("from")) || 0);
const page = new Page(state);

page.open({
  panels: PANELS.map((panel) => panel({ state, page })),
  async load() {
    const cluster = await api.cluster();
    state.setCluster(cluster);
    if (state.originalId) {
      const [text, original] = await Promise.all([api.studyFile(state.originalId), api.study(state.originalId)]);
      state.setOriginal(text, original.has_files);
    }
    return cluster.last_event_id;
  },
  failed: () => state.setOriginal("", false),
});
