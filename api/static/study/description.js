// The dialog that changes the name, tags and note of a study, and archives it.

import * as api from "../client.js";
import { byId, setText } from "../elements/dom.js";
import { required } from "../required.js";

/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function descriptionPanel({ state, feeds }) {
  const dialog = byId("description", HTMLDialogElement);
  const wrong = byId("description-wrong");
  const form = required(dialog.querySelector("form"));
  const [name, tags, archived] = ["name", "tags", "archived"].map((id) => byId(`described-${id}`, HTMLInputElement));
  const note = byId("described-note", HTMLTextAreaElement);

  const button = byId("edit");
  button.addEventListener("click", () => {
    const { study } = state;
    [name.value, tags.value, note.value] = [study.name, study.tags.join(", "), study.note];
    archived.checked = study.archived;
    wrong.hidden = true;
    dialog.showModal();
  });
  byId("description-cancel").addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const words = tags.value.split(",").map((tag) => tag.trim());
    const description = { name: name.value, tags: words.filter(Boolean), note: note.value, archived: archived.checked };
    try {
      await api.describe(state.studyId, description);
      dialog.close();
      feeds.refreshStudy("described");
    } catch (error) {
      wrong.hidden = false;
      setText(wrong, /** @type {Error} */ (error).message);
    }
  });

  return { shows: ["study"], draw: () => (button.hidden = false) };
}
