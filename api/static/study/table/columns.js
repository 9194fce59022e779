// The columns of the trial table: what each one shows, and the name of its order in the API.

import { h, setText, setTitle } from "../../elements/dom.js";
import { setState } from "../../elements/marks.js";
import {
  count,
  duration,
  isBlock,
  mib,
  microBatch,
  objectiveValue,
  paramValue,
  paramsLine,
  secondsSinceLaunch,
  trialValue,
} from "../../format.js";
import { isSeveral, objectivesOf } from "../../objectives.js";
import { parameterKey, valueAt } from "./view.js";

/** @import { Trial } from "../../client.js" */
/** @import { Column } from "../../elements/table.js" */
/** @import { Spec } from "../../objectives.js" */

/** @typedef {Column<Trial>} TrialColumn */

const [LEAST_WIDTH, MOST_WIDTH] = [84, 200]; // pixels of a column whose name a user has chosen
const [LETTER_WIDTH, PADDING] = [7.2, 34]; // pixels of a letter in its head, and beside the name

/**
 * @param {(trial: Trial) => unknown} value
 * @returns {(cell: HTMLElement, trial: Trial) => void}
 */
function text(value) {
  return (cell, trial) => setText(cell, value(trial));
}

/**
 * @param {(trial: Trial) => string} value
 * @param {(trial: Trial) => string} [title]
 * @returns {(cell: HTMLElement, trial: Trial) => void}
 */
function titled(value, title = value) {
  return (cell, trial) => {
    setText(cell, value(trial));
    setTitle(cell, title(trial));
  };
}

/**
 * Fill a cell with the reason in at most two lines; its tooltip has all of it.
 * @param {HTMLElement} cell
 * @param {Trial} trial
 */
function reason(cell, { reason: words }) {
  if (!cell.hasChildNodes()) cell.append(h("div", { class: "two-lines" }));
  setText(/** @type {HTMLElement} */ (cell.firstChild), words || "");
  setTitle(cell, words || "");
}

/**
 * @param {HTMLElement} cell
 * @param {Trial} trial
 */
function attempts(cell, trial) {
  const { num_oom: numOom, num_lost: numLost } = trial;
  const short = joined([numOom && `${numOom} OOM`, numLost && `${numLost} lost`], ", ");
  setText(cell, joined([count(trial.attempt), short], " · "));
  const healed = trial.healed ? ", healed by a new plan" : "";
  const oom = numOom && `${numOom} × out of memory${healed}`;
  setTitle(cell, joined([oom, numLost && `${numLost} × lost and run again`], "; "));
}

/**
 * The parts that say something, in one line.
 * @param {(string | number)[]} parts 0 and "" are left out
 * @param {string} separator
 * @returns {string}
 */
function joined(parts, separator) {
  return parts.filter(Boolean).join(separator);
}

/**
 * Width of a column with this name, in pixels.
 * @param {string} name
 * @returns {number}
 */
function widthOf(name) {
  return Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, PADDING + LETTER_WIDTH * name.length));
}

/**
 * The columns of several objectives, in their order; none for one, whose column is that of the value.
 * @param {Spec} spec
 * @returns {TrialColumn[]}
 */
export function objectiveColumns(spec) {
  if (!isSeveral(spec)) return [];
  return objectivesOf(spec).map(({ metric: name, direction }, index) => ({
    key: `values.${index}`,
    name,
    title: `${direction} ${name}`,
    width: widthOf(name),
    numeric: true,
    isLargeFirst: () => direction === "maximize",
    cell: text((trial) => objectiveValue(name, trial.values?.[index])),
  }));
}

/**
 * The column of one parameter. `dimension`: how the study file has it, if it does.
 * @param {string} name
 * @param {Record<string, any> | undefined} dimension
 * @returns {TrialColumn}
 */
export function parameterColumn(name, dimension) {
  const words = (/** @type {Trial} */ trial) => {
    const value = valueAt(trial.params, name);
    if (value === undefined) return "–";
    return isBlocks(value) ? count(value.length) : paramValue(value);
  };
  return {
    key: parameterKey(name),
    name,
    width: widthOf(name),
    numeric: dimension?.low !== undefined || dimension?.repeat !== undefined,
    title: `Parameter ${name}`,
    cell: titled(words, (trial) => {
      const value = valueAt(trial.params, name);
      return value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    }),
  };
}

