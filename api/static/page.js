// The host of a page: it loads the page's state and its panels, passes live events on, and redraws what has changed.
//
// A panel is a part of a page: one picture, one table, or something that only fetches. Each is one file with a function
// that returns an object. All of these are optional:
//
//   card          its element, which is added to the page's grid; without one, the panel fills a part of the template
//   shows         fields of the page's state that it shows: after a change of one of them it is drawn again
//   draw()        show the present state; called once per frame at most
//   restMs        draw at most once in so many milliseconds
//   load()        fetch what only this panel needs, once, after the page's own state has come
//   on            {kind: (event) => …}: what it fetches or notes after a live event
//   tick()        show what changes with time alone, each second, or each `everyMs`
//   point(trial)  mark the trial under the pointer in another panel; null: there is none any more

import { watchCluster } from "./banner.js";
import { coalesced } from "./elements/frames.js";
import { guarded } from "./elements/notices.js";
import { KINDS, follow } from "./live.js";
import { Requests } from "./requests.js";

const TICK_MS = 1000;

export class Page {
  /** `state`: a `PageState`. `grid`: the element that gets the cards, if panels have some. */
  constructor(state, grid = null) {
    this.state = state;
    this.grid = grid;
    this.panels = [];
    this.requests = new Requests();
  }

  /** Await `work()`, and show its error if it fails; returns its result, or undefined. */
  run(work) {
    return guarded(() => this.requests.run(work));
  }

  refresher(fetch, restMs) {
    return this.requests.refresher(fetch, restMs);
  }

  /** Show a trial that is under the pointer in the panel `source`, or null, in all others. */
  point(source, trial) {
    for (const panel of this.panels) if (panel !== source) panel.point?.(trial);
  }

  /** Go to another page; what this one shows is gone. */
  leave(address) {
    this.requests.close();
    location.assign(address);
  }

  /** Await `work()`, which removes what this page shows, and go to another page. No request asks for it meanwhile. */
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
   * is in the state. `studyId`: follow only this study's events. `failed()` is called if nothing could be loaded.
   */
  async open({ panels, load, studyId = null, failed }) {
    this.panels = panels;
    this.grid?.append(...panels.flatMap((panel) => panel.card ?? []));
    this.redrawChanges();
    const after = await this.run(load);
    watchCluster(this.state);
    if (after === undefined) return failed();
    follow({ studyId, after, handlers: this.handlers() });
    for (const panel of panels) {
      if (panel.load) this.run(() => panel.load());
      if (panel.tick) setInterval(() => panel.tick(), panel.everyMs ?? TICK_MS);
    }
  }

  redrawChanges() {
    const drawn = this.panels.filter((panel) => panel.draw);
    const draws = new Map(
      drawn.map((panel) => [panel, coalesced(() => this.state.isLoaded && panel.draw(), panel.restMs)]),
    );
    this.state.watch((field) => {
      for (const [panel, draw] of draws) if (panel.shows.includes(field)) draw();
    });
  }

  /** A function for each kind of event that someone listens to: the state first, then the panels in their order. */
  handlers() {
    const listeners = [this.state, ...this.panels];
    const heard = KINDS.filter((kind) => listeners.some((listener) => listener.on?.[kind]));
    return Object.fromEntries(
      heard.map((kind) => [
        kind,
        (event) => {
          for (const listener of listeners) listener.on?.[kind]?.(event);
        },
      ]),
    );
  }
}
