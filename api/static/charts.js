// Charts on uPlot: their base classes, a study's optimisation history, and learning curves. `against.js` has one more.
// A chart is rebuilt when the theme or its set of lines changes. Otherwise it only gets new data.

import { h, icon } from "./dom.js";
import { count, metric, num } from "./format.js";
import { label, shape } from "./states.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const MANY = 400; // points that are drawn smaller
const REACH = 18; // CSS pixels within which the pointer selects a point or line
const dark = matchMedia("(prefers-color-scheme: dark)");

const colours = new Map(); // of this theme: to ask for one makes the browser compute styles anew
dark.addEventListener("change", () => {
  colours.clear();
  stamps.clear();
});

export function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return colours.get(name);
}

export function stateColour(state) {
  return colour(state.toLowerCase());
}

const paths = new Map();

function path(state) {
  if (!paths.has(state)) paths.set(state, new Path2D(shape(state)));
  return paths.get(state);
}

const REACH_OF_SHAPE = 2.6; // a shape fits into a box from -2.6 to 2.6
const stamps = new Map(); // shape → key → a small canvas with it: to copy one is many times as fast as to fill a path

/** A canvas with a shape, and half of its side. */
function stamped(path, fill, radius) {
  const key = `${fill} ${radius}`;
  if (!stamps.has(path)) stamps.set(path, new Map());
  const known = stamps.get(path);
  if (!known.has(key)) {
    const half = Math.ceil(REACH_OF_SHAPE * radius);
    const canvas = h("canvas", { width: 2 * half, height: 2 * half });
    const context = canvas.getContext("2d");
    context.translate(half, half);
    context.scale(radius, radius);
    context.fillStyle = fill;
    context.fill(path);
    known.set(key, { canvas, half });
  }
  return known.get(key);
}

/** Draw a shape, given in a box from -1 to 1, around a place on the canvas. */
function stamp(context, path, fill, x, y, radius, alpha = 1) {
  const { canvas, half } = stamped(path, fill, radius);
  context.globalAlpha = alpha;
  context.drawImage(canvas, Math.round(x - half), Math.round(y - half));
  context.globalAlpha = 1;
}

/** [least, largest] of some numbers; of thousands, too. */
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** One uPlot, sized by its box and coloured by the theme. `plan()` returns {opts, data}, or null without data. */
class Chart {
  constructor(box, blank) {
    this.box = box;
    this.tip = h("div", { class: "tip", hidden: true });
    this.blank = h("p", { class: "blank" }, blank);
    box.replaceChildren(this.blank, this.tip);
    this.plot = null;
    dark.addEventListener("change", () => this.rebuild());
    new ResizeObserver(() => this.resize()).observe(box);
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
    if (wanted) this.plot = new uPlot({ ...this.size(), ...wanted.opts }, wanted.data, this.box);
    this.point(null);
  }

