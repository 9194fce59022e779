// The page of one trial: its state and the reason, its plan in words, every attempt, its curves and the end of its log.

import * as api from "./client.js";
import { byId, setText } from "./elements/dom.js";
import { Page } from "./page.js";
import { architecturePanel } from "./trial/architecture.js";
import { attemptsPanel } from "./trial/attempts.js";
import { curvesPanel } from "./trial/curves.js";
import { filesPanel } from "./trial/files.js";
import { headPanel } from "./trial/head.js";
import { logPanel } from "./trial/log.js";
import { optionsPanel } from "./trial/options.js";
import { planPanel } from "./trial/plan.js";
import { buttonsPanel } from "./trial/buttons.js";
import { TrialState } from "./trial/state.js";
import { stepPanel } from "./trial/step.js";

/** The panels in the order of the page. */
const PANELS = [
  headPanel,
  buttonsPanel,
  planPanel,
  curvesPanel,
  architecturePanel,
  attemptsPanel,
  filesPanel,
  optionsPanel,
  stepPanel,
  logPanel,
];

const { studyId, number } = byId("trial").dataset;
const state = new TrialState(Number(studyId), Number(number));
const page = new Page(state, byId("panels"));
const loadTrial = async () => state.keepTrial(await api.trial(state.studyId, state.number));

const refresh = page.refresher(loadTrial);
const changed = (/** @type {import("./answers.d.ts").EventView} */ event) => state.isMine(event) && refresh("trial");
const feed = { on: { trial: changed, attempt: changed, metrics: changed } };

page.open({
  panels: [feed, ...PANELS.map((panel) => panel({ state, page }))],
  async load() {
    state.keepStudy(await api.study(state.studyId));
    await loadTrial();
    return state.trial.last_event_id;
  },
  studyId: state.studyId,
  failed: () => setText(byId("reason"), "This trial could not be loaded."),
});
