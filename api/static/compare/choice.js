// The table of studies, in which those to compare are chosen.

import { card, fillRows, scrolling, tableHead } from "../elements/card.js";
import { byId, h, setText } from "../elements/dom.js";
import { setStudyState } from "../elements/marks.js";
import { count, duration, metric, num } from "../format.js";
import { isSeveral, objectiveWords } from "../objectives.js";
import { progressOf } from "../states.js";
import { MOST } from "./state.js";

/** @import { StudyView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { CompareContext } from "./state.js" */

const HOUR = 3600; // seconds
const COLUMNS = [
  { name: "" },
  { name: "Study" },
  { name: "Objective" },
  { name: "State" },
  { name: "Trials", numeric: true },
  { name: "Best", numeric: true },
  { name: "Device-hours", numeric: true, title: "hours × devices that its trials have held" },
  { name: "Wall time", numeric: true },
];

/**
 * @param {CompareContext} context
 * @returns {Panel}
 */
export function choicePanel({ state, page, loadStudy }) {
  const body = h("tbody");
  const table = h("table", { class: "plain" }, tableHead(COLUMNS), body);

  /**
   * @param {number} id
   * @param {boolean} isChosen
   */
  function choose(id, isChosen) {
    state.choose(id, isChosen);
    const query = new URLSearchParams([...state.chosen].map((each) => ["study", String(each)]));
    history.replaceState(null, "", `?${query}`);
    if (isChosen) page.run(() => loadStudy(id));
  }

  function draw() {
    const words = `${count(state.chosen.size)} chosen, at most ${MOST}; the address of this page names them.`;
    setText(byId("summary"), state.studies.size ? words : "There are no studies yet.");
    fillRows(body, state.newestFirst, {
      columns: COLUMNS,
      empty: "There are no studies yet.",
      keyOf: (study) => String(study.id),
      create: (study) => create(study, choose),
      update(row, study) {
        const isChosen = state.chosen.has(study.id);
        row.box.checked = isChosen;
        row.box.disabled = !isChosen && state.chosen.size >= MOST;
        row.swatch.className = isChosen ? `swatch ${state.colourOf(study.id)}` : "swatch unchosen";
        update(row, study);
      },
    });
  }

  return {
    card: card({ id: "choice", title: "Studies" }, scrolling("choice", "scroll list stacks", table)),
    shows: ["studies"],
    draw,
    tick: draw,
    everyMs: 5000,
  };
}

/**
 * @param {StudyView} study
 * @param {(id: number, isChosen: boolean) => void} choose
 */
function create(study, choose) {
  const box = h("input", { type: "checkbox", "aria-label": `compare ${study.name}` });
  box.addEventListener("change", () => choose(study.id, box.checked));
  const swatch = h("span", { class: "swatch" });
  const cells = {
    state: h("td"),
    trials: h("td", { class: "num", "data-label": "trials" }),
    best: h("td", { class: "num", "data-label": "best" }),
    hours: h("td", { class: "num", "data-label": "device-hours" }),
    wall: h("td", { class: "num", "data-label": "wall time" }),
  };
  const words = `${study.id} ${study.name}`;
  const name = h("td", {}, swatch, h("a", { class: "cut", href: `/studies/${study.id}`, title: words }, words));
  const objective = h("td", {}, objectiveWords(study.spec));
  const { state, trials, best, hours, wall } = cells;
  return {
    node: h("tr", {}, h("td", {}, box), name, objective, state, trials, best, hours, wall),
    box,
    swatch,
    ...cells,
  };
}

/**
 * @param {ReturnType<typeof create>} row
 * @param {StudyView} study
 */
function update(row, study) {
  const { ended, total } = progressOf(study);
  setStudyState(row.state, study);
  setText(row.trials, `${count(ended)} of ${count(total)}`);
  setText(row.best, isSeveral(study.spec) || !study.best ? "–" : metric(study.best.value));
  setText(row.hours, num(study.device_seconds / HOUR));
  setText(row.wall, duration((study.finished_at ?? Date.now() / 1000) - study.created_at));
}