/**
 * Whether the value of a parameter is a list of blocks.
 * @param {unknown} value
 * @returns {value is object[]}
 */
function isBlocks(value) {
  return Array.isArray(value) && isBlock(value[0]);
}

/** @type {TrialColumn[]} the plan of a trial */
const PLAN = [
  {
    key: "ranks",
    name: "Plan",
    width: 114,
    cell: titled(
      (trial) => trial.plan_short || "–",
      (trial) => trial.plan_text,
    ),
  },
  {
    key: "batch",
    name: "Batch",
    width: 60,
    numeric: true,
    title: "Effective batch: samples per optimizer step over all ranks",
    cell: text((trial) => (trial.batch ? count(trial.batch) : "–")),
  },
  {
    key: "micro_batch",
    name: "Micro",
    width: 64,
    numeric: true,
    isExtra: true,
    title: "Micro-batches per step × samples per micro-batch, on one rank",
    cell: text((trial) => microBatch(trial.plan)),
  },
  {
    key: "recompute",
    name: "Recomp.",
    width: 76,
    isExtra: true,
    title: "Activations are recomputed in the backward pass",
    cell: text((trial) => (trial.plan ? (trial.plan.recompute ? "yes" : "no") : "–")),
  },
];

/** @type {TrialColumn[]} memory of one rank */
const MEMORY = [
  {
    key: "predicted",
    name: "Pred. MiB",
    width: 80,
    numeric: true,
    title: "Predicted peak memory of one rank",
    cell: text((trial) => mib(trial.predicted_mib)),
  },
  {
    key: "measured",
    name: "Meas. MiB",
    width: 82,
    numeric: true,
    title: "Measured peak memory of one rank; a lower bound if it ran out of memory",
    cell: text((trial) => mib(trial.measured_mib)),
  },
  {
    key: "reserved",
    name: "Resv. MiB",
    width: 80,
    numeric: true,
    title: "Memory reserved on a device for one rank",
    cell: text((trial) => (trial.reserved_mib ? count(trial.reserved_mib) : "–")),
  },
];

/**
 * All columns but those of single parameters. `fixed()` returns the parameters that are the same in all trials of the
 * study, `isLargeFirst()` whether large values are better. Extra columns are not shown by default.
 * @param {number} studyId
 * @param {() => Record<string, any>} fixed
 * @param {() => boolean} [isLargeFirst]
 * @returns {TrialColumn[]}
 */
export function trialColumns(studyId, fixed, isLargeFirst = () => false) {
  const link = (/** @type {HTMLElement} */ cell, /** @type {number} */ number) => {
    if (cell.hasChildNodes()) return; // a row keeps its number
    cell.append(h("a", { href: `/studies/${studyId}/trials/${number}` }, number));
  };
  return [
    {
      key: "number",
      name: "#",
      width: 62,
      numeric: true,
      cell: (cell, trial) => link(cell, trial.number),
      numberCell: link,
    },
    { key: "state", name: "State", width: 112, cell: (cell, trial) => setState(cell, trial.state) },
    { key: "value", name: "Value", width: 104, numeric: true, isLargeFirst, cell: text(trialValue) },
    { key: "reason", name: "Reason", least: 240, cell: reason },
    {
      key: "params",
      name: "Parameters",
      title: "All parameters that are not fixed",
      isExtra: true,
      least: 160,
      cell: titled(
        (trial) => paramsLine(trial.params, fixed()),
        (trial) => paramsLine(trial.params),
      ),
    },
    ...PLAN,
    ...MEMORY,
    { key: "attempts", name: "Attempts", width: 90, cell: attempts },
    {
      key: "seconds",
      name: "Elapsed",
      width: 92,
      numeric: true,
      title: "From the first launch to the end, including the time between attempts",
      cell: text((trial) => duration(secondsSinceLaunch(trial))),
    },
  ];
}
