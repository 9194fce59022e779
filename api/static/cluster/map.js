// The cluster as a map: each device is a bar of its MiB, filled by the gangs that hold it. Above it, a summary in words.

import { byId, h, keyed, setText } from "../elements/dom.js";
import { mibWords, plural } from "../format.js";
import { gangColour, linked } from "./links.js";

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
  return `${plural(cluster.devices.length, "device")} on ${plural(nodes.length, "node")} · ${mibWords(reserved)} of ${mibWords(capacity)} reserved (${share} %) · ${plural(cluster.gangs.length, "gang")}`;
}

/**
 * @param {ClusterNode} node
 * @returns {HTMLElement}
 */
function createNode(node) {
  return h(
    "section",
    { class: "card node", "aria-label": `Node ${node.name}` },
    h("header", {}, h("h2", {}, node.name), h("span", { class: "aside" })),
    h("div", { class: "devices" }),
  );
}

/**
 * @param {any} element
 * @param {ClusterNode} node
 */
function updateNode(element, node) {
  setText(element.querySelector(".aside"), plural(node.devices.length, "device"));
  keyed(element.lastChild, node.devices, (device) => device.id, createDevice, updateDevice);
}

/** @returns {HTMLElement} */
function createDevice() {
  return h("div", { class: "device" }, h("div", { class: "line" }, h("span"), h("span")), h("div", { class: "bar" }));
}

/**
 * @param {any} element
 * @param {DeviceView} device
 */
function updateDevice(element, device) {
  const [line, bar] = element.children;
  setText(line.firstChild, `${device.index} · ${device.kind}`);
  line.firstChild.title = device.id;
  const free = `${mibWords(device.free_mib)} free of ${mibWords(device.capacity_mib)}`;
  setText(line.lastChild, device.closed ? `${free} · closed: ${device.closed}` : free);
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", `Device ${device.index}: ${device.free_mib} of ${device.capacity_mib} MiB free`);
  keyed(
    bar,
    device.gangs,
    (gang) => gang.key,
    createGang,
    (part, gang) => updateGang(part, gang, device),
  );
}

/**
 * @param {GangView} gang
 * @returns {HTMLAnchorElement}
 */
function createGang(gang) {
  const part = h(
    "a",
    { class: `gang ${gangColour(gang)}`, href: `/studies/${gang.study_id}/trials/${gang.number}` },
    h("b"),
    h("span"),
  );
  return linked(part, gang);
}

/**
 * @param {any} part
 * @param {GangView} gang
 * @param {DeviceView} device
 */
function updateGang(part, gang, device) {
  const ranks = gang.devices.length;
  const rank = gang.devices.indexOf(device.id);
  const reserved = gang.mibs[rank];
  part.style.width = `${(100 * reserved) / device.capacity_mib}%`;
  part.classList.toggle("stopping", gang.state === "STOPPING");
  setText(part.firstChild, `#${gang.number}`);
  setText(part.lastChild, ranks > 1 ? `${reserved} · r${rank}` : `${reserved}`);
  part.title = `Trial ${gang.number} of ${gang.study_name}: ${mibWords(reserved)}${ranks > 1 ? `, rank ${rank} of ${ranks}` : ""}`;
  part.setAttribute("aria-label", part.title);
}
