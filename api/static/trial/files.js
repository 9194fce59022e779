// The files that a trial keeps, and its last checkpoint, each with a link to download it; and the newest pictures of it.

import * as api from "../client.js";
import { card, scrolling, tableHead } from "../elements/card.js";
import { h, keyed } from "../elements/dom.js";
import { ago, bytesWords } from "../format.js";

/** @import { EventView, FileView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { TrialContext } from "./state.js" */

const AVERAGES = ["ema_decay", "swa_start"]; // parameters of a trial that averages its weights
const PICTURE = /\.(png|jpe?g|gif|webp|svg)$/i;
const PICTURES = 24; // that are shown, the newest
const COLUMNS = [{ name: "File" }, { name: "Size", numeric: true }, { name: "Written" }];

/**
 * @param {TrialContext} context
 * @returns {Panel}
 */
export function filesPanel({ state, page }) {
  const body = h("tbody", { id: "files-rows" });
  const table = h("table", { class: "plain", id: "files" }, tableHead(COLUMNS), body);
  const pictures = h("div", { class: "pictures body", id: "pictures" });
  const section = card({ id: "files", title: "Files", hidden: true }, pictures, scrolling("files", "scroll", table));
  /** @type {FileView[]} */
  let files = [];

  async function load() {
    files = await api.files(state.studyId, state.number);
    draw();
  }

  function draw() {
    const last = Math.max(-1, ...(state.trial?.attempts ?? []).map((attempt) => attempt.checkpoint_step));
    const best = state.trial?.best_step ?? null;
    const checkpoint = best !== null && best <= last ? best : last;
    const command = `scamp weights ${state.studyId} ${state.number}`;
    const averages = AVERAGES.some((name) => (state.trial?.params[name] ?? null) !== null);
    const also = averages ? `, with the averages by which its metrics were measured; with --raw those that train` : "";
    const unstored = state.trial?.unstored ? `. Not in object storage yet, ${state.trial.unstored}` : "";
    const rows = files.map((file) => ({
      href: api.fileAddress(state.studyId, state.number, file.name),
      name: file.name,
      cells: [bytesWords(file.num_bytes), ago(file.written_at)],
    }));
    if (checkpoint >= 0) {
      rows.push({
        href: api.checkpointAddress(state.studyId, state.number),
        name: `checkpoint of step ${checkpoint}`,
        cells: ["", `“${command}” writes it as a file for torch.load${also}${unstored}`],
      });
    }
    section.hidden = rows.length === 0;
    keyed(body, rows, (row) => JSON.stringify(row), fileRow);
    const shown = files.filter(({ name }) => PICTURE.test(name)).sort((a, b) => b.written_at - a.written_at);
    pictures.hidden = !shown.length;
    keyed(pictures, shown.slice(0, PICTURES), (file) => JSON.stringify(file), picture);
  }

  /** @param {FileView} file */
  function picture({ name }) {
    const href = api.fileAddress(state.studyId, state.number, name);
    const image = h("img", { src: href, alt: name, loading: "lazy" });
    return h("figure", {}, h("a", { href, download: "" }, image), h("figcaption", {}, name));
  }

  const refresh = page.refresher(load);
  const refreshMine = (/** @type {EventView} */ event) => state.isMine(event) && refresh("files");
  return {
    card: section,
    shows: ["trial"],
    load,
    draw,
    on: { trial: refreshMine, attempt: refreshMine, metrics: refreshMine },
  };
}

/**
 * @param {{href: string, name: string, cells: string[]}} row
 * @returns {HTMLElement}
 */
function fileRow({ href, name, cells: [size, note] }) {
  const link = h("a", { href, download: "" }, name);
  return h("tr", {}, h("th", { scope: "row" }, link), h("td", { class: "num" }, size), h("td", {}, note));
}
