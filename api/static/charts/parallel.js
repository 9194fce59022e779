// Parallel coordinates: an axis for each parameter and one for the objective, and a line for each trial. Here are the
// elements, pointer and keys; `parallel_lines.js` draws.

import { h, setText } from "../elements/dom.js";
import { coalesced } from "../elements/frames.js";
import { metric, paramValue } from "../format.js";
import { required } from "../required.js";
import { placeAt } from "./axes.js";
import { head } from "./chart.js";
import { ParallelLines, TOP } from "./parallel_lines.js";
import { Pen } from "./pen.js";

/** @import { CandidatesView } from "../answers.d.ts" */
/** @import { Objective } from "../objectives.js" */
/** @import { Axis } from "./axes.js" */
/** @import { Drag } from "./parallel_lines.js" */

/** @typedef {{number: number, state: string, value: number}} Named the trial of a line */

/**
 * @typedef {object} ParallelOptions
 * @property {(trial: Named) => unknown} open shows the page of a trial
 * @property {(trial: Named | null) => unknown} onHover
 * @property {(axis: Axis, range: Range | null) => unknown} onBrush is called with the range in which trials are to be
 *   shown; null: everywhere
 */

/** @typedef {[number, number]} Range two places on an axis, the lower one first */

const DRAG = 5; // pixels after which a press is a drag
const TIP_GAP = 56; // pixels between the tooltip and the last axis

export class Parallel {
  /**
   * @param {HTMLElement} box
   * @param {ParallelOptions} options
   */
  constructor(box, { open, onHover, onBrush }) {
    this.box = box;
    this.open = open;
    this.onHover = onHover;
    this.onBrush = onBrush;
    this.canvas = h("canvas");
    this.lines = new ParallelLines(this.canvas);
    this.tip = h("div", { class: "tip", hidden: true, role: "status" });
    this.blank = h("p", { class: "blank", hidden: true }, "Lines appear here once trials have a value.");
    this.inner = h("div", { class: "inner" }, this.canvas);
    this.scroller = h("div", { class: "plot" }, this.inner);
    box.replaceChildren(this.scroller, this.blank, this.tip);
    /** @type {CandidatesView | null} */
    this.found = null;
    /** @type {number | null} index of the trial that is named */
    this.lit = null;
    /** @type {Drag | null} */
    this.drag = null;
    this.draw = coalesced(() => this.drawNow());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.lines.pen = new Pen();
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(box);
    this.listen();
  }

