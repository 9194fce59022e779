// The end of a trial's log. While it is scrolled to its end it follows new lines; otherwise it does not move.

import { h, setText } from "../elements/dom.js";
import { coalesced } from "../elements/frames.js";
import { clock, plural } from "../format.js";

/** @import { LogLineView } from "../answers.d.ts" */

const MOST_LINES = 2000;

export class LogTail {
  /**
   * @param {HTMLElement} box
   * @param {HTMLButtonElement} toEnd
   * @param {HTMLElement} aside
   */
  constructor(box, toEnd, aside) {
    this.box = box;
    this.toEnd = toEnd;
    this.aside = aside;
    /** @type {LogLineView[]} */
    this.pending = [];
    this.following = true;
    this.empty = true;
    this.draw = coalesced(() => this.drawNow());
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    toEnd.addEventListener("click", () => this.end());
  }

  /**
   * Add lines, oldest first.
   * @param {LogLineView[]} lines
   */
  add(lines) {
    if (!lines.length) return;
    this.pending.push(...lines);
    this.draw();
  }

  drawNow() {
    if (this.empty) this.box.replaceChildren();
    this.empty = false;
    this.box.append(...this.pending.splice(0).map(logLine));
    while (this.box.childElementCount > MOST_LINES) this.box.firstChild?.remove();
    setText(this.aside, `last ${plural(this.box.childElementCount, "line")}`);
    if (this.following) this.end();
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    this.following = scrollTop + clientHeight >= scrollHeight - 24;
    this.toEnd.hidden = this.following;
  }

  end() {
    this.box.scrollTop = this.box.scrollHeight;
  }
}

/**
 * @param {LogLineView} line
 * @returns {HTMLLIElement}
 */
export function logLine({ time, attempt, rank, text }) {
  const at = h("span", { class: "at", title: `attempt ${attempt}` }, `${clock(time)} r${rank}`);
  return h("li", {}, at, h("span", {}, text.trimEnd()));
}
