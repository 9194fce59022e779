// The cluster as a map: each device is a bar of its MiB, filled by the gangs that hold it. Tables of gangs and of
// waiting trials follow below.

import * as api from "./client.js";
import { byId, coalesced, h, keyed, setText } from "./dom.js";
import { count, dateTime, mibWords, plural } from "./format.js";
import { follow, guarded, refresher, watchCluster } from "./live.js";
import { setState } from "./states.js";

const NUM_COLOURS = 10; // --g0 … --g9 in style.css
let cluster = null;
const draw = coalesced(drawNow);

function drawNow() {
  if (!cluster) return;
  const nodes = byNode(cluster.devices);
  setText(byId("summary"), summary(nodes));
  setText(byId("speed"), cluster.speed ? `Step times are predicted from the speed of these devices: ${cluster.speed}.` : "");
  keyed(byId("nodes"), nodes, (node) => node.name, createNode, updateNode);
  drawGangs();
  drawWaiting();
  drawController();
}

function byNode(devices) {
  const nodes = new Map();
  for (const device of devices) {
    if (!nodes.has(device.node)) nodes.set(device.node, { name: device.node, devices: [] });
    nodes.get(device.node).devices.push(device);
  }
  return [...nodes.values()];
}

function summary(nodes) {
  if (!cluster.devices.length) return cluster.status === "ready" ? "The cluster has no devices. Add a node with a GPU, or set SCAMP_VIRTUAL_DEVICES." : "The cluster is starting. Its devices appear here when they are ready.";
  const capacity = cluster.devices.reduce((sum, device) => sum + device.capacity_mib, 0);
  const reserved = capacity - cluster.devices.reduce((sum, device) => sum + device.free_mib, 0);
  const share = Math.round((100 * reserved) / capacity);
  return `${plural(cluster.devices.length, "device")} on ${plural(nodes.length, "node")} · ${mibWords(reserved)} of ${mibWords(capacity)} reserved (${share} %) · ${plural(cluster.gangs.length, "gang")}`;
}

// --- the map -------------------------------------------------------------------------------------------------------

function createNode(node) {
  return h("section", { class: "card node", "aria-label": `Node ${node.name}` }, h("header", {}, h("h2", {}, node.name), h("span", { class: "aside" })), h("div", { class: "devices" }));
}

function updateNode(element, node) {
  setText(element.querySelector(".aside"), plural(node.devices.length, "device"));
  keyed(element.lastChild, node.devices, (device) => device.id, createDevice, updateDevice);
}

function createDevice() {
  return h("div", { class: "device" }, h("div", { class: "line" }, h("span"), h("span")), h("div", { class: "bar" }));
}

function updateDevice(element, device) {
  const [line, bar] = element.children;
  setText(line.firstChild, `${device.index} · ${device.kind}`);
  line.firstChild.title = device.id;
  const free = `${mibWords(device.free_mib)} free of ${mibWords(device.capacity_mib)}`;
  setText(line.lastChild, device.closed ? `${free} · closed: ${device.closed}` : free);
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", `Device ${device.index}: ${device.free_mib} of ${device.capacity_mib} MiB free`);
  keyed(bar, device.gangs, (gang) => gang.key, createGang, (part, gang) => updateGang(part, gang, device));
}

function createGang(gang) {
  const part = h("a", { class: `gang g${gang.trial_id % NUM_COLOURS}`, href: `/studies/${gang.study_id}/trials/${gang.number}` }, h("b"), h("span"));
  return linked(part, gang);
}

function updateGang(part, gang, device) {
  const ranks = gang.devices.length;
  const rank = gang.devices.indexOf(device.id);
  part.style.width = `${(100 * gang.mib_per_rank) / device.capacity_mib}%`;
  part.classList.toggle("stopping", gang.state === "STOPPING");
  setText(part.firstChild, `#${gang.number}`);
  setText(part.lastChild, ranks > 1 ? `${gang.mib_per_rank} · r${rank}` : `${gang.mib_per_rank}`);
  part.title = `Trial ${gang.number} of ${gang.study_name}: ${mibWords(gang.mib_per_rank)}${ranks > 1 ? `, rank ${rank} of ${ranks}` : ""}`;
  part.setAttribute("aria-label", part.title);
}

