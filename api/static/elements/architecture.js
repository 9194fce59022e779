// The architecture of a candidate: each list of repeated blocks as a row of boxes, in the order in which data pass them.
// A box is the wider the larger its first number is, and coloured by its first choice; equal neighbours are one box.

import { count, paramValue } from "../format.js";
import { h } from "./dom.js";

/** @typedef {Record<string, any>} Block parameters of one of the repeated blocks */

const COLOURS = 10;

/**
 * The pictures of all lists of blocks among `params`, or null if there is none.
 * @param {Record<string, any> | null} params
 * @returns {HTMLDivElement | null}
 */
export function architecture(params) {
  const lists = Object.entries(params ?? {}).filter(([, value]) => isBlocks(value));
  return lists.length
    ? h(
        "div",
        { class: "architecture" },
        lists.map(([name, blocks]) => picture(name, blocks)),
      )
    : null;
}

/**
 * Whether a value is a list of blocks.
 * @param {unknown} value
 * @returns {boolean}
 */
export function isBlocks(value) {
  return Array.isArray(value) && value.length > 0 && value.every(isBlock);
}

/**
 * @param {unknown} value
 * @returns {boolean}
 */
function isBlock(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/**
 * Neighbours that are equal, as one: [{block, first, times}]. `first`: index of the first of them.
 * @param {Block[]} blocks
 * @returns {{block: Block, first: number, times: number}[]}
 */
export function runs(blocks) {
  /** @type {{block: Block, first: number, times: number}[]} */
  const found = [];
  blocks.forEach((block, index) => {
    const last = found.at(-1);
    if (last && JSON.stringify(last.block) === JSON.stringify(block)) last.times += 1;
    else found.push({ block, first: index, times: 1 });
  });
  return found;
}

/**
 * Names of the number that gives the width and of the choice that gives the colour; null where no block has one.
 * @param {Block[]} blocks
 * @returns {{size: string | null, kind: string | null}}
 */
export function looks(blocks) {
  const names = [...new Set(blocks.flatMap((block) => Object.keys(block)))];
  const values = (/** @type {string} */ name) =>
    blocks.map((block) => block[name]).filter((value) => value !== undefined);
  const isSized = (/** @type {string} */ name) =>
    values(name).every((value) => typeof value === "number" && value >= 0);
  const isNamed = (/** @type {string} */ name) => values(name).some((value) => typeof value === "string");
  return { size: names.find(isSized) ?? null, kind: names.find(isNamed) ?? null };
}

/**
 * @param {string} name
 * @param {Block[]} blocks
 * @returns {HTMLElement}
 */
function picture(name, blocks) {
  const { size, kind } = looks(blocks);
  const sizeOf = (/** @type {Block} */ block) => (size === null ? 0 : (block[size] ?? 0));
  const kindOf = (/** @type {Block} */ block) => (kind === null ? undefined : block[kind]);
  const largest = Math.max(...blocks.map(sizeOf), 0);
  const kinds = [...new Set(blocks.map(kindOf).filter((value) => value !== undefined))].sort();
  const boxes = runs(blocks).map(({ block, first, times }) => {
    const node = h("li", {
      class: kindOf(block) === undefined ? "box" : `box g${kinds.indexOf(kindOf(block)) % COLOURS}`,
    });
    if (size && largest) node.style.setProperty("--size", String(sizeOf(block) / largest));
    node.append(...content(block, kind));
    const range = times > 1 ? `${first}–${first + times - 1}` : String(first);
    node.prepend(h("span", { class: "place" }, times > 1 ? `${range} · × ${times}` : range));
    return node;
  });
  const words = `${name}: ${count(blocks.length)} ${blocks.length === 1 ? "block" : "blocks"}`;
  return h("figure", {}, h("figcaption", {}, words), h("ol", { class: "blocks", start: "0" }, boxes));
}

/**
 * @param {Block} block
 * @param {string | null} kind
 * @returns {HTMLElement[]}
 */
function content(block, kind) {
  const nested = Object.entries(block).filter(([, value]) => isBlocks(value));
  const plain = Object.entries(block).filter(([name, value]) => name !== kind && !isBlocks(value));
  return [
    ...(kind && block[kind] !== undefined ? [h("b", {}, paramValue(block[kind]))] : []),
    ...plain.map(([name, value]) => h("span", {}, `${name} ${paramValue(value)}`)),
    ...nested.map(([name, blocks]) => picture(name, blocks)),
  ];
}
