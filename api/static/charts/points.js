// The base of charts with a point for each trial or attempt.

import { Chart, REACH } from "./chart.js";

/** @import { Open, Plot } from "./chart.js" */

/**
 * A trial or an attempt that is drawn as a point. What else it has, its chart knows.
 * @typedef {{id: unknown, number: number, state: string} & Record<string, any>} Pointed
 */

const MANY = 400; // points that are drawn smaller

/** Trials as points on two linear axes. The point nearest to the pointer gets a tooltip; a click opens its trial. */
export class Points extends Chart {
  /**
   * @param {HTMLElement} box
   * @param {string} blank
   * @param {Open} open
   */
  constructor(box, blank, open) {
    super(box, blank);
    this.opens = true;
    this.open = open;
    /** @type {Pointed[]} */
    this.trials = [];
    /** @type {Pointed | null} the trial that is named */
    this.lit = null;
    box.classList.add("points");
    box.addEventListener("mousemove", (event) => this.hover(event));
    box.addEventListener("mouseleave", () => this.select(null));
    box.addEventListener("click", () => this.lit && this.open(this.lit));
    box.tabIndex = 0;
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", () => this.select(null));
  }

  /**
   * Position of a trial in canvas pixels, or null; overridden.
   * @param {Plot} _plot
   * @param {Pointed} _trial
   * @returns {[number, number] | null}
   */
  pixelsOf(_plot, _trial) {
    return null;
  }

  /**
   * [shape, colour] of a trial.
   * @param {Pointed} trial
   * @returns {[string, string]}
   */
  mark(trial) {
    return this.pen.state(trial.state);
  }

  /**
   * The tooltip of a trial. Overridden.
   * @param {Pointed} _trial
   * @returns {HTMLElement[]}
   */
  describe(_trial) {
    return [];
  }

  /**
   * Options for uPlot: these, without a legend and a cursor of its own, and with the points above everything else.
   * @param {Record<string, any>} options
   * @returns {Record<string, any>}
   */
  options(options) {
    const hooks = { draw: [(/** @type {Plot} */ plot) => this.draw(plot)] };
    return { legend: { show: false }, cursor: { show: false }, ...options, hooks };
  }

  /** @param {Plot} plot */
  draw(plot) {
    const scale = devicePixelRatio;
    const radius = this.trials.length > MANY ? 2.6 : 4.2;
    for (const trial of this.trials) {
      if (trial === this.lit) continue;
      const at = this.pixelsOf(plot, trial);
      if (at) this.pen.stamp(plot.ctx, ...this.mark(trial), at[0], at[1], radius * scale, this.lit ? 0.55 : 0.92);
    }
    const { lit } = this;
    const at = lit && this.pixelsOf(plot, lit);
    if (at) this.pen.stamp(plot.ctx, ...this.mark(lit), at[0], at[1], 6.5 * scale);
  }

  /** @param {MouseEvent} event */
  hover(event) {
    if (!this.plot) return;
    const inside = this.plot.over.getBoundingClientRect();
    const x = event.clientX - inside.left;
    const y = event.clientY - inside.top;
    let nearest = null;
    let least = REACH ** 2;
    for (const trial of this.trials) {
      const at = this.pixelsOf(this.plot, trial);
      if (!at) continue;
      const px = (at[0] - this.plot.bbox.left) / devicePixelRatio;
      const py = (at[1] - this.plot.bbox.top) / devicePixelRatio;
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance <= least) [nearest, least] = [{ trial, px, py }, distance];
    }
    this.select(nearest);
  }

  /**
   * Arrow keys go from point to point, from left to right; Enter opens one.
   * @param {KeyboardEvent} event
   */
  key(event) {
    if (!this.plot) return;
    if (event.key === "Enter" && this.lit) this.open(this.lit);
    else if (event.key === "Escape") this.select(null);
    else if (!this.step(event.key)) return;
    event.preventDefault();
  }

  /**
   * Name the next point in the direction of a key, if it is one that has a direction.
   * @param {string} key
   * @returns {boolean} whether there is one
   */
  step(key) {
    const placed = this.trials
      .flatMap((trial) => {
        const at = this.pixelsOf(this.plot, trial);
        return at ? [{ trial, at }] : [];
      })
      .sort((a, b) => a.at[0] - b.at[0] || b.at[1] - a.at[1]);
    const now = placed.findIndex(({ trial }) => trial.id === this.lit?.id);
    const last = placed.length - 1;
    const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last }[
      key
    ];
    const found = to === undefined ? undefined : placed[Math.min(last, Math.max(0, to))];
    if (!found) return false;
    const [px, py] = [found.at[0] - this.plot.bbox.left, found.at[1] - this.plot.bbox.top];
    this.select({ trial: found.trial, px: px / devicePixelRatio, py: py / devicePixelRatio });
    return true;
  }

  /**
   * Name a trial in a tooltip at a place in the plot; null: none.
   * @param {{trial: Pointed, px: number, py: number} | null} found
   */
  select(found) {
    const changed = (found?.trial ?? null) !== this.lit;
    this.lit = found?.trial ?? null;
    if (changed) this.plot?.redraw(false, false);
    if (found) this.point(this.describe(found.trial), found.px, found.py);
    else this.point(null);
  }

  /**
   * Draw these trials.
   * @param {Pointed[]} trials
   */
  refresh(trials) {
    this.trials = trials;
    this.keepLit();
    const wanted = this.plan();
    if (!wanted || !this.plot) this.rebuild();
    else this.plot.setData(wanted.data);
  }

  /** Go on naming the same trial, if it is among the present ones. */
  keepLit() {
    this.lit = this.trials.find((trial) => trial.id === this.lit?.id) ?? null;
  }
}
