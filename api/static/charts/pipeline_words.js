// One simulated step of a pipeline in words: its time, ranks, passes, waits, messages and memory.

import { mibWords, num, stepWords, toMib } from "../format.js";

/** @import { MessageView, PassView, RowView, TimelineView } from "../answers.d.ts" */

/** @type {[string, number][]} */
const FACTORS = [
  ["T", 1e12],
  ["G", 1e9],
  ["M", 1e6],
];

/**
 * How long the step is, and the shares of it in which ranks wait.
 * @param {TimelineView} step
 * @returns {string}
 */
export function shareWords({ makespan, unit, bubble_share: bubble, communication_share: communication }) {
  const words = [`predicted ${timeWords(makespan, unit)}`, `on average ${percent(bubble)} bubble`];
  if (communication !== null) words.push(`${percent(communication)} communication`);
  return words.join(" · ");
}

/**
 * All of the step in words.
 * @param {TimelineView} step
 * @returns {string}
 */
export function detailOf(step) {
  const memory = step.rows.map((row) => memoryWords(row, step.offered_bytes)).join(". ");
  return `${shareWords(step)}. ${memory}.`;
}

/**
 * The rank of a row, or its stage if several ranks share it.
 * @param {RowView} row
 * @returns {string}
 */
export function who({ stage, ranks }) {
  return ranks.length === 1 ? `Rank ${ranks[0]}` : `Stage ${stage}`;
}

/**
 * The stage and ranks of a row.
 * @param {RowView} row
 * @returns {string}
 */
export function whoInFull({ stage, ranks }) {
  return `Stage ${stage} on ${ranks.length === 1 ? "rank" : "ranks"} ${ranks.join(", ")}`;
}

/**
 * The largest memory of a row.
 * @param {RowView} row
 * @param {number | null} offered bytes of a device
 * @returns {string}
 */
export function memoryWords(row, offered) {
  const limit = offered === null ? "" : `; the device offers ${mibWords(toMib(offered))}`;
  return `${whoInFull(row)}: at most ${mibWords(toMib(row.peak_bytes))}${limit}`;
}

/**
 * What a rank computes in a pass, and when.
 * @param {PassView} one
 * @param {RowView} row
 * @param {TimelineView} step
 * @returns {string}
 */
export function passWords(one, row, step) {
  const name =
    one.kind === "update"
      ? "Update of the parameters"
      : `${one.kind === "forward" ? "Forward" : "Backward"} pass of micro-batch ${one.micro_batch}`;
  const sending = one.end - one.communicating_from;
  const said = sending > 0 ? `\ncommunicates for the last ${timeWords(sending, step.unit)} of it` : "";
  return `${name} on ${who(row).toLowerCase()}\n${spanWords(one.start, one.end, step)}${said}`;
}

/**
 * Why a rank computes nothing between two times.
 * @param {number} start
 * @param {number} end
 * @param {RowView} row
 * @param {TimelineView} step
 * @returns {string}
 */
export function waitWords(start, end, row, step) {
  return `${who(row)} waits for other stages (bubble)\n${spanWords(start, end, step)}`;
}

/**
 * What one stage sends to another.
 * @param {MessageView} message
 * @param {TimelineView} step
 * @returns {string}
 */
export function messageWords({ sender, receiver, micro_batch: microBatch, start, end }, step) {
  const sent = receiver > sender ? "Output" : "Gradient";
  const [from, to] = [sender, receiver].map((stage) => who(step.rows[stage]).toLowerCase());
  const time = end > start ? `\n${spanWords(start, end, step)}` : "";
  return `${sent} of micro-batch ${microBatch} from ${from} to ${to}${time}`;
}

/**
 * @param {number} start
 * @param {number} end
 * @param {TimelineView} step
 * @returns {string}
 */
function spanWords(start, end, { unit }) {
  return `${timeWords(start, unit)} to ${timeWords(end, unit)}, ${timeWords(end - start, unit)} long`;
}

/**
 * A time in the unit of the step: seconds, or FLOPs of a rank where the speed of its devices is not known.
 * @param {number} time
 * @param {string} unit
 * @returns {string}
 */
export function timeWords(time, unit) {
  if (unit === "s") return stepWords(time);
  const [prefix, factor] = FACTORS.find(([, one]) => time >= one) ?? ["", 1];
  return `${num(time / factor)} ${prefix}FLOP`;
}

/**
 * @param {number} share
 * @returns {string}
 */
function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
