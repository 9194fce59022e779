// The requests of a page that follow from events: bundled, repeated after failures, and ended before what they ask for
// is deleted.

const REFRESH_MS = 1000;
const SHARE = 10; // a refresh that took a while is followed by a rest of this many times its length

export class Requests {
  constructor() {
    this.isClosed = false;
    this.underWay = new Set();
  }

  /**
   * Await `work()`; once closed, nothing is done and the result is undefined.
   * @template Result
   * @param {() => Promise<Result> | Result} work
   * @returns {Promise<Result | undefined>}
   */
  async run(work) {
    if (this.isClosed) return undefined;
    const running = work();
    this.underWay.add(running);
    try {
      return await running;
    } finally {
      this.underWay.delete(running);
    }
  }

  /**
   * Begin nothing any more. Resolves when what is under way has ended, whether well or not.
   * @returns {Promise<void>}
   */
  async close() {
    this.isClosed = true;
    await Promise.allSettled(this.underWay);
  }

  reopen() {
    this.isClosed = false;
  }

  /**
   * Returns a function that collects keys, which `fetch(keys)` fetches at most once in `restMs`. It retries failures,
   * and rests longer when answers take long, so that a page never keeps the server busy.
   * @param {(keys: any[]) => unknown} fetch
   * @param {number} [restMs]
   * @returns {(key: unknown) => void}
   */
  refresher(fetch, restMs = REFRESH_MS) {
    const dirty = new Set();
    let isRunning = false;
    const refresh = async () => {
      const keys = this.isClosed ? [] : [...dirty];
      const began = performance.now();
      if (keys.length) {
        dirty.clear();
        try {
          await this.run(() => fetch(keys));
        } catch {
          for (const key of keys) dirty.add(key); // the connection indicator shows it; a toast each second would not help
        }
      }
      const rest = Math.max(restMs, SHARE * (performance.now() - began));
      setTimeout(() => (dirty.size ? refresh() : (isRunning = false)), rest);
    };
    return (key) => {
      dirty.add(key);
      if (isRunning) return;
      isRunning = true;
      setTimeout(refresh, restMs / 5);
    };
  }
}
