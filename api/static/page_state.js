// What a page knows, as one object: panels read it, and hear which of its fields have changed. It knows no element, so
// that it can be tested without a browser.

export class PageState {
  constructor() {
    this.cluster = null; // the last answer about the cluster
    this.watchers = [];
    /** Kind of a live event → what it changes here, before the panels hear of it. */
    this.on = {};
  }

  /** Whether there is something to draw. */
  get isLoaded() {
    return this.cluster !== null;
  }

  setCluster(cluster) {
    this.cluster = cluster;
    this.changed("cluster");
  }

  /** Call `watcher(field)` after each change. */
  watch(watcher) {
    this.watchers.push(watcher);
  }

  changed(...fields) {
    for (const field of fields) for (const watcher of this.watchers) watcher(field);
  }
}
