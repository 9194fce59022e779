// Parallel coordinates: an axis for each parameter and one for the objective, and a line for each trial.

import { h, setText } from "../elements/dom.js";
import { coalesced } from "../elements/frames.js";
import { metric, paramValue } from "../format.js";
import { bestFirst, clamped, objectiveAxis, placeAt, share, ticks } from "./axes.js";
import { REACH, head } from "./chart.js";
import { Pen } from "./pen.js";

const GAP = 76; // least pixels between axes; with more of them the chart scrolls
const MARGIN = { left: 44, right: 44, top: 34, bottom: 16 };
const LANE = 22; // height of the lane below the axes for trials without a parameter
const BRUSH = 5; // pixels after which a press is a drag
const FONT = '11px system-ui, "Liberation Sans", sans-serif';

/** Trials in three groups by their rank, 0 to 1, the best last in each: [{indices, colour, alpha, width}]. */
export function groups(order, rank) {
  const between = (low, high) => order.filter((index) => rank[index] >= low && rank[index] < high).toReversed();
  const best = between(0, 0.1);
  return [
    { indices: between(0.5, 2), colour: "faint", alpha: 0.22, width: 1 },
    { indices: between(0.1, 0.5), colour: "running", alpha: 0.35, width: 1 },
    { indices: best, colour: "best", alpha: Math.max(0.3, Math.min(0.8, 60 / best.length)), width: 1.5 },
  ];
}

/** Vertical share, 0 at the bottom, of a trial on each axis; null where it has no parameter. The best value is on top. */
export function heights(axes, value, objective, direction) {
  const columns = axes.map((axis) => axis.place.map((place) => share(axis, place)));
  const values = value.map((each) => share(objective, clamped(objective, each)));
  return [...columns, direction === "minimize" ? values.map((at) => 1 - at) : values];
}

