// What the page of all studies knows: those that are listed, newest first.

import { PageState } from "../page_state.js";
import { LIVE_STUDY } from "../states.js";

export class StudiesState extends PageState {
  constructor() {
    super();
    this.studies = new Map(); // id → study
    this.older = undefined; // cursor of the next page of older studies; null: there is none; undefined: nothing is loaded
    this.on = { study: (event) => this.onStudy(event) };
  }

  get isLoaded() {
    return this.older !== undefined;
  }

  get newestFirst() {
    return [...this.studies.values()].sort((a, b) => b.id - a.id);
  }

  get numLive() {
    return [...this.studies.values()].filter((study) => LIVE_STUDY.has(study.state)).length;
  }

  /** Keep a page of studies from the API. */
  keepPage({ items, next }) {
    this.older = next;
    this.keep(items);
  }

  keep(items) {
    for (const study of items) this.studies.set(study.id, study);
    this.changed("studies");
  }

  onStudy({ study_id: id, data }) {
    if (data.state !== "DELETED") return;
    this.studies.delete(id);
    this.changed("studies");
  }
}
