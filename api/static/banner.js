// The banner of every page: it says why no trial is started now, such as a cluster that is starting, or what is wrong
// with some of its devices.

import * as api from "./client.js";
import { byId, setText } from "./elements/dom.js";
import { duration } from "./format.js";

/** @import { ClusterView } from "./answers.d.ts" */
/** @import { PageState } from "./page_state.js" */

const EVERY_MS = 5000;

/**
 * Fetch the cluster now and regularly, into the page's state if it has one, and say in the banner what is wrong with it.
 * @param {PageState | null} state
 * @returns {void}
 */
export function watchCluster(state) {
  state?.watch((field) => field === "cluster" && showBanner(state.cluster));
  const look = async () => {
    try {
      const cluster = await api.cluster();
      if (state) state.setCluster(cluster);
      else showBanner(cluster);
    } catch {
      // The connection indicator already shows that ScaMP cannot be reached.
    }
  };
  look();
  setInterval(look, EVERY_MS);
}

/** @param {ClusterView} cluster */
function showBanner(cluster) {
  const banner = byId("banner");
  const words = trouble(cluster);
  banner.hidden = !words;
  banner.classList.toggle("down", !cluster.controller_alive || Boolean(cluster.data_directory));
  setText(banner, words);
}

/**
 * Why no trial is started now, what else there is to know about the devices, or an empty string.
 * @param {ClusterView} cluster
 * @returns {string}
 */
export function trouble(cluster) {
  if (cluster.data_directory) return `The data directory ${cluster.data_directory}.`;
  const detail = cluster.detail ? ` ${cluster.detail}` : "";
  if (cluster.controller_alive)
    return cluster.status === "ready"
      ? sentence(cluster.detail)
      : `The cluster is ${cluster.status}. Trials stay queued until its devices are ready.${detail}`;
  const silent = cluster.controller_silent_seconds;
  if (silent === null)
    return "The cluster is starting: no controller has reported yet. If this message stays, run “scamp serve”.";
  return `The controller has been silent for ${duration(silent)}. Running trials continue, but no trial is started or stopped. Run “scamp serve” to restart it.`;
}

/**
 * Words as a sentence.
 * @param {string} words
 * @returns {string}
 */
function sentence(words) {
  return words && `${words[0].toUpperCase()}${words.slice(1)}.`;
}