  listen() {
    const { canvas, box } = this;
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerleave", () => this.drag || this.select(null));
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => (this.drag = null));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", () => this.select(null));
    this.scroller.addEventListener("scroll", () => this.select(null), { passive: true });
  }

  /** The axis of the objective; null before there is one. */
  get objective() {
    return this.lines.objective;
  }

  /**
   * Draw these trials.
   * @param {CandidatesView} found
   * @param {Objective} objective
   */
  update(found, objective) {
    const number = this.lit === null ? null : this.trial(this.lit).number;
    this.found = found;
    this.lines.take(found, objective);
    this.lit = this.indexOf(number);
    this.blank.hidden = found.number.length > 0;
    this.inner.hidden = !found.number.length;
    if (this.lit === null) this.tip.hidden = true;
    this.draw();
  }

  drawNow() {
    if (!this.found?.number.length) return;
    this.lines.fit(this.scroller.clientWidth, this.box.clientHeight);
    this.lines.draw(this.lit, this.drag);
  }

  // --- pointer and keys --------------------------------------------------------------------------------------------

  /**
   * Place of the pointer on the canvas.
   * @param {PointerEvent} event
   * @returns {[number, number]}
   */
  placeOf(event) {
    const inside = this.canvas.getBoundingClientRect();
    return [event.clientX - inside.left, event.clientY - inside.top];
  }

  /** @param {PointerEvent} event */
  move(event) {
    if (!this.found?.number.length) return;
    const [x, y] = this.placeOf(event);
    if (this.drag) {
      this.drag.to = y;
      this.drag.isMoving ||= Math.abs(y - this.drag.from) > DRAG;
      return this.draw();
    }
    this.canvas.style.cursor = this.lines.axisAt(x) === null ? "" : "ns-resize";
    this.select(this.lines.trialAt(x, y));
  }

  /** @param {PointerEvent} event */
  press(event) {
    const [x, y] = this.placeOf(event);
    const axis = this.found?.number.length ? this.lines.axisAt(x) : null;
    if (axis === null || event.pointerType === "touch" || event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { axis, from: y, to: y, isMoving: false };
    event.preventDefault();
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { drag } = this;
    this.drag = null;
    if (drag) {
      const axis = this.lines.axes[drag.axis];
      const ends = [drag.from, drag.to].map((y) => placeAt(axis, this.lines.shareAt(y, axis)));
      this.onBrush(axis, drag.isMoving ? [Math.min(...ends), Math.max(...ends)] : null);
    } else if (this.lit !== null && event.pointerType !== "touch") {
      this.open(this.trial(this.lit));
    }
    this.draw();
  }

  /**
   * Arrow keys go from the best trial to the worst, Enter opens one, Escape leaves it.
   * @param {KeyboardEvent} event
   */
  key(event) {
    if (!this.found?.number.length) return;
    const { order } = this.lines;
    const at = this.lit === null ? -1 : order.indexOf(this.lit);
    const last = order.length - 1;
    const steps = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
    const to = /** @type {Record<string, number>} */ (steps)[event.key];
    if (to !== undefined) this.select(order[Math.min(last, Math.max(0, to))]);
    else if (event.key === "Escape") this.select(null);
    else if (event.key === "Enter" && this.lit !== null) this.open(this.trial(this.lit));
    else return;
    event.preventDefault();
  }

  /**
   * @param {number} index
   * @returns {Named}
   */
  trial(index) {
    const { number, state, value } = required(this.found);
    return { number: number[index], state: state[index], value: value[index] };
  }

  /**
   * Index of the trial with a number; null: none, or it is not drawn.
   * @param {number | null} number
   * @returns {number | null}
   */
  indexOf(number) {
    const index = number === null ? -1 : (this.found?.number.indexOf(number) ?? -1);
    return index < 0 ? null : index;
  }

  /**
   * Name the trial with this index in a tooltip; null: none.
   * @param {number | null} index
   */
  select(index) {
    if (index === this.lit) return;
    this.lit = index;
    this.onHover(index === null ? null : this.trial(index));
    this.describe();
    this.draw();
  }

  /**
   * Mark the trial with this number, as one in the table under the pointer, without naming it.
   * @param {number | null} number
   */
  highlight(number) {
    const lit = this.indexOf(number);
    if (lit === this.lit) return;
    this.lit = lit;
    this.tip.hidden = true;
    this.draw();
  }

  describe() {
    const { lit } = this;
    this.tip.hidden = lit === null;
    this.box.classList.toggle("hit", lit !== null);
    if (lit === null) return;
    const trial = this.trial(lit);
    const params = required(this.found).axes.flatMap(({ name, choices, place }) => {
      const at = place[lit];
      return at === null ? [] : [`${name} ${paramValue(choices ? choices[at] : at)}`];
    });
    this.tip.replaceChildren(
      head(trial),
      h("div", {}, `${required(this.objective).name} ${metric(trial.value)}`),
      setText(h("div", { class: "muted" }), params.join(" · ")),
    );
    const x = this.lines.xOf(this.lines.axes.length - 1) - this.scroller.scrollLeft;
    const left = Math.max(0, Math.min(x, this.box.clientWidth) - this.tip.offsetWidth - TIP_GAP);
    this.tip.style.transform = `translate(${left}px, ${TOP}px)`;
  }
}