export class Parallel {
  /** `open(trial)`; `onHover(trial | null)`; `onBrush(axis, from, to)`, places, or null for both: the range is lifted. */
  constructor(box, { open, onHover, onBrush }) {
    Object.assign(this, { box, open, onHover, onBrush });
    this.canvas = h("canvas");
    this.tip = h("div", { class: "tip", hidden: true, role: "status" });
    this.blank = h("p", { class: "blank" }, "Lines appear here once trials have a value.");
    this.inner = h("div", { class: "inner" }, this.canvas);
    this.scroller = h("div", { class: "plot" }, this.inner);
    box.replaceChildren(this.scroller, this.blank, this.tip);
    this.pen = new Pen();
    this.found = null;
    this.lit = null; // index of the trial that is named
    this.drag = null;
    this.draw = coalesced(() => this.drawNow());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.pen = new Pen();
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

  /** `found`: see CandidatesView of the API. */
  update(found, { metric: name, direction }) {
    const litNumber = this.lit === null ? null : this.found.number[this.lit];
    this.found = found;
    this.direction = direction;
    this.objective = objectiveAxis(name, found.value, direction);
    this.axes = [...found.axes, this.objective];
    this.order = bestFirst(found.value, direction);
    this.heights = heights(found.axes, found.value, this.objective, direction);
    this.hasMissing = found.axes.some((axis) => axis.place.includes(null));
    const lit = litNumber === null ? -1 : found.number.indexOf(litNumber);
    this.lit = lit < 0 ? null : lit;
    this.blank.hidden = found.number.length > 0;
    this.inner.hidden = !found.number.length;
    if (this.lit === null) this.tip.hidden = true;
    this.draw();
  }

  // --- places in CSS pixels --------------------------------------------------------------------------------------

  measure() {
    const height = this.box.clientHeight;
    const width = Math.max(this.scroller.clientWidth, MARGIN.left + MARGIN.right + GAP * (this.axes.length - 1));
    this.bottom = height - MARGIN.bottom - (this.hasMissing ? LANE : 0);
    this.width = width;
    this.height = height;
  }

  x(axis) {
    const last = Math.max(1, this.axes.length - 1);
    return MARGIN.left + ((this.width - MARGIN.left - MARGIN.right) * axis) / last;
  }

  y(at) {
    return at === null ? this.bottom + LANE - 4 : this.bottom - (this.bottom - MARGIN.top) * at;
  }

  shareAt(y, axis) {
    const at = (this.bottom - y) / (this.bottom - MARGIN.top);
    return axis === this.objective && this.direction === "minimize" ? 1 - at : at;
  }

  // --- drawing -----------------------------------------------------------------------------------------------------

  drawNow() {
    if (!this.found?.number.length) return;
    this.measure();
    const scale = devicePixelRatio;
    const { canvas, width, height } = this;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
      [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const fade = this.lit === null ? 1 : 0.4;
    for (const { indices, colour, alpha, width: thick } of groups(this.order, this.found.rank))
      for (const index of indices) this.line(context, index, colour, alpha * fade, thick);
    if (this.lit !== null) this.line(context, this.lit, "text", 1, 2.2);
    this.axes.forEach((axis, at) => this.axis(context, axis, this.x(at)));
    if (this.drag?.isMoving) this.range(context);
  }

  line(context, index, colour, alpha, width) {
    context.globalAlpha = alpha;
    context.strokeStyle = this.pen.colour(colour);
    context.lineWidth = width;
    context.beginPath();
    this.heights.forEach((column, at) => context.lineTo(this.x(at), this.y(column[index])));
    context.stroke();
    context.globalAlpha = 1;
  }

  axis(context, axis, x) {
    context.font = FONT;
    context.strokeStyle = this.pen.colour("muted");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, MARGIN.top);
    context.lineTo(Math.round(x) + 0.5, this.bottom);
    context.stroke();
    context.textAlign = "center";
    this.text(context, axis.name, x, 14, "text", GAP - 6);
    const marks = ticks(axis, Math.max(2, Math.floor((this.bottom - MARGIN.top) / 36)));
    const isDown = axis === this.objective && this.direction === "minimize";
    context.textAlign = "left";
    for (const { at, text } of marks)
      this.text(context, text, x + 4, this.y(isDown ? 1 - at : at) + 4, "muted", GAP - 12);
    if (axis.place?.includes(null)) {
      context.textAlign = "center";
      this.text(context, "none", x, this.bottom + LANE - 1, "muted", GAP);
    }
  }

  /** Text with an edge in the colour of the background, so that lines below it do not hide it. */
  text(context, words, x, y, colour, most) {
    const shown = fitted(context, words, most);
    context.strokeStyle = this.pen.colour("surface");
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(shown, x, y);
    context.fillStyle = this.pen.colour(colour);
    context.fillText(shown, x, y);
  }

  range(context) {
    const { axis, from, to } = this.drag;
    context.globalAlpha = 0.25;
    context.fillStyle = this.pen.colour("accent");
    context.fillRect(this.x(axis) - 9, Math.min(from, to), 18, Math.abs(to - from));
    context.globalAlpha = 1;
  }

  // --- pointer and keys --------------------------------------------------------------------------------------------

  where(event) {
    const inside = this.canvas.getBoundingClientRect();
    return [event.clientX - inside.left, event.clientY - inside.top];
  }

  axisAt(x) {
    const at = this.axes.findIndex((_, index) => Math.abs(this.x(index) - x) < 12);
    return at < 0 ? null : at;
  }

  move(event) {
    if (!this.found?.number.length) return;
    const [x, y] = this.where(event);
    if (this.drag) {
      this.drag.to = y;
      this.drag.isMoving ||= Math.abs(y - this.drag.from) > BRUSH;
      return this.draw();
    }
    this.canvas.style.cursor = this.axisAt(x) === null ? "" : "ns-resize";
    this.select(this.nearest(x, y));
  }

  nearest(x, y) {
    const last = this.axes.length - 1;
    const left = Math.max(
      0,
      Math.min(
        last - 1,
        this.axes.findLastIndex((_, at) => this.x(at) <= x),
      ),
    );
    const along = (x - this.x(left)) / (this.x(left + 1) - this.x(left));
    let [found, least] = [null, REACH];
    this.found.number.forEach((_, index) => {
      const [a, b] = [this.y(this.heights[left][index]), this.y(this.heights[Math.min(last, left + 1)][index])];
      const distance = Math.abs(a + (b - a) * along - y);
      if (distance < least) [found, least] = [index, distance];
    });
    return found;
  }

  press(event) {
    const [x, y] = this.where(event);
    const axis = this.found?.number.length ? this.axisAt(x) : null;
    if (axis === null || event.pointerType === "touch" || event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { axis, from: y, to: y, isMoving: false };
    event.preventDefault();
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (drag?.isMoving) {
      const axis = this.axes[drag.axis];
      const ends = [drag.from, drag.to].map((y) => placeAt(axis, this.shareAt(y, axis))).sort((a, b) => a - b);
      this.onBrush(axis, ...ends);
    } else if (drag) {
      this.onBrush(this.axes[drag.axis], null, null);
    } else if (this.lit !== null && event.pointerType !== "touch") {
      this.open(this.trial(this.lit));
    }
    this.draw();
  }

  key(event) {
    if (!this.found?.number.length) return;
    const at = this.lit === null ? -1 : this.order.indexOf(this.lit);
    const last = this.order.length - 1;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last }[
      event.key
    ];
    if (to !== undefined) this.select(this.order[Math.min(last, Math.max(0, to))]);
    else if (event.key === "Escape") this.select(null);
    else if (event.key === "Enter" && this.lit !== null) this.open(this.trial(this.lit));
    else return;
    event.preventDefault();
  }

  trial(index) {
    const { number, state, value } = this.found;
    return { number: number[index], state: state[index], value: value[index] };
  }

  select(index) {
    if (index === this.lit) return;
    this.lit = index;
    this.onHover(index === null ? null : this.trial(index));
    this.describe();
    this.draw();
  }

  /** Mark the trial with this number, as one in the table under the pointer, without naming it. */
  highlight(number) {
    const index = number === null ? -1 : (this.found?.number.indexOf(number) ?? -1);
    const lit = index < 0 ? null : index;
    if (lit === this.lit) return;
    this.lit = lit;
    this.tip.hidden = true;
    this.draw();
  }

  describe() {
    this.tip.hidden = this.lit === null;
    this.box.classList.toggle("hit", this.lit !== null);
    if (this.lit === null) return;
    const trial = this.trial(this.lit);
    const params = this.found.axes
      .filter((axis) => axis.place[this.lit] !== null)
      .map((axis) => {
        const place = axis.place[this.lit];
        return `${axis.name} ${paramValue(axis.choices ? axis.choices[place] : place)}`;
      });
    this.tip.replaceChildren(
      head(trial),
      h("div", {}, `${this.objective.name} ${metric(trial.value)}`),
      setText(h("div", { class: "muted" }), params.join(" · ")),
    );
    const x = this.x(this.axes.length - 1) - this.scroller.scrollLeft;
    const left = Math.max(0, Math.min(x, this.box.clientWidth) - this.tip.offsetWidth - 56);
    this.tip.style.transform = `translate(${left}px, ${MARGIN.top}px)`;
  }
}

/** `words`, shortened so that they are at most so many pixels wide. */
function fitted(context, words, most) {
  if (context.measureText(words).width <= most) return words;
  let length = words.length;
  while (length > 1 && context.measureText(`${words.slice(0, length)}…`).width > most) length -= 1;
  return `${words.slice(0, length)}…`;
}
