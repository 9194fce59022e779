// The order of the rows in the trial table. The server sorts and filters. Only the first numbers are fetched, until one
// scrolls beyond them: then all.

/** @import { OrderView } from "../../answers.d.ts" */
/** @import { Rows } from "../../elements/table.js" */

/**
 * What the table is to show. `query` goes to the API; `where`: the user's filter.
 * @typedef {{query: string, where: string}} Wanted
 */

const FIRST = 200;

export class TrialOrder {
  /**
   * @param {() => Wanted} wanted
   * @param {(query: string, limit: number | null) => Promise<OrderView>} fetchOrder
   */
  constructor(wanted, fetchOrder) {
    this.wanted = wanted;
    this.fetchOrder = fetchOrder;
    /** @type {number[] | null} numbers of the first trials in the table, or of all; null: not known yet */
    this.numbers = null;
    this.total = 0; // trials in the table
    this.isWhole = false; // whether all numbers are fetched
    /** @type {string | null} the newest query */
    this.asked = null;
    this.isPending = false;
  }

  /** Whether the table is to show something that was not asked for yet. */
  get isOutdated() {
    return this.wanted().query !== this.asked;
  }

  /** Whether no order is known, and one may still come. */
  get isComing() {
    return this.numbers === null && (this.isPending || this.asked === null);
  }

  /**
   * Fetch the order. Resolves with what is wrong with the user's filter, "" if nothing is, and null
   * if a later request has taken the place of this one.
   * @returns {Promise<string | null>}
   */
  async fetch() {
    const { query, where } = this.wanted();
    if (query !== this.asked) this.isWhole = false;
    this.asked = query;
    this.isPending = true;
    try {
      const found = await this.fetchOrder(query, this.isWhole ? null : FIRST);
      if (this.asked !== query) return null;
      [this.numbers, this.total] = [found.number, found.num_trials];
      return "";
    } catch (thrown) {
      const error = /** @type {any} */ (thrown);
      if (error.status !== 422 || !where) throw error;
      return this.asked === query ? error.message : null;
    } finally {
      if (this.asked === query) this.isPending = false;
    }
  }

  /**
   * From now on fetch all numbers; returns whether that is new.
   * @returns {boolean}
   */
  wantWhole() {
    if (this.isWhole) return false;
    this.isWhole = true;
    return true;
  }

  /**
   * The rows to show, of `total` trials: by number if no order is known; none while one may still come.
   * @param {number} total
   * @param {boolean} descending
   * @returns {Rows}
   */
  rows(total, descending) {
    const { numbers } = this;
    if (numbers) return { length: this.total, at: (index) => numbers[index] };
    return inOrder(this.isComing ? 0 : total, descending);
  }
}

/**
 * The numbers below `total`, in order, without an array of them.
 * @param {number} total
 * @param {boolean} descending
 * @returns {Rows}
 */
export function inOrder(total, descending) {
  return { length: total, at: (index) => (descending ? total - 1 - index : index) };
}