/** Make hovering or focusing this part of a gang highlight all its parts, on every device and in the table. */
function linked(element, gang) {
  element.dataset.gang = gang.key;
  const mark = (on) => () => {
    byId("cluster").classList.toggle("linking", on);
    for (const part of document.querySelectorAll("[data-gang]")) part.classList.toggle("linked", on && part.dataset.gang === gang.key);
  };
  element.addEventListener("mouseenter", mark(true));
  element.addEventListener("mouseleave", mark(false));
  element.addEventListener("focusin", mark(true));
  element.addEventListener("focusout", mark(false));
  return element;
}

// --- the tables ----------------------------------------------------------------------------------------------------

function trialLink(item) {
  return h("a", { href: `/studies/${item.study_id}/trials/${item.number}` }, `Trial ${item.number}`);
}

function studyLink(item) {
  return h("a", { href: `/studies/${item.study_id}` }, item.study_name);
}

function drawGangs() {
  setText(byId("gangs-aside"), cluster.gangs.length ? "hover over a gang to highlight its devices" : "");
  keyed(byId("gangs"), cluster.gangs.length ? cluster.gangs : [null], (gang) => gang?.key ?? "none", createGangRow, (row, gang) => gang && setState(row.children[2], gang.state));
}

function createGangRow(gang) {
  if (!gang) return h("tr", {}, h("td", { colspan: 7, class: "muted" }, "No gang is running."));
  const row = h(
    "tr",
    {},
    h("td", {}, h("span", { class: `swatch g${gang.trial_id % NUM_COLOURS}` }), trialLink(gang)),
    h("td", { class: "wrap" }, studyLink(gang)),
    h("td"),
    h("td", { class: "num" }, count(gang.devices.length)),
    h("td", { class: "num" }, count(gang.mib_per_rank)),
    h("td", { class: "wrap" }, gang.devices.join(", ")),
    h("td", { class: "wrap muted" }, gang.placement_reason),
  );
  return linked(row, gang);
}

function drawWaiting() {
  const { waiting, num_waiting: all } = cluster;
  const shown = all > waiting.length ? `the first ${count(waiting.length)} of ` : "";
  setText(byId("waiting-aside"), all ? `${shown}${plural(all, "trial")}` : "");
  keyed(byId("waiting"), waiting.length ? waiting : [null], (item) => item?.trial_id ?? "none", createWaiting, updateWaiting);
}

function createWaiting(item) {
  if (!item) return h("tr", {}, h("td", { colspan: 6, class: "muted" }, "No trial is waiting."));
  return h("tr", {}, h("td", {}, trialLink(item)), h("td", { class: "wrap" }, studyLink(item)), h("td"), h("td", { class: "num" }), h("td", { class: "num" }), h("td", { class: "wrap" }));
}

function updateWaiting(row, item) {
  if (!item) return;
  setState(row.children[2], item.state);
  setText(row.children[3], item.num_ranks ? count(item.num_ranks) : "–");
  setText(row.children[4], item.reserved_mib ? count(item.reserved_mib) : "–");
  setText(row.children[5], item.reason);
}

function drawController() {
  const { controller } = cluster;
  setText(byId("controller-aside"), controller ? `process ${controller.pid} on ${controller.host} ${cluster.controller_alive ? "leads" : "led"} since ${dateTime(controller.since)}` : "none has reported yet");
  const errors = controller?.errors ?? [];
  keyed(byId("errors"), errors.length ? errors : [null], (error) => (error ? `${error.first_at} ${error.study_id} ${error.doing} ${error.error}` : "none"), createError, updateError);
}

function createError(error) {
  if (!error) return h("tr", {}, h("td", { colspan: 4, class: "muted" }, "No error of ScaMP's own code is known."));
  const study = error.study_id === null ? "–" : h("a", { href: `/studies/${error.study_id}` }, `Study ${error.study_id}`);
  return h("tr", {}, h("td"), h("td", { class: "num" }), h("td", {}, study), h("td", { class: "wrap" }, `Could not ${error.doing}: ${error.error}. The next cycle tries again; see the controller's log.`));
}

function updateError(row, error) {
  if (!error) return;
  setText(row.children[0], dateTime(error.last_at));
  setText(row.children[1], count(error.times));
}

function show(snapshot) {
  cluster = snapshot;
  draw();
}

const look = watchCluster(show);
const refresh = refresher(look);
await guarded(async () => show(await api.cluster()));
if (cluster) follow({ after: cluster.last_event_id, handlers: { trial: refresh, attempt: refresh, cluster: refresh, study: refresh } });
else setText(byId("summary"), "The cluster could not be loaded.");
