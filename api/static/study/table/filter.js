// The filter of the trial table: a button for each state, and a line in which a user writes a condition.

import { h, keyed, setText } from "../../elements/dom.js";
import { stateMark } from "../../elements/marks.js";
import { count } from "../../format.js";
import { TRIAL_STATES } from "../../states.js";

/** @import { StudyState } from "../state.js" */

const TYPING_MS = 600;
const HELP = [
  "Parameters and objectives by their names, and number, state, value, values, step, attempts, oom, parent, ranks, batch, predicted_mib, measured_mib, step_seconds, seconds, num_params, reason. ",
  "Compare them with <, <=, ==, !=, in [a, b], and join with and, or, not (…). Blocks are lists: layers[0].width > 64, size(layers) > 3. What a trial does not have is null.",
];

/**
 * One button for each state that trials have: whether those are shown. Returns the `element`, and `draw()`.
 * @param {StudyState} state
 * @returns {{element: HTMLElement, draw: () => void}}
 */
export function stateButtons(state) {
  const element = h("div", { class: "filters", id: "filters", role: "group", "aria-label": "Show trials by state" });

  /** @param {string} each */
  function toggle(each) {
    const { states } = state.view;
    state.look({ states: states.includes(each) ? states.filter((other) => other !== each) : [...states, each] });
  }

  function draw() {
    keyed(
      element,
      TRIAL_STATES.filter((each) => state.study.trials[each] || state.view.states.includes(each)),
      (each) => each,
      (each) => {
        const num = h("b");
        const props = { type: "button", "aria-pressed": "false", onclick: () => toggle(each) };
        return { node: h("button", props, stateMark(each), num), num };
      },
      ({ node: button, num }, each) => {
        setText(num, count(state.study.trials[each] ?? 0));
        const pressed = String(state.view.states.includes(each));
        if (button.getAttribute("aria-pressed") !== pressed) button.setAttribute("aria-pressed", pressed);
      },
    );
  }

  return { element, draw };
}

/**
 * The line in which a user writes a filter; `complain(words)` says what is wrong with it.
 * @param {StudyState} state
 * @returns {{form: HTMLFormElement, complain: (words: string) => void}}
 */
export function filterForm(state) {
  const input = h("input", {
    type: "search",
    id: "where",
    placeholder: "lr < 1e-3 and state == COMPLETED",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    maxlength: "600",
    "aria-describedby": "where-wrong",
    value: state.view.where,
  });
  const wrong = h("p", { id: "where-wrong", class: "wrong", role: "status" });
  const apply = () => input.value.trim() !== state.view.where && state.look({ where: input.value.trim() });
  let typing = 0;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(apply, TYPING_MS);
  });

  const form = h(
    "form",
    { class: "where", role: "search" },
    h("label", { for: "where" }, "Filter"),
    input,
    h("details", { class: "help" }, h("summary", {}, "What can I write?"), h("p", {}, ...HELP)),
    wrong,
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    apply();
  });
  state.watch((field) => {
    if (field === "view" && document.activeElement !== input) input.value = state.view.where;
  });
  const complain = (/** @type {string} */ words) => {
    setText(wrong, words);
    if (words) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  return { form, complain };
}
