// The base of charts on uPlot, and the first line of their tooltips. A chart is rebuilt when the theme or its set of lines
// changes. Otherwise it only gets new data.

import { h, icon } from "../elements/dom.js";
import { count } from "../format.js";
import { required } from "../required.js";
import { label, shape } from "../states.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";
import { Pen } from "./pen.js";

/** @typedef {import("../vendor/uplot/uPlot.esm.js")} Plot */

/** @typedef {{opts: Record<string, any>, data: any[]}} Wanted options and columns for uPlot */

/** @typedef {(trial: any) => unknown} Open shows the page of a trial */

export const REACH = 18; // CSS pixels within which the pointer selects a point or line

/** One uPlot, sized by its box and coloured by the theme. `plan()` returns {opts, data}, or null without data. */
export class Chart {
  /**
   * @param {HTMLElement} box
   * @param {string} blank words to show without data
   */
  constructor(box, blank) {
    this.box = box;
    this.opens = false; // whether a click opens the page of a trial
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.blank = h("p", { class: "blank", hidden: true }, blank); // until it is known that there is no data
    box.replaceChildren(this.blank, this.tip);
    /** @type {any} a uPlot, or null without data */
    this.plot = null;
    this.pen = new Pen();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.pen = new Pen();
      this.rebuild();
    });
    new ResizeObserver(() => this.resize()).observe(box);
  }

  /**
   * The options and columns of the chart, or null without data. Overridden.
   * @returns {Wanted | null}
   */
  plan() {
    return null;
  }

  size() {
    return { width: Math.max(160, this.box.clientWidth), height: this.box.clientHeight };
  }

  resize() {
    if (!this.plot) return;
    const { width, height } = this.size();
    if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
  }

  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    const wanted = this.plan();
    this.blank.hidden = wanted !== null;
    if (wanted) this.plot = new uPlot(/** @type {any} */ ({ ...this.size(), ...wanted.opts }), wanted.data, this.box);
    this.point(null);
  }

  /**
   * Options of an axis with this name.
   * @param {string} text
   * @param {Record<string, any>} [extra]
   * @returns {Record<string, any>}
   */
  axis(text, extra = {}) {
    return {
      stroke: this.pen.colour("muted"),
      grid: { stroke: this.pen.colour("grid"), width: 1 },
      ticks: { stroke: this.pen.colour("grid"), width: 1, size: 4 },
      font: '11px system-ui, "Liberation Sans", sans-serif',
      labelFont: '11px system-ui, "Liberation Sans", sans-serif',
      label: text,
      labelSize: 16,
      labelGap: 0,
      size: 26,
      gap: 4,
      ...extra,
    };
  }

  /**
   * Show a tooltip beside a place in the plot, both in CSS pixels, or hide it with null.
   * @param {HTMLElement[] | null} nodes
   * @param {number} [left]
   * @param {number} [top]
   */
  point(nodes, left = 0, top = 0) {
    this.tip.hidden = nodes === null;
    this.box.classList.toggle("hit", nodes !== null && this.opens === true);
    if (nodes === null) return;
    this.tip.replaceChildren(...nodes);
    const over = this.plot.over;
    const x = over.offsetLeft + left;
    const y = over.offsetTop + top;
    const right = x + 14 + this.tip.offsetWidth > this.box.clientWidth;
    const shift = right ? Math.max(0, x - 14 - this.tip.offsetWidth) : x + 14;
    this.tip.style.transform = `translate(${shift}px, ${Math.max(0, y - this.tip.offsetHeight - 8)}px)`;
  }
}

/**
 * What a trial is, for a tooltip.
 * @param {{number: number, state: string}} trial
 * @param {string} [rest]
 * @returns {HTMLDivElement}
 */
export function head(trial, rest = "") {
  const mark = h("span", { class: `state state-${trial.state.toLowerCase()}` }, icon(shape(trial.state)));
  return h(
    "div",
    {},
    mark,
    " ",
    h("strong", {}, `Trial ${trial.number}`),
    ` ${label(trial.state).toLowerCase()}${rest}`,
  );
}

/**
 * Draws a line in steps, for uPlot.
 * @param {1 | -1} align 1: a value holds until the next point, -1: it holds since the one before
 */
export function steppedPaths(align) {
  return required(uPlot.paths.stepped)({ align });
}

/**
 * Labels of ticks; only whole numbers have one.
 * @param {unknown} _
 * @param {number[]} splits
 * @returns {string[]}
 */
export function wholeNumbers(_, splits) {
  return splits.map((at) => (Number.isInteger(at) ? count(at) : ""));
}
