// Learning curves.

import { h } from "../elements/dom.js";
import { count, metric } from "../format.js";
import { objectiveAxis, objectiveOptions } from "./axes.js";
import { Chart, REACH, head, wholeNumbers } from "./chart.js";
import { aligned } from "./series.js";

/** @import { Open, Plot } from "./chart.js" */

/**
 * One line of a chart: the values of a metric of a trial by step.
 * @typedef {{trial: {id: number, number: number, state: string}, points: [number, number][]}} Line
 */

const NO_VALUES = /** @type {unknown[]} */ ([undefined, null]);

/**
 * Distance, for uPlot, from the pointer to a line's nearest value, so that a line is not selected beyond its end.
 * @param {any} plot
 * @param {unknown} _line
 * @param {number} row
 * @returns {number}
 */
function nearStep(plot, _line, row) {
  return Math.abs(plot.cursor.left - plot.valToPos(plot.data[0][row], "x")) + REACH;
}

/** One line per trial over steps. */
export class Curves extends Chart {
  /**
   * @param {HTMLElement} box
   * @param {{open?: Open | null, onHover?: ((trial: Line["trial"] | null) => unknown) | null, blank?: string}} [options]
   */
  constructor(box, { open = null, onHover = null, blank = "Curves appear here as the trials report." } = {}) {
    super(box, blank);
    this.opens = open !== null;
    this.onHover = onHover;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {number | null} index of the line that is named */
    this.lit = null;
    /** @type {number | null} */
    this.bestId = null;
    this.name = ""; // of the metric
    this.unit = "step";
    this.shown = objectiveAxis("", [], ""); // the axis of the values that are drawn
    /** @type {number[]} steps with a dashed line */
    this.marks = [];
    this.signature = ""; // what the plot was built for
    /** @type {MouseEvent | null} the last one, so that a chart that is rebuilt under the pointer selects the same line */
    this.pointer = null;
    box.addEventListener("click", () => this.lit !== null && open?.(this.lines[this.lit].trial));
    box.addEventListener("mousemove", (event) => (this.pointer = event));
    box.addEventListener("mouseleave", () => {
      this.pointer = null;
      this.light(null);
    });
  }

  rebuild() {
    super.rebuild();
    // uPlot fits its scales after this task; before that, the cursor would be in the wrong place.
    if (this.pointer) requestAnimationFrame(() => this.restoreCursor());
  }

  restoreCursor() {
    if (!this.plot || !this.pointer) return;
    const inside = this.plot.over.getBoundingClientRect();
    this.plot.setCursor({ left: this.pointer.clientX - inside.left, top: this.pointer.clientY - inside.top });
  }

  /**
   * Draw these lines, the last one above the others.
   * @param {Line[]} lines
   * @param {{name: string, direction?: string, unit?: string, bestId?: number | null, marks?: number[]}} options
   *   `direction` of an objective: outliers at its worse end are cut off; `marks`: steps with a dashed line
   */
  update(lines, { name, direction = "", unit = "step", bestId = null, marks = [] }) {
    this.lines = lines;
    this.name = name;
    this.unit = unit;
    this.bestId = bestId;
    this.marks = marks;
    this.shown = objectiveAxis(name, valuesOf(lines), direction);
    const signature = [
      name,
      bestId,
      this.shown.log,
      ...lines.map((line) => `${line.trial.id}${line.trial.state}`),
    ].join();
    if (signature !== this.signature || !this.plot) {
      this.signature = signature;
      this.lit = null;
      this.rebuild();
    } else {
      this.plot.setData(aligned(this.lines));
    }
  }

  /**
   * Highlight the line of a trial, such as the one of a hovered table row, or none.
   * @param {number | null} trialId
   */
  highlight(trialId) {
    const index = this.lines.findIndex((line) => line.trial.id === trialId);
    if (this.plot) this.plot.setSeries(index < 0 ? null : index + 1, { focus: true });
  }

  plan() {
    if (!this.lines.some((line) => line.points.length)) return null;
    const data = aligned(this.lines);
    const alone = this.lines.length === 1;
    const series = this.lines.map(({ trial, points }) => {
      const best = trial.id === this.bestId || alone;
      const stroke = trial.id === this.bestId ? this.pen.colour("best") : this.pen.stateColour(trial.state);
      return {
        stroke: best ? stroke : `${stroke}99`,
        width: best ? 2.5 : 1, // without a GPU, a hairline is drawn twenty times as fast as any wider line
        spanGaps: true,
        points: { show: points.length === 1 || (alone && points.length < 40), size: 5, fill: stroke },
      };
    });
    const values = objectiveOptions(() => this.shown);
    const opts = {
      legend: { show: false },
      focus: { alpha: 0.22 },
      padding: [8, 20, 0, 0],
      cursor: {
        y: false,
        drag: { x: false, y: false },
        focus: { prox: REACH },
        hover: { prox: nearStep, skip: NO_VALUES },
        points: { one: true, size: 7 },
      },
      scales: {
        x: { time: false, range: stepRange },
        y: values.scale,
      },
      axes: [this.axis(this.unit, { values: wholeNumbers }), this.axis(this.name, { size: 48, ...values.axis })],
      series: [{}, ...series],
      hooks: {
        setSeries: [
          (/** @type {Plot} */ _, /** @type {number | null} */ index) => this.light(index ? index - 1 : null),
        ],
        setCursor: [() => this.describe()],
        draw: [(/** @type {Plot} */ plot) => this.drawMarks(plot)],
      },
    };
    return { opts, data };
  }

  /**
   * Draw a dashed vertical line where a later attempt resumed.
   * @param {Plot} plot
   */
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = this.pen.colour("pruned");
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    for (const step of this.marks) {
      const x = Math.round(plot.valToPos(step, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /**
   * Name the line with this index; null: none.
   * @param {number | null} index
   */
  light(index) {
    if (index === this.lit) return;
    this.lit = index;
    this.onHover?.(index === null ? null : this.lines[index].trial);
    this.describe();
  }

  describe() {
    const { lit, plot } = this;
    const row = lit === null ? null : plot?.cursor.idxs?.[lit + 1]; // the row in which this line has a value
    const value = lit === null || row === null || row === undefined ? undefined : plot.data[lit + 1][row];
    if (lit === null || value === undefined || value === null) return this.point(null);
    const step = plot.data[0][row];
    const text = h("div", {}, `${this.name} ${metric(value)} at ${this.unit} ${count(step)}`);
    this.point([head(this.lines[lit].trial), text], plot.valToPos(step, "x"), plot.valToPos(value, "y"));
  }
}

/**
 * The range of steps, for uPlot: at least one long.
 * @param {unknown} _
 * @param {number} low
 * @param {number} high
 * @returns {[number, number]}
 */
function stepRange(_, low, high) {
  return [low, high > low ? high : low + 1];
}

/**
 * The finite values of all lines.
 * @param {Line[]} lines
 * @returns {number[]}
 */
function valuesOf(lines) {
  return lines.flatMap((line) => line.points.map(([, value]) => value).filter(Number.isFinite));
}
