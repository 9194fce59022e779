// What a page knows, as one object: panels read it, and hear which of its fields have changed. It knows no element, so
// that it can be tested without a browser.

import { required } from "./required.js";

/** @import { ClusterView } from "./answers.d.ts" */
/** @import { Handlers } from "./live.js" */

export class PageState {
  constructor() {
    /** @type {ClusterView | null} the last answer about the cluster; null: none has come yet */
    this.knownCluster = null;
    /** @type {((field: string) => void)[]} */
    this.watchers = [];
    /** @type {Handlers} kind of a live event → what it changes here, before the panels hear of it */
    this.on = {};
  }

  /** Whether there is something to draw. */
  get isLoaded() {
    return this.knownCluster !== null;
  }

  /**
   * The cluster. Throws before it has come.
   * @returns {ClusterView}
   */
  get cluster() {
    return required(this.knownCluster);
  }

  /** @param {ClusterView} cluster */
  setCluster(cluster) {
    this.knownCluster = cluster;
    this.changed("cluster");
  }

  /**
   * Call `watcher(field)` after each change.
   * @param {(field: string) => void} watcher
   */
  watch(watcher) {
    this.watchers.push(watcher);
  }

  /**
   * Say that these fields have changed.
   * @param {...string} fields
   */
  changed(...fields) {
    for (const field of fields) for (const watcher of this.watchers) watcher(field);
  }
}
