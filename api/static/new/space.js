// The form of the space beside the text of a new study. Each changes the other: what is written is checked and read by
// the API, and a change of the form replaces a line of the text. Below is what of the space fits, once one asks for it.

import * as api from "../client.js";
import { byId, h, keyed, setText } from "../elements/dom.js";
import { mibWords, plural } from "../format.js";
import { chosenFiles } from "./files.js";
import { withParameter } from "./space_text.js";

/** @import { ParameterView, ScreeningView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { NewStudyContext } from "./state.js" */

const REST_MS = 600;
const KINDS = ["float", "int", "choice", "ordinal"];

/** @type {ParameterView} */
const NEW = { name: "", kind: "float", low: "0.0", high: "1.0", step: "", log: false, values: "" };

/**
 * @param {NewStudyContext} context
 * @returns {Panel}
 */
export function spacePanel({ state }) {
  const text = byId("spec", HTMLTextAreaElement);
  const rows = byId("space-rows");
  const wrong = byId("space-wrong");
  const fits = byId("fits", HTMLDetailsElement);
  let checked = ""; // the text that was checked last
  let timer = 0;
  let screening = new AbortController();

  /** @param {string} words */
  function complain(words) {
    wrong.hidden = !words;
    setText(wrong, words);
  }

  async function check() {
    const now = text.value;
    if (now === checked || !now.trim()) return;
    checked = now;
    try {
      const draft = await api.check(now);
      if (text.value !== now) return;
      complain("");
      draw(draft.parameters);
      void screen();
    } catch (error) {
      if (text.value === now) complain(/** @type {Error} */ (error).message);
    }
  }

  /** @param {ParameterView[]} parameters */
  function draw(parameters) {
    keyed(rows, parameters, (parameter) => JSON.stringify(parameter), row);
  }

  /**
   * @param {string} name
   * @param {ParameterView | null} parameter
   */
  function write(name, parameter) {
    const changed = withParameter(text.value, name, parameter);
    if (changed === null) return complain(`Change ${name} in the text: it has no line of its own there.`);
    text.value = changed;
    text.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** @param {ParameterView} parameter */
  function row(parameter) {
    const { name, kind } = parameter;
    const remove = h(
      "button",
      { type: "button", class: "quiet", "aria-label": `Remove ${name}`, onclick: () => write(name, null) },
      "✕",
    );
    if (kind === "other")
      return h("li", {}, h("b", {}, name), h("span", { class: "muted" }, "only in the text"), remove);
    const isList = kind === "choice" || kind === "ordinal";
    const change = (/** @type {Partial<ParameterView>} */ changes) => write(name, { ...parameter, ...changes });
    const input = (/** @type {"low" | "high" | "step" | "values"} */ key, /** @type {string} */ label) =>
      h(
        "label",
        {},
        `${label} `,
        h("input", {
          value: parameter[key],
          autocomplete: "off",
          "aria-label": `${label} of ${name}`,
          onchange: (/** @type {any} */ event) => change({ [key]: event.target.value }),
        }),
      );
    const kinds = h("select", {
      "aria-label": `Kind of ${name}`,
      onchange: (/** @type {any} */ event) => change(asKind(parameter, event.target.value)),
    });
    kinds.append(...KINDS.map((each) => h("option", { value: each, selected: each === kind }, each)));
    const log = h("input", {
      type: "checkbox",
      checked: parameter.log,
      onchange: (/** @type {any} */ event) => change({ log: event.target.checked }),
    });
    const fields = isList
      ? [input("values", "values")]
      : [input("low", "low"), input("high", "high"), h("label", {}, log, " log")];
    return h("li", {}, h("b", {}, name), kinds, fields, remove);
  }

  async function screen() {
    screening.abort();
    if (!fits.open) return;
    screening = new AbortController();
    const { signal } = screening;
    setText(byId("fits-words"), "Predicting what fits… The first time for a model this takes a minute or two.");
    try {
      const inputs = ["files", "folder"].map((id) => byId(id, HTMLInputElement).files ?? []);
      const files = chosenFiles(inputs[0], inputs[1]);
      const codeOf =
        state.hasFiles && state.isCopy && byId("inherits", HTMLInputElement).checked ? state.originalId : 0;
      const found = await api.screen({ spec: text.value, files, codeOf }, signal);
      drawFits(found);
    } catch (error) {
      if (!signal.aborted) setText(byId("fits-words"), /** @type {Error} */ (error).message);
    }
  }

  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(check, REST_MS);
  });
  byId("space").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.target instanceof HTMLInputElement)) return;
    event.preventDefault(); // it would submit the study
    if (event.target.id === "new-parameter") byId("add-parameter").click();
    else event.target.blur();
  });
  fits.addEventListener("toggle", screen);
  byId("add-parameter").addEventListener("click", () => {
    const input = byId("new-parameter", HTMLInputElement);
    const name = input.value.trim();
    if (!name) return input.focus();
    write(name, { ...NEW, name });
    input.value = "";
  });

  return { shows: ["text", "original"], draw: check, load: check };
}

/**
 * A parameter as another kind, with values that are near to those that it has.
 * @param {ParameterView} parameter
 * @param {ParameterView["kind"]} kind
 * @returns {ParameterView}
 */
export function asKind(parameter, kind) {
  const isList = kind === "choice" || kind === "ordinal";
  const wasList = parameter.kind === "choice" || parameter.kind === "ordinal";
  const found = { ...parameter, kind, step: "" };
  if (isList && !wasList) found.values = `${parameter.low}, ${parameter.high}`;
  if (!isList && wasList) {
    const numbers = parameter.values.split(",").map(Number).filter(Number.isFinite);
    [found.low, found.high] = [Math.min(...numbers, 1), Math.max(...numbers, 1)].map(String);
  }
  if (kind === "int") [found.low, found.high] = [found.low, found.high].map((text) => String(Math.round(Number(text))));
  return found;
}

/** @param {ScreeningView} found */
function drawFits(found) {
  const { num_candidates: all, num_fitting: fitting, num_refused: refused } = found;
  const devices = `${plural(found.num_devices, "device")} of up to ${mibWords(found.largest_mib)}`;
  const ranks = found.ranks.map((each) => `${each.num_candidates} on ${plural(each.num_ranks, "rank")}`);
  const words = `${share(fitting, all)} of ${plural(all, "random candidate")} fit on ${devices}: ${ranks.join(", ") || "none"}.`;
  setText(byId("fits-words"), words + (refused ? ` The workload refuses ${refused}: ${found.why_refused}` : ""));
  const shown = found.parts.filter((part) =>
    found.parts.some((each) => each.name === part.name && each.num_fitting < each.num_candidates),
  );
  const parts = shown.map(({ name, first, last, num_candidates: num, num_fitting: fit }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", {}, first === last ? valueWords(first) : `${valueWords(first)} to ${valueWords(last)}`),
      h("td", { class: "num" }, share(fit, num)),
    ),
  );
  byId("fits-parts").replaceChildren(...parts);
}

/** @param {unknown} value */
function valueWords(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(3))) : String(value);
}

/**
 * @param {number} part
 * @param {number} all
 */
function share(part, all) {
  return `${all ? Math.round((100 * part) / all) : 0} %`;
}
