// The architecture of a candidate whose parameters have repeated blocks.

import { architecture } from "../elements/architecture.js";
import { card } from "../elements/card.js";
import { h } from "../elements/dom.js";

/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function architecturePanel({ state }) {
  const box = h("div", { class: "body" });
  const section = card({ id: "architecture", title: "Architecture", hidden: true }, box);
  let shown = "";

  return {
    card: section,
    shows: ["trial"],
    draw() {
      const signature = JSON.stringify(state.trial.params);
      if (signature === shown) return;
      shown = signature;
      const picture = architecture(state.trial.params);
      section.hidden = !picture;
      box.replaceChildren(...(picture ? [picture] : []));
    },
  };
}
