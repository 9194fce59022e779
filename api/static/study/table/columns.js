// The columns of the trial table: what each one shows, and the name of its order in the API.

import { h, setText, setTitle } from "../../elements/dom.js";
import { setState } from "../../elements/marks.js";
import {
  count,
  duration,
  metric,
  mib,
  microBatch,
  objectiveValue,
  paramValue,
  paramsLine,
  runSeconds,
} from "../../format.js";
import { isSeveral, objectivesOf } from "../../objectives.js";
import { parameterKey, valueAt } from "./view.js";

/** @import { Trial } from "../../client.js" */
/** @import { Column } from "../../elements/table.js" */
/** @import { Spec } from "../../objectives.js" */

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
 * @param {HTMLElement} cell
 * @param {Trial} trial
 */
function attempts(cell, trial) {
  const short = [trial.num_oom && `${trial.num_oom} OOM`, trial.num_lost && `${trial.num_lost} lost`]
    .filter(Boolean)
    .join(", ");
  setText(cell, `${count(trial.attempt)}${short ? ` · ${short}` : ""}`);
  const healed = trial.healed ? ", healed by a new plan" : "";
  setTitle(
    cell,
    [
      trial.num_oom && `${trial.num_oom} × out of memory${healed}`,
      trial.num_lost && `${trial.num_lost} × lost and run again`,
    ]
      .filter(Boolean)
      .join("; "),
  );
}

/**
 * The columns of several objectives, in their order; none for one, whose column is that of the value.
 * @param {Spec} spec
 * @returns {Column[]}
 */
export function objectiveColumns(spec) {
  if (!isSeveral(spec)) return [];
  return objectivesOf(spec).map(({ metric: name, direction }, index) => ({
    key: `values.${index}`,
    name,
    title: `${direction} ${name}`,
    width: Math.min(200, Math.max(84, 34 + 7.2 * name.length)),
    numeric: true,
    isLargeFirst: () => direction === "maximize",
    cell: text((trial) => objectiveValue(name, trial.values?.[index])),
  }));
}

/**
 * The column of one parameter. `dimension`: how the study file has it, if it does.
 * @param {string} name
 * @param {Record<string, any> | undefined} dimension
 * @returns {Column}
 */
export function parameterColumn(name, dimension) {
  const words = (/** @type {Trial} */ trial) => {
    const value = valueAt(trial.params, name);
    return value === undefined
      ? "–"
      : Array.isArray(value) && value[0]?.constructor === Object
        ? count(value.length)
        : paramValue(value);
  };
  return {
    key: parameterKey(name),
    name,
    width: Math.min(200, Math.max(84, 34 + 7.2 * name.length)),
    numeric: dimension?.low !== undefined || dimension?.repeat !== undefined,
    title: `Parameter ${name}`,
    cell: titled(words, (trial) => {
      const value = valueAt(trial.params, name);
      return value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    }),
  };
}

/** @type {Column[]} the plan of a trial */
const PLAN = [
  {
    key: "ranks",
    name: "Plan",
    width: 114,
    cell: titled(
      (t) => t.plan_short || "–",
      (t) => t.plan_text,
    ),
  },
  {
    key: "batch",
    name: "Batch",
    width: 60,
    numeric: true,
    title: "Effective batch: samples per optimizer step over all ranks",
    cell: text((t) => (t.batch ? count(t.batch) : "–")),
  },
  {
    key: "micro_batch",
    name: "Micro",
    width: 64,
    numeric: true,
    title: "Micro-batches per step × samples per micro-batch, on one rank",
    cell: text((t) => microBatch(t.plan)),
  },
  {
    key: "recompute",
    name: "Recomp.",
    width: 76,
    title: "Activations are recomputed in the backward pass",
    cell: text((t) => (t.plan ? (t.plan.recompute ? "yes" : "no") : "–")),
  },
];

/** @type {Column[]} memory of one rank */
const MEMORY = [
  {
    key: "predicted",
    name: "Pred. MiB",
    width: 80,
    numeric: true,
    title: "Predicted peak memory of one rank",
    cell: text((t) => mib(t.predicted_mib)),
  },
  {
    key: "measured",
    name: "Meas. MiB",
    width: 82,
    numeric: true,
    title: "Measured peak memory of one rank; a lower bound if it ran out of memory",
    cell: text((t) => mib(t.measured_mib)),
  },
  {
    key: "reserved",
    name: "Resv. MiB",
    width: 80,
    numeric: true,
    title: "Memory reserved on a device for one rank",
    cell: text((t) => (t.reserved_mib ? count(t.reserved_mib) : "–")),
  },
];

/**
 * All columns but those of single parameters. `fixed()` returns the parameters that are the same in all trials of the
 * study, `isLargeFirst()` whether large values are better. Extra columns are not shown by default.
 * @param {number} studyId
 * @param {() => Record<string, any>} fixed
 * @param {() => boolean} [isLargeFirst]
 * @returns {Column[]}
 */
export function trialColumns(studyId, fixed, isLargeFirst = () => false) {
  const link = (/** @type {HTMLElement} */ cell, /** @type {Trial} */ trial) => {
    const shown = cell.firstChild ?? h("a", { href: `/studies/${studyId}/trials/${trial.number}` });
    if (!cell.firstChild) cell.append(shown);
    setText(shown, trial.number);
  };
  return [
    { key: "number", name: "#", width: 62, numeric: true, cell: link },
    { key: "state", name: "State", width: 112, cell: (cell, t) => setState(cell, t.state) },
    { key: "value", name: "Value", width: 74, numeric: true, isLargeFirst, cell: text((t) => metric(t.value)) },
    {
      key: "params",
      name: "Parameters",
      title: "All parameters that are not fixed",
      isExtra: true,
      least: 160,
      cell: titled(
        (t) => paramsLine(t.params, fixed()),
        (t) => paramsLine(t.params),
      ),
    },
    ...PLAN,
    ...MEMORY,
    { key: "attempts", name: "Attempts", width: 90, cell: attempts },
    {
      key: "seconds",
      name: "Time",
      width: 92,
      numeric: true,
      title: "From the first launch to the end",
      cell: text((t) => duration(runSeconds(t))),
    },
    { key: "reason", name: "Reason", least: 112, cell: titled((t) => t.reason || "") },
  ];
}
