// The study as it was submitted: its file, and the user's own files to download.

import * as api from "../client.js";
import { card } from "../elements/card.js";
import { copyButton } from "../elements/copy_button.js";
import { h, setText } from "../elements/dom.js";

/** @import { ProvenanceView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { StudyContext } from "./state.js" */

/**
 * @param {StudyContext} context
 * @returns {Panel}
 */
export function filePanel({ state, page }) {
  const text = h("pre", { class: "code" });
  const copyable = h("div", { class: "copyable" }, text);
  text.after(copyButton(() => text.textContent ?? ""));
  const files = h("a", { class: "button", href: `/v1/studies/${state.studyId}/files.zip` }, "Download its files");
  const details = h("details", {}, h("summary", {}, "Show it, with its present limits"), copyable);
  const origin = h("dl", { class: "pairs" });
  const source = h("details", {}, h("summary", {}, "Command, git commit and packages"), origin);
  const section = card(
    { id: "file", title: "Study file", beside: [files] },
    h("div", { class: "body" }, details, source),
  );
  const drawOrigin = (/** @type {ProvenanceView} */ { packages, ...known }) => {
    const pairs = Object.entries(known).filter(([, value]) => value !== null);
    const versions = Object.entries(packages ?? {}).map((pair) => pair.join(" "));
    if (versions.length) pairs.push(["packages", versions.join(", ")]);
    origin.replaceChildren(...pairs.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
  };
  source.addEventListener(
    "toggle",
    () => source.open && page.run(async () => drawOrigin(await api.request(`/v1/studies/${state.studyId}/provenance`))),
  );

  const load = () => page.run(async () => void setText(text, await api.studyFile(state.studyId)));
  details.addEventListener("toggle", () => details.open && load());

  return {
    card: section,
    shows: ["study"],
    draw() {
      section.hidden = !state.study.spec.search.sampler; // another program runs it
      files.hidden = !state.study.has_files;
    },
  };
}
