// The order of the rows in the trial table. The server sorts and filters.

/** @import { Rows } from "../../elements/table.js" */

/**
 * What the table is to show. `query` goes to the API; `where`: the user's filter.
 * @typedef {{query: string, where: string}} Wanted
 */

export class TrialOrder {
  /**
   * @param {() => Wanted} wanted
   * @param {(query: string) => Promise<number[]>} fetchOrder
   */
  constructor(wanted, fetchOrder) {
    this.wanted = wanted;
    this.fetchOrder = fetchOrder;
    /** @type {number[] | null} numbers of the trials in the table; null: not known yet */
    this.numbers = null;
    /** @type {string | null} the newest query */
    this.asked = null;
    this.isPending = false;
  }

  /** Whether the table is to show something that was not asked for yet. */
  get isOutdated() {
    return this.wanted().query !== this.asked;
  }

  /**
   * Fetch the order. Resolves with what is wrong with the user's filter, "" if nothing is, and null
   * if a later request has taken the place of this one.
   * @returns {Promise<string | null>}
   */
  async fetch() {
    const { query, where } = this.wanted();
    this.asked = query;
    this.isPending = true;
    try {
      const found = await this.fetchOrder(query);
      if (this.asked !== query) return null;
      this.numbers = found;
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
   * The rows to show, of `total` trials: by number until the order is known.
   * @param {number} total
   * @param {boolean} descending
   * @returns {Rows}
   */
  rows(total, descending) {
    return this.numbers ?? inOrder(total, descending);
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
