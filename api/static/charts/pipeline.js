// One simulated step of a pipeline as SVG: a row for each stage with its passes, messages between the rows, and below
// them the memory of each rank. Names stay in place while a narrow window scrolls the drawing.

import { h, svg } from "../elements/dom.js";
import { mibWords, toMib } from "../format.js";
import {
  detailOf,
  memoryWords,
  messageWords,
  passWords,
  timeWords,
  waitWords,
  who,
  whoInFull,
} from "./pipeline_words.js";
import { tickSize } from "./scales.js";

/** @import { MessageView, PassView, RowView, TimelineView } from "../answers.d.ts" */

/** @typedef {(time: number) => number} Scale from the time in a step to pixels from the left */

const ROW = 26; // heights and widths in CSS pixels
const BETWEEN = 14; // room for messages
const AXIS = 22;
const MEMORY = 46;
const APART = 10; // between memories
const EDGE = 6; // left and right of the drawing, for the words of the axis
const PASS = 12; // least width of a typical pass, as far as MOST allows
const MOST = 6000;
const MOST_MESSAGES = 2000; // of more, nobody could tell one line from the next
const LETTER = 7; // width of a digit
const TICK = 90; // least distance between the words of the axis

export class Pipeline {
  /**
   * Draws into `box`, and explains what is drawn in `legend`.
   * @param {HTMLElement} box
   * @param {HTMLElement} legend
   */
  constructor(box, legend) {
    this.box = box;
    this.legend = legend;
    this.step = null;
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(box);
  }

  /**
   * Draw this step.
   * @param {TimelineView} step
   */
  show(step) {
    this.step = step;
    this.width = 0;
    this.resize();
    this.legend.replaceChildren(...legendOf(step));
  }

  resize() {
    const width = this.box.clientWidth;
    if (!this.step || !width || width === this.width) return;
    this.width = width;
    const scrolled = this.box.querySelector(".plot")?.scrollLeft ?? 0;
    const names = h("div", { class: "names", "aria-hidden": "true" });
    const plot = h("div", { class: "plot", tabindex: "0", role: "region", "aria-label": "One step of the pipeline" });
    this.box.replaceChildren(names, plot);
    const layout = new RowLayout(this.step);
    names.append(...namesOf(this.step, layout));
    plot.append(drawing(this.step, layout, widthOf(this.step, plot.clientWidth)));
    plot.scrollLeft = scrolled;
  }
}

/** Where rows and memories begin, from the top. */
class RowLayout {
  /** @param {TimelineView} step */
  constructor({ rows }) {
    this.num = rows.length;
    this.axis = this.num * (ROW + BETWEEN);
    this.height = this.memory(this.num) - APART + 2;
  }

  /**
   * @param {number} stage
   * @returns {number}
   */
  row(stage) {
    return 4 + stage * (ROW + BETWEEN);
  }

  /**
   * @param {number} stage
   * @returns {number}
   */
  memory(stage) {
    return this.axis + AXIS + APART + stage * (MEMORY + APART);
  }
}

/**
 * The width of the window, or more if passes would be too narrow.
 * @param {TimelineView} step
 * @param {number} room
 * @returns {number}
 */
function widthOf({ rows, makespan }, room) {
  const lengths = rows
    .flatMap(({ passes }) => passes.filter((one) => one.kind !== "update").map((one) => one.end - one.start))
    .sort((a, b) => a - b);
  const typical = lengths[lengths.length >> 2];
  return Math.max(room, Math.min(MOST, 2 * EDGE + (typical > 0 ? (PASS * makespan) / typical : 0)));
}

// --- names -----------------------------------------------------------------------------------------------------------

/**
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @returns {HTMLElement[]}
 */
