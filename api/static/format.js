// Numbers, sizes, times and plans as text.

import { TERMINAL } from "./states.js";

/** @typedef {number | null | undefined} Maybe a number that may not be known */

const MIB = 2 ** 20;
const NONE = "–";
/** @type {[string, number][]} */
const SIZES = [
  ["GB", 1e9],
  ["MB", 1e6],
  ["kB", 1e3],
];
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/**
 * Four significant digits without trailing zeros: 0.9531, 12.3, 3e-4.
 * @param {unknown} value
 * @returns {string}
 */
export function num(value) {
  if (value === null || value === undefined || value === "") return NONE;
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size < 1e-3 || size >= 1e6)
    return number
      .toExponential(2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  if (Number.isInteger(number)) return grouped.format(number);
  return String(Number(number.toPrecision(4)));
}

/**
 * An objective or metric value, with four decimals in the usual range, so that a column lines up.
 * @param {Maybe} value
 * @returns {string}
 */
export function metric(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e4)) return num(value);
  return value.toFixed(size < 10 ? 4 : size < 100 ? 3 : size < 1000 ? 2 : 1);
}

/**
 * What a change of the audit log says besides what was done.
 * @param {Record<string, any>} detail
 * @returns {string}
 */
export function detailWords(detail) {
  const known = Object.entries(detail).filter(([, value]) => value !== null);
  return known.map(([key, value]) => `${key} ${JSON.stringify(value)}`).join(", ");
}

/**
 * The value of a trial, with the standard deviation over its seeds if it was repeated.
 * @param {{value: Maybe, deviations: Maybe[]}} trial
 * @returns {string}
 */
export function trialValue({ value, deviations }) {
  const [deviation] = deviations;
  return metric(value) + (typeof deviation === "number" && value !== null ? ` ± ${num(deviation)}` : "");
}

/**
 * A value of the objective `name`: numbers that were counted before a training have no decimals.
 * @param {string} name
 * @param {Maybe} value
 * @returns {string}
 */
export function objectiveValue(name, value) {
  return name.startsWith("predicted.") && Number.isInteger(value) ? num(value) : metric(value);
}

/**
 * A share from 0 to 1 in percent.
 * @param {number | null} share
 * @returns {string}
 */
export function percent(share) {
  return share === null ? NONE : `${Math.round(100 * share)} %`;
}

/**
 * A whole number with commas between thousands.
 * @param {number} value
 * @returns {string}
 */
export function count(value) {
  return grouped.format(value);
}

/**
 * MiB; null where bytes are not known or 0.
 * @param {Maybe} bytes
 * @returns {number | null}
 */
export function toMib(bytes) {
  return bytes ? bytes / MIB : null;
}

/**
 * MiB without the unit: one decimal below 100, and two significant digits below 1.
 * @param {Maybe} value
 * @returns {string}
 */
export function mib(value) {
  if (value === null || value === undefined || value === 0) return NONE;
  if (value < 0.95) return String(Number(value.toPrecision(2)));
  return value < 100 ? value.toFixed(1) : grouped.format(value);
}

/**
 * MiB with the unit, below 10 with a digit after the point; GiB from 10 GiB on.
 * @param {Maybe} value
 * @returns {string}
 */
export function mibWords(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 10 * 1024) return `${(value / 1024).toFixed(1)} GiB`;
  return `${value < 10 && !Number.isInteger(value) ? mib(value) : grouped.format(value)} MiB`;
}

/**
 * A size in bytes, kB, MB or GB, as file managers show it.
 * @param {number} bytes
 * @returns {string}
 */
export function bytesWords(bytes) {
  const [unit, size] = SIZES.find(([, one]) => bytes >= one) ?? ["", 1];
  return size === 1 ? plural(bytes, "byte") : `${(bytes / size).toPrecision(3)} ${unit}`;
}

/**
 * A count with its noun, such as "3 trials".
 * @param {number} number
 * @param {string} noun in the singular
 * @returns {string}
 */
