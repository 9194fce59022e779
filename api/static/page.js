// The host of a page: it loads the page's state and its panels, passes live events on, and redraws what has changed.

import { watchCluster } from "./banner.js";
import { coalesced } from "./elements/frames.js";
import { guarded } from "./elements/notices.js";
import { KINDS, follow } from "./live.js";
import { Requests } from "./requests.js";
import { required } from "./required.js";

/** @import { Handlers } from "./live.js" */
/** @import { PageState } from "./page_state.js" */

/**
 * A part of a page: one picture, one table, or something that only fetches. It is made by a function in a file of its
 * own, which gets the page's state and returns this. All fields are optional.
 * @typedef {object} Panel
 * @property {HTMLElement} [card] its element, which is added to the page's grid; without one it fills a part of the template
 * @property {() => unknown} [load] fetches what only this panel needs, once, after the page's own state has come
 * @property {Handlers} [on] kind of a live event → what it fetches or notes after one
 * @property {string[]} [shows] fields of the page's state, or names that panels announce: it is drawn again after a change of one
 * @property {string} [needs] one of these: it is not drawn before the first change of it, after which it would rest
 * @property {() => unknown} [draw] shows the present state; called once per frame at most
 * @property {number} [restMs] draw at most once in this many milliseconds
 * @property {boolean} [isLazy] draw only while its card is near the part of the page that is seen, and load when it comes near, or is hidden
 * @property {() => unknown} [seen] called when the card is near it, once the page's state has come, and comes near it again
 * @property {() => unknown} [tick] shows what changes with time alone, each second, or each `everyMs`
 * @property {number} [everyMs]
 * @property {(trial: Marked | null) => unknown} [point] marks the trial under the pointer in another panel; null: there is none any more
 */

/** @typedef {{id?: number | null, number: number}} Marked a trial that panels mark together */

const TICK_MS = 1000;

export class Page {
  /**
   * @param {PageState} state
   * @param {HTMLElement | null} [grid] gets the cards, if panels have some
   */
  constructor(state, grid = null) {
    this.state = state;
    this.grid = grid;
    /** @type {Panel[]} */
    this.panels = [];
    this.requests = new Requests();
    /** @type {Set<Element>} cards that are seen, or nearly */
    this.near = new Set();
    /** @type {Map<Panel, () => void>} a function that draws it soon, for each panel that is drawn */
    this.draws = new Map();
    /** @type {Set<Panel>} panels to draw once they are seen */
    this.late = new Set();
    /** @type {Set<Panel>} lazy panels that have not loaded yet */
    this.unloaded = new Set();
    this.isOpen = false; // whether the page's state has come
  }

  /**
   * Await `work()`, and show its error if it fails; returns its result, or undefined.
   * @template Result
   * @param {() => Promise<Result> | Result} work
   * @returns {Promise<Result | undefined>}
   */
  run(work) {
    return guarded(() => this.requests.run(work));
  }

  /**
   * A function that collects keys, which `fetch(keys)` fetches at most once in `restMs`; see `Requests`.
   * @param {(keys: any[]) => unknown} fetch
   * @param {number} [restMs]
   * @returns {(key: unknown) => void}
   */
  refresher(fetch, restMs) {
    return this.requests.refresher(fetch, restMs);
  }

  /**
   * Show a trial that is under the pointer in the panel `source`, or null, in all others.
   * @param {Panel} source
   * @param {Marked | null} trial
   */
  point(source, trial) {
    for (const panel of this.panels) if (panel !== source) panel.point?.(trial);
  }

  /**
   * Go to another page; what this one shows is gone.
   * @param {string} address
   */
  leave(address) {
    this.requests.close();
    location.assign(address);
  }

  /**
   * Await `work()`, which removes what this page shows, and go to another page. No request asks for it meanwhile.
   * @param {() => Promise<unknown>} work
   * @param {string} address
   */
  leaveAfter(work, address) {
    return guarded(async () => {
      await this.requests.close();
      try {
        await work();
      } catch (error) {
        this.requests.reopen();
        throw error;
      }
      location.assign(address);
    });
  }

