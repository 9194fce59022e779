// The columns that the trial table has now: those of the page's address, or else those that suit the study.

import { objectiveColumns, parameterColumn, trialColumns } from "./columns.js";
import { defaultColumns, parameterOf } from "./view.js";

/** @import { TrialColumn } from "./columns.js" */
/** @import { StudyState } from "../state.js" */

export class ShownColumns {
  /** @param {StudyState} state */
  constructor(state) {
    this.state = state;
    /** @type {TrialColumn[]} all columns that do not depend on the study's space and objectives */
    this.standing = trialColumns(
      state.studyId,
      () => state.study.spec.fixed,
      () => state.direction === "maximize",
    );
  }

  /**
   * Every column that a user may choose.
   * @returns {TrialColumn[]}
   */
  every() {
    const parameters = this.state.parameterNames.map((name) => this.ofParameter(name));
    return [...this.standing, ...objectiveColumns(this.state.study.spec), ...parameters];
  }

  /**
   * Keys of the columns to show, in their order.
   * @returns {string[]}
   */
  keys() {
    return this.state.view.columns ?? defaultColumns(this.withObjectives(), this.state.parameterNames);
  }

  /**
   * The columns to show, in their order. Those of objectives that the study does not have are left out.
   * @returns {TrialColumn[]}
   */
  shown() {
    const known = new Map([...this.standing, ...objectiveColumns(this.state.study.spec)].map((one) => [one.key, one]));
    const found = this.keys().map((key) => {
      const parameter = parameterOf(key);
      return parameter === null ? known.get(key) : this.ofParameter(parameter);
    });
    return found.filter((column) => column !== undefined);
  }

  /** All columns but those of parameters; several objectives take the place of the value. */
  withObjectives() {
    const several = objectiveColumns(this.state.study.spec);
    if (!several.length) return this.standing;
    return this.standing.flatMap((column) => (column.key === "value" ? several : [column]));
  }

  /**
   * @param {string} name flat name of a parameter
   * @returns {TrialColumn}
   */
  ofParameter(name) {
    return parameterColumn(name, this.state.study.spec.space[name]);
  }
}
