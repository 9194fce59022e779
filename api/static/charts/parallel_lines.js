// How parallel coordinates look: where axes and lines are in CSS pixels, and how they are drawn. It knows no events.

import { required } from "../required.js";
import { bestFirst, clamped, objectiveAxis, shareOf, ticks } from "./axes.js";
import { REACH } from "./chart.js";
import { Pen } from "./pen.js";

/** @import { CandidatesView } from "../answers.d.ts" */
/** @import { Objective } from "../objectives.js" */
/** @import { Axis, ObjectiveAxis } from "./axes.js" */

/** @typedef {{axis: number, from: number, to: number, isMoving: boolean}} Drag a range that is drawn on an axis, in pixels */

const GAP = 76; // least pixels between axes; with more of them the chart scrolls
const MARGIN = { left: 44, right: 44, top: 34, bottom: 16 };
const LANE = 22; // height of the lane below the axes for trials without a parameter
const GRIP = 12; // pixels beside an axis within which the pointer is on it
const FONT = '11px system-ui, "Liberation Sans", sans-serif';

export const TOP = MARGIN.top; // of the axes

/**
 * Trials in three groups by their rank, 0 to 1, the best last in each.
 * @param {number[]} order indices of the trials, the best first
 * @param {number[]} rank
 * @returns {{indices: number[], colour: string, alpha: number, width: number}[]}
 */
export function groups(order, rank) {
  const between = (/** @type {number} */ low, /** @type {number} */ high) =>
    order.filter((index) => rank[index] >= low && rank[index] < high).toReversed();
  const best = between(0, 0.1);
  return [
    { indices: between(0.5, 2), colour: "faint", alpha: 0.22, width: 1 },
    { indices: between(0.1, 0.5), colour: "running", alpha: 0.35, width: 1 },
    { indices: best, colour: "best", alpha: Math.max(0.3, Math.min(0.8, 60 / best.length)), width: 1.5 },
  ];
}

/**
 * Vertical share, 0 at the bottom, of a trial on each axis; null where it has no parameter. The best value is on top.
 * @param {Axis[]} axes those of parameters
 * @param {number[]} value objective of each trial
 * @param {Axis} objective
 * @param {string} direction
 * @returns {(number | null)[][]} by axis, then by trial
 */
export function heights(axes, value, objective, direction) {
  const columns = axes.map((axis) =>
    required(axis.place).map((place) => (place === null ? null : shareOf(axis, place))),
  );
  const values = value.map((each) => shareOf(objective, clamped(objective, each)));
  return [...columns, direction === "minimize" ? values.map((at) => 1 - at) : values];
}