  /**
   * Add the panels in this order, load the state and follow its events. `load()` returns the id of the last event that
   * is in the state, and the panels load when it is done. `loadMore()` fetches meanwhile what takes longer, and returns
   * the same of that. Lazy panels load after all others. `studyId`: follow only this study's events. `failed()` is called
   * if `load()` fails.
   * @param {object} options
   * @param {Panel[]} options.panels
   * @param {() => Promise<number>} options.load
   * @param {() => Promise<number>} [options.loadMore]
   * @param {number | null} [options.studyId]
   * @param {() => void} options.failed
   */
  async open({ panels, load, loadMore = async () => Infinity, studyId = null, failed }) {
    this.panels = panels;
    this.grid?.append(...panels.flatMap(({ card }) => (card ? [card] : [])));
    this.redrawChanges();
    this.watchCards();
    const more = this.run(loadMore);
    const after = await this.run(load);
    watchCluster(this.state);
    if (after === undefined) return failed();
    const loads = [];
    for (const panel of panels) {
      if (panel.isLazy) this.unloaded.add(panel);
      else loads.push(this.run(() => panel.load?.()));
      if (panel.tick) setInterval(() => panel.tick?.(), panel.everyMs ?? TICK_MS);
    }
    follow({ studyId, after: Math.min(after, (await more) ?? after), handlers: this.handlers() });
    await Promise.all(loads);
    this.opened();
  }

  /** The page's state has come: now lazy panels load that are near, or hidden because they may be empty. */
  opened() {
    this.isOpen = true;
    for (const panel of this.panels) if (this.sees(panel.card) || panel.card?.hidden) this.show(panel);
  }

  /**
   * Whether a card is seen, or nearly.
   * @param {Element | undefined} card
   * @returns {boolean}
   */
  sees(card) {
    return card !== undefined && this.near.has(card);
  }

  /**
   * Whether a panel that shows this field of the state is seen, or nearly.
   * @param {string} field
   * @returns {boolean}
   */
  showsNow(field) {
    return this.panels.some(({ card, shows }) => shows?.includes(field) && this.sees(card));
  }

  watchCards() {
    /** @type {Map<Element, Panel>} */
    const watched = new Map(this.panels.flatMap((panel) => (panel.card ? [[panel.card, panel]] : [])));
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          const panel = required(watched.get(target));
          if (!isIntersecting) this.near.delete(target);
          else if (!this.near.has(target)) this.comesNear(target, panel);
        }
      },
      { rootMargin: "300px" },
    );
    for (const card of watched.keys()) observer.observe(card);
  }

  /**
   * @param {Element} card
   * @param {Panel} panel
   */
  comesNear(card, panel) {
    this.near.add(card);
    if (this.late.delete(panel)) this.draws.get(panel)?.();
    if (this.isOpen) this.show(panel);
  }

  /** @param {Panel} panel whose card is near, or that has none to see */
  show(panel) {
    if (this.unloaded.delete(panel)) this.run(() => panel.load?.());
    panel.seen?.();
  }

  /** @param {Panel} panel */
  drawNow(panel) {
    if (!this.state.isLoaded) return;
    if (panel.isLazy && !panel.card?.hidden && !this.sees(panel.card)) this.late.add(panel);
    else panel.draw?.();
  }

  redrawChanges() {
    for (const panel of this.panels) {
      if (!panel.draw) continue;
      const draw = coalesced(() => this.drawNow(panel), panel.restMs);
      this.draws.set(panel, draw);
    }
    /** @type {Set<string>} fields that have changed */
    const changed = new Set();
    let isLoaded = false;
    this.state.watch((field) => {
      changed.add(field);
      if (!this.state.isLoaded) return;
      const fields = isLoaded ? [field] : [...changed]; // also those that came before the state
      isLoaded = true;
      for (const [panel, draw] of this.draws) {
        const isReady = !panel.needs || changed.has(panel.needs);
        if (isReady && panel.shows?.some((shown) => fields.includes(shown))) draw();
      }
    });
  }

  /**
   * A function for each kind of event that someone listens to: the state first, then the panels in their order, without
   * those that have not loaded yet.
   * @returns {Handlers}
   */
  handlers() {
    const listeners = [this.state, ...this.panels];
    const heard = KINDS.filter((kind) => listeners.some((listener) => listener.on?.[kind]));
    return Object.fromEntries(
      heard.map((kind) => [
        kind,
        (/** @type {any} */ event) => {
          for (const listener of listeners) if (!this.unloaded.has(listener)) listener.on?.[kind]?.(event);
        },
      ]),
    );
  }
}
