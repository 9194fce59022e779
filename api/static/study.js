// The page of one study: figures, optimisation history, learning curves, memory, best trial and the table of its trials.
// A study may have any number of trials: charts are thinned by the server, and the table fetches the rows that are seen.

import { byId, setText } from "./elements/dom.js";
import { Page } from "./page.js";
import { candidatePanel } from "./study/candidate.js";
import { filePanel } from "./study/file.js";
import { actionsPanel } from "./study/actions.js";
import { bestPanel } from "./study/best.js";
import { changesPanel } from "./study/changes.js";
import { curvesPanel } from "./study/curves.js";
import { StudyFeeds } from "./study/feeds.js";
import { frontPanel } from "./study/front.js";
import { headPanel } from "./study/head.js";
import { historyPanel } from "./study/history.js";
import { descriptionPanel } from "./study/description.js";
import { limitsPanel } from "./study/limits.js";
import { lineagePanel } from "./study/lineage.js";
import { memoryPanel } from "./study/memory.js";
import { noticesPanel } from "./study/notices.js";
import { importancesPanel } from "./study/parameters/importances.js";
import { parallelPanel } from "./study/parameters/parallel.js";
import { slicePanel } from "./study/parameters/slice.js";
import { StudyState } from "./study/state.js";
import { stepsPanel } from "./study/steps.js";
import { readView } from "./study/table/view.js";
import { trialsPanel } from "./study/table/trials.js";

/** The panels in the order of the page. */
const PANELS = [
  headPanel,
  actionsPanel,
  descriptionPanel,
  limitsPanel,
  candidatePanel,
  frontPanel,
  historyPanel,
  bestPanel,
  curvesPanel,
  memoryPanel,
  stepsPanel,
  importancesPanel,
  slicePanel,
  parallelPanel,
  lineagePanel,
  trialsPanel,
  noticesPanel,
  changesPanel,
  filePanel,
];

const data = byId("study").dataset;
const studyId = Number(data.studyId);
const state = new StudyState(studyId, Number(data.mostCurves));
state.view = readView(location.search);
const page = new Page(state, byId("panels"));
const feeds = new StudyFeeds(state, page);
const open = (/** @type {{number: number}} */ trial) => location.assign(`/studies/${studyId}/trials/${trial.number}`);

page.open({
  panels: [feeds, ...PANELS.map((panel) => panel({ state, page, feeds, open }))],
  load: () => feeds.loadStudy(),
  loadMore: () => feeds.loadHistory(),
  studyId,
  failed: () => setText(byId("subtitle"), "This study could not be loaded."),
});
