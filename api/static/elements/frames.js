// When things are drawn: in animation frames, oldest request first, and never more than fits into a frame.

const FRAME_MS = 8; // of each frame's 16, so that scrolling and typing stay smooth

/** What is to be drawn. What does not fit into a frame waits for the next one. */
class Queue {
  constructor() {
    /** @type {(() => void)[]} */
    this.due = [];
    this.isPumping = false;
  }

  /** @param {() => void} draw */
  add(draw) {
    this.due.push(draw);
    if (this.isPumping) return;
    this.isPumping = true;
    requestAnimationFrame(() => this.pump());
  }

  pump() {
    const until = performance.now() + FRAME_MS;
    try {
      do this.due.shift()?.();
      while (this.due.length && performance.now() < until);
    } finally {
      this.isPumping = this.due.length > 0;
      if (this.isPumping) requestAnimationFrame(() => this.pump());
    }
  }
}

const queue = new Queue(); // one for the page, as frames are

/**
 * Returns a function that runs `draw` in the next frame: once per frame, and at most once in `restMs`. What takes longer
 * than a part of a frame leaves the rest to the next one, so that several charts never block the page together.
 * @param {() => void} draw
 * @param {number} [restMs]
 * @returns {() => void}
 */
export function coalesced(draw, restMs = 0) {
  let asked = false;
  let last = -Infinity;
  const run = () => {
    asked = false;
    last = performance.now();
    draw();
  };
  return () => {
    if (asked) return;
    asked = true;
    const rest = last + restMs - performance.now();
    if (rest > 0) setTimeout(() => queue.add(run), rest);
    else queue.add(run);
  };
}
