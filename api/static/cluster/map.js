// The cluster as a map: each device is a bar of its MiB, filled by the gangs that hold it. Above it, a summary in words.

import { byId, h, keyed, setText, setTitle } from "../elements/dom.js";
import { mibWords, plural } from "../format.js";
import { gangColour, HIDDEN, linked } from "./links.js";

/** @import { ClusterView, DeviceView, GangView } from "../answers.d.ts" */
/** @import { Panel } from "../page.js" */
/** @import { ClusterContext } from "./links.js" */

/** @typedef {{name: string, devices: DeviceView[]}} ClusterNode */

/**
 * @param {ClusterContext} context
 * @returns {Panel}
 */
export function mapPanel({ state }) {
  return {
    shows: ["cluster"],
    draw() {
      const { cluster } = state;
      const nodes = byNode(cluster.devices);
      setText(byId("summary"), summaryWords(cluster, nodes));
      setText(
        byId("speed"),
        cluster.speed ? `Step times are predicted from the speed of these devices: ${cluster.speed}.` : "",
      );
      keyed(byId("nodes"), nodes, (node) => node.name, createNode, updateNode);
    },
  };
}

/**
 * Devices by node: [{name, devices}].
 * @param {DeviceView[]} devices
 * @returns {ClusterNode[]}
 */
export function byNode(devices) {
  const nodes = new Map();
  for (const device of devices) {
    if (!nodes.has(device.node)) nodes.set(device.node, { name: device.node, devices: [] });
    nodes.get(device.node).devices.push(device);
  }
  return [...nodes.values()];
}

/**
 * Devices, reserved memory and gangs of the cluster.
 * @param {ClusterView} cluster
 * @param {ClusterNode[]} nodes
 * @returns {string}
 */
export function summaryWords(cluster, nodes) {
  if (!cluster.devices.length)
    return cluster.status === "ready"
      ? "The cluster has no devices. Add a node with a GPU, or set SCAMP_VIRTUAL_DEVICES."
      : "The cluster is starting. Its devices appear here when they are ready.";
  const capacity = cluster.devices.reduce((sum, device) => sum + device.capacity_mib, 0);
  const reserved = capacity - cluster.devices.reduce((sum, device) => sum + device.free_mib, 0);
  const share = Math.round((100 * reserved) / capacity);
  return [
    `${plural(cluster.devices.length, "device")} on ${plural(nodes.length, "node")}`,
    `${mibWords(reserved)} of ${mibWords(capacity)} reserved (${share} %)`,
    plural(cluster.gangs.length, "gang"),
  ].join(" · ");
}

/** @param {ClusterNode} node */
function createNode(node) {
  const [beside, devices] = [h("span", { class: "aside" }), h("div", { class: "devices" })];
  const props = { class: "card node", "aria-label": `Node ${node.name}` };
  return { node: h("section", props, h("header", {}, h("h2", {}, node.name), beside), devices), beside, devices };
}

/**
 * @param {ReturnType<typeof createNode>} section
 * @param {ClusterNode} node
 */
function updateNode(section, node) {
  setText(section.beside, plural(node.devices.length, "device"));
  keyed(section.devices, node.devices, (device) => device.id, createDevice, updateDevice);
}

function createDevice() {
  const [name, free, bar] = [h("span"), h("span"), h("div", { class: "bar", role: "group" })];
  return { node: h("div", { class: "device" }, h("div", { class: "line" }, name, free), bar), name, free, bar };
}

/**
 * @param {ReturnType<typeof createDevice>} line
 * @param {DeviceView} device
 */
function updateDevice({ name, free, bar }, device) {
  setText(name, `${device.index} · ${device.kind}`);
  setTitle(name, device.id);
  const words = `${mibWords(device.free_mib)} free of ${mibWords(device.capacity_mib)}`;
  setText(free, device.closed ? `${words} · closed: ${device.closed}` : words);
  bar.setAttribute("aria-label", `Device ${device.index}: ${device.free_mib} of ${device.capacity_mib} MiB free`);
  keyed(
    bar,
    device.gangs,
    (gang) => gang.key,
    createGang,
    (part, gang) => updateGang(part, gang, device),
  );
}

/** @param {GangView} gang */
function createGang(gang) {
  const shown = gang.study_id > 0;
  const [name, reserved] = [h("b", {}, shown ? `S${gang.study_id} #${gang.number}` : "–"), h("span")];
  const href = shown ? `/studies/${gang.study_id}/trials/${gang.number}` : null;
  return { node: linked(h("a", { class: `gang ${gangColour(gang)}`, href }, name, reserved), gang), reserved };
}

/**
 * @param {ReturnType<typeof createGang>} part
 * @param {GangView} gang
 * @param {DeviceView} device
 */
function updateGang({ node, reserved }, gang, device) {
  const ranks = gang.devices.length;
  const rank = gang.devices.indexOf(device.id);
  const mib = gang.mibs[rank];
  node.style.width = `${(100 * mib) / Math.max(device.capacity_mib, device.reserved_mib)}%`;
  node.classList.toggle("stopping", ["WITHDRAWN", "STOPPING"].includes(gang.state));
  setText(reserved, ranks > 1 ? `${mib} · r${rank}` : `${mib}`);
  const trial = gang.study_id ? `Trial ${gang.number} of study ${gang.study_id}, ${gang.study_name}` : HIDDEN;
  const words = [`${trial}: ${mibWords(mib)}`];
  if (ranks > 1) words.push(`rank ${rank} of ${ranks}`);
  setTitle(node, words.join(", "));
}