  axis(text, extra = {}) {
    return {
      stroke: colour("muted"),
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { stroke: colour("grid"), width: 1, size: 4 },
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

  /** Show a tooltip beside a place in the plot, both in CSS pixels, or hide it with null. */
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

export function head(trial, rest = "") {
  const mark = h("span", { class: `state state-${trial.state.toLowerCase()}` }, icon(shape(trial.state)));
  return h("div", {}, mark, " ", h("strong", {}, `Trial ${trial.number}`), ` ${label(trial.state).toLowerCase()}${rest}`);
}

function range(low, high, share = 0.06) {
  if (!Number.isFinite(low)) return [0, 1];
  const pad = high > low ? (high - low) * share : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

/** Trials as points on two linear axes. The point nearest to the pointer gets a tooltip; a click opens its trial. */
export class Points extends Chart {
  constructor(box, blank, open) {
    super(box, blank);
    this.opens = true;
    this.open = open;
    this.trials = [];
    this.lit = null;
    box.classList.add("points");
    box.addEventListener("mousemove", (event) => this.hover(event));
    box.addEventListener("mouseleave", () => this.select(null));
    box.addEventListener("click", () => this.lit && this.open(this.lit));
  }

  /** Position of a trial in canvas pixels, or null; overridden. */
  place() {
    return null;
  }

  /** [shape, colour] of a trial. */
  mark(trial) {
    return [path(trial.state), stateColour(trial.state)];
  }

  draw(plot) {
    const scale = devicePixelRatio;
    const radius = this.trials.length > MANY ? 2.6 : 4.2;
    for (const trial of this.trials) {
      if (trial === this.lit) continue;
      const at = this.place(plot, trial);
      if (at) stamp(plot.ctx, ...this.mark(trial), at[0], at[1], radius * scale, this.lit ? 0.55 : 0.92);
    }
    const at = this.lit && this.place(plot, this.lit);
    if (at) stamp(plot.ctx, ...this.mark(this.lit), at[0], at[1], 6.5 * scale);
  }

  hover(event) {
    if (!this.plot) return;
    const inside = this.plot.over.getBoundingClientRect();
    const x = event.clientX - inside.left;
    const y = event.clientY - inside.top;
    let nearest = null;
    let least = REACH ** 2;
    for (const trial of this.trials) {
      const at = this.place(this.plot, trial);
      if (!at) continue;
      const px = (at[0] - this.plot.bbox.left) / devicePixelRatio;
      const py = (at[1] - this.plot.bbox.top) / devicePixelRatio;
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance <= least) [nearest, least] = [{ trial, px, py }, distance];
    }
    this.select(nearest);
  }

  select(found) {
    const changed = (found?.trial ?? null) !== this.lit;
    this.lit = found?.trial ?? null;
    if (changed) this.plot?.redraw(false, false);
    if (found) this.point(this.describe(found.trial), found.px, found.py);
    else this.point(null);
  }

  refresh(trials) {
    this.trials = trials;
    if (this.lit) this.lit = trials.find((trial) => trial.id === this.lit.id) ?? null;
    const wanted = this.plan();
    if (!wanted || !this.plot) this.rebuild();
    else this.plot.setData(wanted.data);
  }
}

/** Objective by trial number. Trials that ended without a value are drawn along the bottom. */
export class History extends Points {
  /** `reasonOf(trial)` says why a trial has no value, or returns an empty string. */
  constructor(box, open, reasonOf) {
    super(box, "Values appear here as soon as a trial reports.", open);
    this.reasonOf = reasonOf;
  }

  /** Draw `trials`: all `num` trials of the study, or some of them. */
  update(trials, num, objective) {
    this.num = num;
    const renamed = this.objective?.metric !== objective.metric;
    this.objective = objective;
    if (renamed) this.rebuild();
    this.refresh(trials);
  }

  plan() {
    if (!this.trials.some((trial) => trial.value !== null)) return null;
    const sign = this.objective.direction === "minimize" ? -1 : 1;
    const ordered = [...this.trials].sort((a, b) => a.number - b.number);
    let best = null;
    const line = ordered.map((trial) => {
      if (trial.state === "COMPLETED" && trial.value !== null && (best === null || sign * trial.value > sign * best)) best = trial.value;
      return best;
    });
    const opts = {
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 20, 0, 0],
      scales: {
        x: { time: false, range: () => [-0.5, Math.max(this.num - 1, 4) + 0.5] },
        y: { range: () => this.yRange() },
      },
      axes: [
        this.axis("trial", { values: (_, splits) => splits.map((at) => (Number.isInteger(at) ? count(at) : "")) }),
        this.axis(this.objective.metric, { size: 48, values: (_, splits) => splits.map(num) }),
      ],
      series: [
        {},
        { stroke: colour("best"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, spanGaps: true },
      ],
      hooks: { draw: [(plot) => this.draw(plot)] },
    };
    return { opts, data: [ordered.map((trial) => trial.number), line] };
  }

  yRange() {
    const [low, high] = range(...extent(this.trials.flatMap((trial) => (trial.value === null ? [] : [trial.value]))));
    return [low - (high - low) * 0.1, high];
  }

  place(plot, trial) {
    const x = plot.valToPos(trial.number, "x", true);
    if (trial.value !== null) return [x, plot.valToPos(trial.value, "y", true)];
    if (!["FAILED", "INFEASIBLE", "CANCELLED", "PRUNED"].includes(trial.state)) return null;
    return [x, plot.bbox.top + plot.bbox.height - 9 * devicePixelRatio];
  }

  describe(trial) {
    const lines = [head(trial)];
    if (trial.value !== null) lines.push(h("div", {}, `${this.objective.metric} ${metric(trial.value)} at step ${count(trial.step)}`));
    else if (this.reasonOf(trial)) lines.push(h("div", {}, this.reasonOf(trial).slice(0, 160)));
    return lines;
  }
}

/** Distance, for uPlot, from the pointer to a line's nearest value, so that a line is not selected beyond its end. */
function nearStep(plot, _line, row) {
  return Math.abs(plot.cursor.left - plot.valToPos(plot.data[0][row], "x")) + REACH;
}

/** One line per trial over steps. `update` takes [{trial, points: [[step, value], …]}], ordered so that the best is last. */
export class Curves extends Chart {
  constructor(box, { open = null, onHover = null, blank = "Curves appear here as the trials report." } = {}) {
    super(box, blank);
    this.opens = open !== null;
    this.onHover = onHover;
    this.lines = [];
    this.lit = null;
    this.bestId = null;
    this.signature = "";
    this.pointer = null; // last mouse event, so that a chart that is rebuilt under the pointer selects the same line
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

  update(lines, { name, bestId = null, marks = [] }) {
    this.lines = lines;
    this.name = name;
    this.bestId = bestId;
    this.marks = marks;
    const signature = [name, bestId, ...lines.map((line) => `${line.trial.id}${line.trial.state}`)].join();
    if (signature !== this.signature || !this.plot) {
      this.signature = signature;
      this.lit = null;
      this.rebuild();
    } else {
      this.plot.setData(this.aligned());
    }
  }

  /** Highlight the line of a trial, such as the one of a hovered table row, or none. */
  highlight(trialId) {
    const index = this.lines.findIndex((line) => line.trial.id === trialId);
    if (this.plot) this.plot.setSeries(index < 0 ? null : index + 1, { focus: true });
  }

  aligned() {
    const steps = [...new Set(this.lines.flatMap((line) => line.points.map(([step]) => step)))].sort((a, b) => a - b);
    const rows = new Map(steps.map((step, row) => [step, row]));
    const columns = this.lines.map((line) => {
      const column = new Array(steps.length).fill(undefined);
      for (const [step, value] of line.points) column[rows.get(step)] = value;
      return column;
    });
    return [steps, ...columns];
  }

  plan() {
    if (!this.lines.some((line) => line.points.length)) return null;
    const data = this.aligned();
    const alone = this.lines.length === 1;
    const series = this.lines.map(({ trial, points }) => {
      const best = trial.id === this.bestId || alone;
      const stroke = trial.id === this.bestId ? colour("best") : stateColour(trial.state);
      return {
        stroke: best ? stroke : `${stroke}99`,
        width: best ? 2.5 : 1, // without a GPU, a hairline is drawn twenty times as fast as any wider line
        spanGaps: true,
        points: { show: points.length === 1 || (alone && points.length < 40), size: 5, fill: stroke },
      };
    });
    const opts = {
      legend: { show: false },
      focus: { alpha: 0.22 },
      padding: [8, 12, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, focus: { prox: REACH }, hover: { prox: nearStep, skip: [undefined, null] }, points: { one: true, size: 7 } },
      scales: { x: { time: false, range: (_, low, high) => [low, high > low ? high : low + 1] }, y: { range: (_, low, high) => range(low, high) } },
      axes: [this.axis("step", { values: (_, splits) => splits.map((at) => (Number.isInteger(at) ? count(at) : "")) }), this.axis(this.name, { size: 48, values: (_, splits) => splits.map(num) })],
      series: [{}, ...series],
      hooks: {
        setSeries: [(_, index) => this.light(index ? index - 1 : null)],
        setCursor: [() => this.describe()],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
    return { opts, data };
  }

  /** Draw a dashed vertical line where a later attempt resumed. */
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("pruned");
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

  light(index) {
    if (index === this.lit) return;
    this.lit = index;
    this.onHover?.(index === null ? null : this.lines[index].trial);
    this.describe();
  }

  describe() {
    const row = this.lit === null ? null : this.plot?.cursor.idxs?.[this.lit + 1]; // the row in which this line has a value
    const value = row === null || row === undefined ? undefined : this.plot.data[this.lit + 1][row];
    if (value === undefined || value === null) return this.point(null);
    const step = this.plot.data[0][row];
    const text = h("div", {}, `${this.name} ${metric(value)} at step ${count(step)}`);
    this.point([head(this.lines[this.lit].trial), text], this.plot.valToPos(step, "x"), this.plot.valToPos(value, "y"));
  }
}