function namesOf({ rows, offered_bytes: offered }, layout) {
  const names = rows.map((row) => nameOf(layout.row(row.stage), ROW, [who(row)], whoInFull(row)));
  const memories = rows.map((row) => {
    const limit = offered === null ? "" : ` of ${mibWords(toMib(offered))}`;
    return nameOf(
      layout.memory(row.stage),
      MEMORY,
      [who(row), h("small", {}, `${mibWords(toMib(row.peak_bytes))}${limit}`)],
      memoryWords(row, offered),
    );
  });
  return [...names, nameOf(layout.axis, AXIS + APART, [h("small", {}, "Memory held")], ""), ...memories];
}

/**
 * @param {number} top
 * @param {number} height
 * @param {(string | Node)[]} words
 * @param {string} title
 * @returns {HTMLElement}
 */
function nameOf(top, height, words, title) {
  const node = h("span", { title }, words);
  node.style.top = `${top}px`;
  node.style.height = `${height}px`;
  return node;
}

// --- the drawing -------------------------------------------------------------------------------------------------------

/**
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @param {number} width
 * @returns {SVGSVGElement}
 */
function drawing(step, layout, width) {
  /** @type {Scale} */
  const scale = (time) => EDGE + ((width - 2 * EDGE) * time) / (step.makespan || 1);
  const hatch = svg(
    "pattern",
    { id: "communicating", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 2.5, height: 5 }),
  );
  return svg(
    "svg",
    {
      class: "step",
      role: "img",
      "aria-labelledby": "step-words step-detail",
      width,
      height: layout.height,
      viewBox: `0 0 ${width} ${layout.height}`,
    },
    svg(
      "title",
      { id: "step-words" },
      `One optimizer step of a pipeline of ${step.rows.length} stages and ${step.num_micro_batches} micro-batches`,
    ),
    svg("desc", { id: "step-detail" }, detailOf(step)),
    svg("defs", {}, hatch),
    axisOf(step, layout, scale, width),
    step.rows.map((row) => passesOf(row, step, layout, scale)),
    step.messages.length <= MOST_MESSAGES && step.messages.map((message) => messageOf(message, step, layout, scale)),
    step.rows.map((row) => memoryOf(row, step, layout, scale)),
  );
}

/**
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @param {Scale} scale
 * @param {number} width
 * @returns {SVGGElement}
 */
function axisOf({ makespan, unit }, layout, scale, width) {
  const size = tickSize(makespan, Math.max(3, Math.floor(width / TICK)));
  const nodes = [];
  for (let tick = 0; tick * size <= makespan; tick += 1) {
    const x = scale(tick * size);
    const beside = x + TICK / 2 > width ? "end" : tick ? "middle" : "start";
    nodes.push(svg("line", { class: "tick", x1: x, x2: x, y1: 0, y2: layout.height }));
    nodes.push(
      svg(
        "text",
        { class: "time", x, y: layout.axis + 14, "text-anchor": beside },
        tick ? timeWords(tick * size, unit) : "0",
      ),
    );
  }
  return svg("g", {}, nodes);
}

/**
 * @param {RowView} row
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @param {Scale} scale
 * @returns {SVGGElement}
 */
function passesOf(row, step, layout, scale) {
  const top = layout.row(row.stage);
  const line = svg("rect", { class: "lane", x: scale(0), y: top, width: scale(step.makespan) - scale(0), height: ROW });
  const waits = row.waits.map(([start, end]) =>
    svg(
      "rect",
      { class: "wait", ...across(start, end, scale), y: top, height: ROW },
      svg("title", {}, waitWords(start, end, row, step)),
    ),
  );
  return svg(
    "g",
    {},
    line,
    waits,
    row.passes.map((one) => passOf(one, row, step, top, scale)),
  );
}

/**
 * @param {PassView} one
 * @param {RowView} row
 * @param {TimelineView} step
 * @param {number} top
 * @param {Scale} scale
 * @returns {SVGGElement}
 */