export class ParallelLines {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = new Pen();
    /** @type {number[]} share of the trials that are better, for each trial */
    this.rank = [];
    /** @type {ObjectiveAxis | null} */
    this.objective = null;
    /** @type {Axis[]} those of parameters, then that of the objective */
    this.axes = [];
    /** @type {number[]} indices of the trials, the best first */
    this.order = [];
    /** @type {(number | null)[][]} */
    this.heights = [];
    this.direction = "maximize";
    this.hasMissing = false; // whether a trial lacks a parameter
    this.width = 0;
    this.height = 0;
    this.bottom = 0; // of the axes
  }

  /**
   * Show these trials from the next drawing on.
   * @param {CandidatesView} found
   * @param {Objective} objective
   */
  take(found, { metric, direction }) {
    this.rank = found.rank;
    this.direction = direction;
    this.objective = objectiveAxis(metric, found.value, direction);
    this.axes = [...found.axes, this.objective];
    this.order = bestFirst(found.value, direction);
    this.heights = heights(found.axes, found.value, this.objective, direction);
    this.hasMissing = found.axes.some((axis) => axis.place.includes(null));
  }

  // --- places in CSS pixels --------------------------------------------------------------------------------------

  /**
   * Fit the canvas into a view of this size; it is wider if the axes need more room.
   * @param {number} room
   * @param {number} height
   */
  fit(room, height) {
    this.width = Math.max(room, MARGIN.left + MARGIN.right + GAP * (this.axes.length - 1));
    this.height = height;
    this.bottom = height - MARGIN.bottom - (this.hasMissing ? LANE : 0);
  }

  /**
   * Where an axis is, from the left.
   * @param {number} index of the axis
   * @returns {number}
   */
  xOf(index) {
    const last = Math.max(1, this.axes.length - 1);
    return MARGIN.left + ((this.width - MARGIN.left - MARGIN.right) * index) / last;
  }

  /**
   * Where a share of an axis is, from the top.
   * @param {number | null} at null: in the lane of trials without the parameter
   * @returns {number}
   */
  yOf(at) {
    return at === null ? this.bottom + LANE - 4 : this.bottom - (this.bottom - MARGIN.top) * at;
  }

  /**
   * The share of an axis at a distance from the top.
   * @param {number} y
   * @param {Axis} axis
   * @returns {number}
   */
  shareAt(y, axis) {
    const at = (this.bottom - y) / (this.bottom - MARGIN.top);
    return this.isUpsideDown(axis) ? 1 - at : at;
  }

  /**
   * Whether the least value is on top, as that of an objective to minimize is.
   * @param {Axis} axis
   */
  isUpsideDown(axis) {
    return axis === this.objective && this.direction === "minimize";
  }

  /**
   * Index of the axis at a place; null: there is none.
   * @param {number} x
   * @returns {number | null}
   */
  axisAt(x) {
    const at = this.axes.findIndex((_, index) => Math.abs(this.xOf(index) - x) < GRIP);
    return at < 0 ? null : at;
  }

  /**
   * Index of the trial whose line is nearest to a place; null: none is near.
   * @param {number} x
   * @param {number} y
   * @returns {number | null}
   */
  trialAt(x, y) {
    const last = this.axes.length - 1;
    const before = this.axes.findLastIndex((_, index) => this.xOf(index) <= x);
    const left = Math.max(0, Math.min(last - 1, before));
    const along = (x - this.xOf(left)) / (this.xOf(left + 1) - this.xOf(left));
    let nearest = null;
    let least = REACH;
    this.rank.forEach((_, index) => {
      const from = this.yOf(this.heights[left][index]);
      const to = this.yOf(this.heights[Math.min(last, left + 1)][index]);
      const distance = Math.abs(from + (to - from) * along - y);
      if (distance < least) [nearest, least] = [index, distance];
    });
    return nearest;
  }

  // --- drawing -----------------------------------------------------------------------------------------------------

  /**
   * Draw all lines and axes, the line of the trial `lit` above the others, and the range that is dragged.
   * @param {number | null} lit index of a trial
   * @param {Drag | null} drag
   */
  draw(lit, drag) {
    const context = this.cleared();
    const fade = lit === null ? 1 : 0.4;
    for (const { indices, colour, alpha, width } of groups(this.order, this.rank))
      for (const index of indices) this.drawLine(context, index, colour, alpha * fade, width);
    if (lit !== null) this.drawLine(context, lit, "text", 1, 2.2);
    this.axes.forEach((axis, index) => this.drawAxis(context, axis, this.xOf(index)));
    if (drag?.isMoving) this.drawRange(context, drag);
  }

  /** An empty canvas of the right size and resolution. */
  cleared() {
    const { canvas, width, height } = this;
    const scale = devicePixelRatio;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    }
    const context = required(canvas.getContext("2d"));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} index of the trial
   * @param {string} colour
   * @param {number} alpha
   * @param {number} width
   */
  drawLine(context, index, colour, alpha, width) {
    context.globalAlpha = alpha;
    context.strokeStyle = this.pen.colour(colour);
    context.lineWidth = width;
    context.beginPath();
    this.heights.forEach((column, axis) => context.lineTo(this.xOf(axis), this.yOf(column[index])));
    context.stroke();
    context.globalAlpha = 1;
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Axis} axis
   * @param {number} x
   */
  drawAxis(context, axis, x) {
    context.font = FONT;
    context.strokeStyle = this.pen.colour("muted");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, MARGIN.top);
    context.lineTo(Math.round(x) + 0.5, this.bottom);
    context.stroke();
    context.textAlign = "center";
    this.drawText(context, axis.name, x, 14, "text", GAP - 6);
    context.textAlign = "left";
    for (const { at, text } of ticks(axis, Math.max(2, Math.floor((this.bottom - MARGIN.top) / 36)))) {
      const y = this.yOf(this.isUpsideDown(axis) ? 1 - at : at);
      this.drawText(context, text, x + 4, y + 4, "muted", GAP - 12);
    }
    if (axis.place?.includes(null)) {
      context.textAlign = "center";
      this.drawText(context, "none", x, this.bottom + LANE - 1, "muted", GAP);
    }
  }

  /**
   * Draw text with an edge in the colour of the background, so that lines below it do not hide it.
   * @param {CanvasRenderingContext2D} context
   * @param {string} words
   * @param {number} x
   * @param {number} y
   * @param {string} colour
   * @param {number} most pixels
   */
  drawText(context, words, x, y, colour, most) {
    const shown = fitted(context, words, most);
    context.strokeStyle = this.pen.colour("surface");
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(shown, x, y);
    context.fillStyle = this.pen.colour(colour);
    context.fillText(shown, x, y);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Drag} drag
   */
  drawRange(context, { axis, from, to }) {
    context.globalAlpha = 0.25;
    context.fillStyle = this.pen.colour("accent");
    context.fillRect(this.xOf(axis) - 9, Math.min(from, to), 18, Math.abs(to - from));
    context.globalAlpha = 1;
  }
}

/**
 * `words`, shortened so that they are at most `most` pixels wide.
 * @param {CanvasRenderingContext2D} context
 * @param {string} words
 * @param {number} most
 * @returns {string}
 */
function fitted(context, words, most) {
  if (context.measureText(words).width <= most) return words;
  let length = words.length;
  while (length > 1 && context.measureText(`${words.slice(0, length)}…`).width > most) length -= 1;
  return `${words.slice(0, length)}…`;
}
