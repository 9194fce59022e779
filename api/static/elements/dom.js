// Builds elements without parsing HTML, so everything that a user named, reported or logged becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("a", {class: "x", href: "/"}, "text", node)`. `on…` are listeners, null and false are left out. */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** The same for an element inside of an SVG, or an SVG itself. */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A one-path icon in a box from -1 to 1. */
export function icon(path, name = "icon") {
  return svg("svg", { viewBox: "-1.25 -1.25 2.5 2.5", class: name, "aria-hidden": "true" }, svg("path", { d: path }));
}

/** Set text only when it differs, so that a live page does not disturb a selection. */
export function setText(node, text) {
  const next = String(text);
  if (node.textContent !== next) node.textContent = next;
  return node;
}

/** Set the tooltip only when it differs. */
export function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}

export function byId(id) {
  return document.getElementById(id);
}

const nodesOf = new WeakMap(); // parent → key → node, of the parents that `keyed` fills

/** Make `parent` hold one node per item, in order. Nodes are reused by key, so focus, hover and scrolling survive. */
export function keyed(parent, items, keyOf, create, update) {
  const before = nodesOf.get(parent) ?? new Map();
  const after = new Map();
  let cursor = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const node = before.get(key) ?? create(item);
    update?.(node, item);
    after.set(key, node);
    if (node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(node, cursor);
  }
  while (cursor) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
  nodesOf.set(parent, after);
}