function passOf(one, row, step, top, scale) {
  const box = across(one.start, one.end, scale);
  const words = one.micro_batch === null ? "" : String(one.micro_batch);
  const isSending = one.end > one.communicating_from;
  return svg(
    "g",
    { class: `pass ${one.kind}` },
    svg("title", {}, passWords(one, row, step)),
    svg("rect", { class: "box", ...box, y: top, height: ROW }),
    isSending &&
      svg("rect", { class: "sending", ...across(one.communicating_from, one.end, scale), y: top, height: ROW }),
    box.width >= 4 + LETTER * words.length &&
      svg(
        "text",
        { x: box.x + box.width / 2, y: top + ROW / 2, "text-anchor": "middle", "dominant-baseline": "central" },
        words,
      ),
  );
}

/**
 * A line from the sender's row to the receiver's, in the room between them.
 * @param {MessageView} message
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @param {Scale} scale
 * @returns {SVGGElement}
 */
function messageOf(message, step, layout, scale) {
  const { sender, receiver, start, end } = message;
  const down = receiver > sender;
  const from = layout.row(sender) + (down ? ROW : 0);
  const to = layout.row(receiver) + (down ? 0 : ROW);
  const ends = { x1: scale(start), x2: scale(end), y1: from, y2: to };
  return svg(
    "g",
    { class: `message ${down ? "forward" : "backward"}` },
    svg("title", {}, messageWords(message, step)),
    svg("line", { class: "reach", ...ends }),
    svg("line", ends),
    svg("circle", { cx: ends.x2, cy: to, r: 2 }),
  );
}

/**
 * @param {RowView} row
 * @param {TimelineView} step
 * @param {RowLayout} layout
 * @param {Scale} scale
 * @returns {SVGGElement}
 */
function memoryOf(row, step, layout, scale) {
  const top = layout.memory(row.stage);
  const most = Math.max(step.offered_bytes ?? 0, ...step.rows.map((one) => one.peak_bytes), 1) * 1.06;
  /** @type {(bytes: number) => number} */
  const y = (bytes) => top + MEMORY * (1 - bytes / most);
  const points = row.memory.map(
    ([time, bytes], at) => `${at ? "H" : "M"}${scale(time).toFixed(1)}${at ? "V" : ","}${y(bytes).toFixed(1)}`,
  );
  const line = `${points.join("")}H${scale(step.makespan).toFixed(1)}`;
  const ends = { x1: scale(0), x2: scale(step.makespan) };
  return svg(
    "g",
    { class: "memory" },
    svg("title", {}, memoryWords(row, step.offered_bytes)),
    svg("rect", { class: "lane", x: ends.x1, y: top, width: ends.x2 - ends.x1, height: MEMORY }),
    svg("path", { class: "area", d: `${line}V${top + MEMORY}H${ends.x1}Z` }),
    svg("path", { class: "held", d: line }),
    step.offered_bytes !== null &&
      svg("line", { class: "limit", ...ends, y1: y(step.offered_bytes), y2: y(step.offered_bytes) }),
  );
}

/**
 * @param {number} start
 * @param {number} end
 * @param {Scale} scale
 */
function across(start, end, scale) {
  return { x: scale(start), width: Math.max(0, scale(end) - scale(start)) };
}

// --- legend ------------------------------------------------------------------------------------------------------------

/**
 * @param {TimelineView} step
 * @returns {any[]} texts and elements
 */
function legendOf({ rows, communication_share: communication, offered_bytes: offered, unit, cores }) {
  return [
    key("forward", "forward"),
    key("backward", "backward"),
    rows.some(({ passes }) => passes.at(-1)?.kind === "update") && key("update", "update"),
    key("wait", "bubble: waits for other stages"),
    communication === null
      ? "the speed of links is not known, so messages take no time"
      : key("sending", "communicates"),
    key("held", "memory of a rank"),
    offered !== null && key("limit", "what its device offers"),
    cores !== null && "ranks share the cores of their host, so passes take longer while more ranks compute",
    unit === "FLOP" && "times are FLOPs of a rank: the speed of these devices is not known",
  ].filter((words) => words);
}

/**
 * A sample of how something is drawn, with its meaning.
 * @param {string} kind
 * @param {string} words
 * @returns {HTMLElement}
 */
function key(kind, words) {
  return h("span", { class: `key ${kind}` }, words);
}
