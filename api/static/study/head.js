// The head of a study's page: its name, state and task, and its figures.

import { byId, setText } from "../elements/dom.js";
import { progressBar, setProgress, setStudyState } from "../elements/marks.js";
import { count, duration, metric, percent, placeWords, plural, stepUnit } from "../format.js";
import { isSeveral, objectiveWords } from "../objectives.js";
import { progressOf } from "../states.js";

/** @import { StudyDetail } from "../answers.d.ts" */
/** @import { Spec } from "../objectives.js" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext, StudyState } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function headPanel({ state }) {
  const bar = progressBar();
  byId("progress").append(bar);

  return {
    shows: ["study", "rows"],
    restMs: 100,
    draw() {
      drawTask(state.study);
      drawTrials(state, bar);
      drawFigures(state.study);
      drawTime(state.study);
    },
    tick: () => drawTime(state.study),
  };
}

/** @param {StudyDetail} study */
function drawTask(study) {
  const { name, spec, reason, warnings } = study;
  document.title = `${name} · ScaMP`;
  setText(byId("name"), name);
  setStudyState(byId("state"), study);
  const about = [taskWords(spec), study.owner && `by ${study.owner}`, ...study.tags.map((tag) => `#${tag}`)];
  setText(byId("subtitle"), about.filter(Boolean).join(" · "));
  byId("note").hidden = !study.note;
  setText(byId("note"), study.note);
  byId("reason").hidden = !reason;
  setText(byId("reason"), reason);
  byId("warnings").hidden = !warnings.length;
  setText(byId("warnings"), `Warning: ${warnings.join("; ")}`);
}

/**
 * What a study does, in one line.
 * @param {Spec} spec
 * @returns {string}
 */
export function taskWords(spec) {
  const { workload, search, stopping, budget } = spec;
  const [task, place] = [`${objectiveWords(spec)} · ${workload}`, placeWords(spec)];
  if (!search.sampler) return [task, "run by another program", ...place].join(" · ");
  const rules = [stopping].flat().map(ruleWords).join(" + ");
  const steps = `${plural(budget.epochs ?? budget.steps, stepUnit({ budget }))} per trial`;
  return [task, `${samplerWords(search.sampler)}, ${rules}`, steps, ...place].join(" · ");
}

/**
 * A sampler is a name, or a mapping of its name and options.
 * @param {string | Record<string, any>} sampler
 * @returns {string}
 */
function samplerWords(sampler) {
  if (typeof sampler === "string") return sampler;
  const members = sampler.population_size;
  return members ? `${sampler.name} with a population of ${members}` : sampler.name;
}

/**
 * @param {{rule: string, promote?: boolean}} options
 * @returns {string}
 */
function ruleWords({ rule, promote }) {
  if (rule === "none") return "no early stopping";
  return (rule === "asha" ? "ASHA" : rule) + (promote ? " by promotion" : "");
}

/**
 * @param {StudyState} state
 * @param {HTMLElement} bar
 */
function drawTrials({ study, runningRows }, bar) {
  const { trials, spec } = study;
  const { ended, total } = progressOf(study);
  setText(byId("done"), `${count(ended)} of ${count(total)}`);
  setProgress(bar, trials, spec.budget.trials);
  const ranks = runningRows.reduce((sum, trial) => sum + trial.num_ranks, 0);
  setText(byId("running-num"), count(trials.RUNNING ?? 0));
  setText(byId("running-ranks"), ranks ? ` on ${plural(ranks, "rank")}` : "");
}

/** @param {StudyDetail} study */
function drawFigures({ spec, best, summary }) {
  const hasFront = isSeveral(spec);
  setText(byId("best-label"), hasFront ? "On the Pareto front" : `Best ${spec.objective.metric}`);
  setText(byId("best"), hasFront ? count(summary.front.length) : metric(best?.value));
  setText(byId("healed"), count(summary.healed));
  setText(byId("memory-used"), share(summary.used_mib_seconds, summary.reserved_mib_seconds));
  setText(byId("busy"), percent(summary.busy_share));
  setText(byId("communication"), share(summary.communication_seconds, summary.device_seconds));
}

/**
 * A part of a whole in percent; a dash as long as there is none.
 * @param {number} part
 * @param {number} whole
 * @returns {string}
 */
function share(part, whole) {
  return part > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

/** @param {StudyDetail} study */
function drawTime({ finished_at: finished, created_at: created }) {
  setText(byId("wall"), duration((finished ?? Date.now() / 1000) - created));
}