export function plural(number, noun) {
  return `${grouped.format(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * The unit in which a study counts the steps of its trials.
 * @param {Record<string, any>} spec of the study
 * @returns {"epoch" | "step"}
 */
export function stepUnit({ budget }) {
  return budget.epochs ? "epoch" : "step";
}

/**
 * The project and the priority of a study where they are not the usual ones.
 * @param {Record<string, any>} spec of the study
 * @returns {string[]}
 */
export function placeWords({ project = "default", priority = 0 }) {
  return [project === "default" ? "" : `project ${project}`, priority ? `priority ${priority}` : ""].filter(Boolean);
}

/**
 * Seconds as words, such as "3 m 07 s".
 * @param {Maybe} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return NONE;
  if (seconds < 0) return "0 s";
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  if (seconds < 86400)
    return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/**
 * Seconds from a trial's first launch to its end, or until now, including waits; null before its launch.
 * @param {{started_at: number | null, finished_at: number | null}} trial
 * @param {number} [now] seconds since the epoch
 * @returns {number | null}
 */
export function secondsSinceLaunch(trial, now = Date.now() / 1000) {
  return trial.started_at ? (trial.finished_at ?? now) - trial.started_at : null;
}

/**
 * Seconds that attempts took from the launch, or with `started_at` from the start of the training; null without any.
 * @param {{created_at: number, started_at: number | null, ended_at: number | null}[]} attempts
 * @param {"created_at" | "started_at"} from
 * @param {number} [now] seconds since the epoch
 * @returns {number | null}
 */
export function attemptSeconds(attempts, from, now = Date.now() / 1000) {
  const begun = attempts.filter((attempt) => attempt[from]);
  if (!begun.length) return null;
  return begun.reduce((sum, attempt) => sum + (attempt.ended_at ?? now) - Number(attempt[from]), 0);
}

/**
 * Seconds of an optimizer step with the unit, in three digits.
 * @param {Maybe} seconds
 * @returns {string}
 */
export function stepWords(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${Number((1000 * seconds).toPrecision(3))} ms`;
  return seconds < 60 ? `${Number(seconds.toPrecision(3))} s` : duration(seconds);
}

/**
 * How long ago a time was.
 * @param {Maybe} time seconds since the epoch
 * @param {number} [now] seconds since the epoch
 * @returns {string}
 */
export function ago(time, now = Date.now() / 1000) {
  if (!time) return NONE;
  const seconds = Math.max(0, now - time);
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/**
 * The time of day.
 * @param {Maybe} time seconds since the epoch
 * @returns {string}
 */
export function clock(time) {
  return time ? new Date(time * 1000).toLocaleTimeString("en-GB") : NONE;
}

/**
 * The date and the time of day.
 * @param {Maybe} time seconds since the epoch
 * @returns {string}
 */
export function dateTime(time) {
  if (!time) return NONE;
  const at = new Date(time * 1000);
  return `${at.toLocaleDateString("en-CA")} ${at.toLocaleTimeString("en-GB")}`;
}

/**
 * The micro-batches of a step on one rank, such as "16 × 2".
 * @param {Record<string, any> | null} plan
 * @returns {string}
 */
export function microBatch(plan) {
  if (!plan) return NONE;
  const samples = plan.shares?.length ? [...new Set(plan.shares)].join("/") : plan.micro_batch;
  return plan.num_micro_batches > 1 ? `${plan.num_micro_batches} × ${samples}` : String(samples);
}

/**
 * The plan of a trial in one line.
 * @param {{plan_text: string, state: string, batch: number}} trial
 * @returns {string}
 */
export function planWords(trial) {
  if (!trial.plan_text) {
    if (trial.state === "INFEASIBLE") return "No plan fits";
    if (trial.state === "COMPLETED") return "It was measured elsewhere, not trained here";
    return TERMINAL.has(trial.state) ? "It ended before it had a plan" : "No plan yet";
  }
  return `${trial.plan_text}; effective batch ${count(trial.batch)}`;
}

/**
 * The value of a parameter: a number, a text, a list, or blocks.
 * @param {any} value
 * @returns {string}
 */
export function paramValue(value) {
  if (typeof value === "number") return num(value);
  if (Array.isArray(value)) return value.some(isBlock) ? value.map(blockWords).join(" | ") : JSON.stringify(value);
  return isBlock(value) ? blockWords(value) : String(value);
}

/**
 * Whether a value is one of the repeated blocks of a parameter.
 * @param {unknown} value
 * @returns {boolean}
 */
export function isBlock(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/**
 * @param {Record<string, any>} block
 * @returns {string}
 */
function blockWords(block) {
  return Object.entries(block)
    .map(([name, value]) => `${name} ${paramValue(value)}`)
    .join(", ");
}

/**
 * The parameters that differ from `fixed`, in one line.
 * @param {Record<string, any> | null} params
 * @param {Record<string, any>} [fixed]
 * @returns {string}
 */
export function paramsLine(params, fixed = {}) {
  return Object.entries(params ?? {})
    .filter(([name, value]) => JSON.stringify(fixed[name]) !== JSON.stringify(value))
    .map(([name, value]) => `${name} ${paramValue(value)}`)
    .join(" · ");
}
