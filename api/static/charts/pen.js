// Colours of the theme, and shapes drawn on a canvas. A chart has a new pen after each change of the theme.

import { h } from "../elements/dom.js";
import { required } from "../required.js";
import { shape } from "../states.js";

const REACH_OF_SHAPE = 2.6; // a shape fits into a box from -2.6 to 2.6

export class Pen {
  constructor() {
    this.colours = new Map(); // name → colour: to ask for one makes the browser compute styles anew
    this.stamps = new Map(); // key → a small canvas: to copy one is many times as fast as to fill a path
  }

  /**
   * The colour that the theme has under this name.
   * @param {string} name
   * @returns {string}
   */
  colour(name) {
    if (!this.colours.has(name))
      this.colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    return this.colours.get(name);
  }

  /**
   * [shape, colour] of a trial's state.
   * @param {string} state
   * @returns {[string, string]}
   */
  state(state) {
    return [shape(state), this.stateColour(state)];
  }

  /**
   * @param {string} state
   * @returns {string}
   */
  stateColour(state) {
    return this.colour(state.toLowerCase());
  }

  /**
   * Draw a shape, an SVG path in a box from -1 to 1, around a place on the canvas.
   * @param {CanvasRenderingContext2D} context
   * @param {string} path
   * @param {string} fill
   * @param {number} x
   * @param {number} y
   * @param {number} radius
   * @param {number} [alpha]
   */
  stamp(context, path, fill, x, y, radius, alpha = 1) {
    const { canvas, half } = this.stampOf(path, fill, radius);
    context.globalAlpha = alpha;
    context.drawImage(canvas, Math.round(x - half), Math.round(y - half));
    context.globalAlpha = 1;
  }

  /**
   * A canvas with a shape, and half of its side.
   * @param {string} path
   * @param {string} fill
   * @param {number} radius
   * @returns {{canvas: HTMLCanvasElement, half: number}}
   */
  stampOf(path, fill, radius) {
    const key = `${path} ${fill} ${radius}`;
    const known = this.stamps.get(key) ?? filled(path, fill, radius);
    this.stamps.set(key, known);
    return known;
  }
}

/**
 * @param {string} path
 * @param {string} fill
 * @param {number} radius
 * @returns {{canvas: HTMLCanvasElement, half: number}}
 */
function filled(path, fill, radius) {
  const half = Math.ceil(REACH_OF_SHAPE * radius);
  const canvas = h("canvas", { width: 2 * half, height: 2 * half });
  const context = required(canvas.getContext("2d"));
  context.translate(half, half);
  context.scale(radius, radius);
  context.fillStyle = fill;
  context.fill(new Path2D(path));
  return { canvas, half };
}
