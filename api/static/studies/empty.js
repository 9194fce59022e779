// How to submit a study, as long as there is none.

import { copyButton } from "../elements/copy_button.js";
import { byId, setText } from "../elements/dom.js";

/** @import { Panel } from "../page.js" */
/** @import { StudiesContext } from "./state.js" */

const FIRST_STUDY = `{"spec": {
  "name": "first study",
  "workload": "vit_digits",
  "objective": {"metric": "accuracy", "direction": "maximize"},
  "space": {"depth": {"choice": [2, 4]}, "lr": {"low": 0.0003, "high": 0.003, "log": true}},
  "budget": {"trials": 8, "steps": 60}
}}`;

/**
 * @param {StudiesContext} context
 * @returns {Panel}
 */
export function emptyPanel({ state }) {
  const commands = {
    cli: `scamp submit examples/digits.yaml --address ${location.origin}`,
    curl: `curl ${location.origin}/v1/studies -H 'Content-Type: application/json' -d '${FIRST_STUDY}'`,
  };
  for (const [id, text] of Object.entries(commands)) {
    setText(byId(id), text).after(copyButton(() => text));
  }

  return {
    shows: ["studies"],
    draw() {
      byId("empty").hidden = state.studies.size > 0 || state.isChosen;
    },
  };
}
