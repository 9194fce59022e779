// Builds elements without parsing HTML, so everything that a user named, reported or logged becomes text.

/** @typedef {Node | string | number | boolean | null | undefined} Child what an element may get; null and false are left out */

/** @typedef {Child | any[]} Children one of them, or a list */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `h("a", {class: "x", href: "/"}, "text", node)`. `on…` are listeners, null and false are left out.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [props]
 * @param {...Children} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/**
 * The same for an element inside of an SVG, or an SVG itself.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [props]
 * @param {...Children} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/**
 * @template {Element} Made
 * @param {Made} node
 * @param {Record<string, any>} props
 * @param {Children[]} children
 * @returns {Made}
 */
function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  const kept = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  node.append(.../** @type {Node[]} */ (kept));
  return node;
}

/**
 * A one-path icon in a box from -1 to 1.
 * @param {string} path
 * @param {string} [name] class
 * @returns {SVGSVGElement}
 */
export function icon(path, name = "icon") {
  return svg("svg", { viewBox: "-1.25 -1.25 2.5 2.5", class: name, "aria-hidden": "true" }, svg("path", { d: path }));
}

/**
 * Set text only when it differs, so that a live page does not disturb a selection.
 * @template {Node} Changed
 * @param {Changed} node
 * @param {unknown} text
 * @returns {Changed}
 */
export function setText(node, text) {
  const next = String(text);
  if (node.textContent !== next) node.textContent = next;
  return node;
}

/**
 * Set the tooltip only when it differs.
 * @param {HTMLElement} node
 * @param {string} text
 */
export function setTitle(node, text) {
  if (node.title !== text) node.title = text;
}

/**
 * The element of the page's template with this id. Throws if there is none, or if it is of another kind.
 * @overload
 * @param {string} id
 * @returns {HTMLElement}
 */
/**
 * @template {HTMLElement} Kind
 * @overload
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 */
/**
 * @param {string} id
 * @param {new () => HTMLElement} [kind]
 * @returns {HTMLElement}
 */
export function byId(id, kind = HTMLElement) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

/** @typedef {Element | {node: Element}} Kept an element, or one with those of its parts that change later, by name */

const keptOf = new WeakMap(); // parent → key → what was created, of the parents that `keyed` fills

/**
 * Make `parent` hold one node per item, in order. Nodes are reused by key, so focus, hover and scrolling survive.
 * `update` gets what `create` has returned for the key.
 * @template Item
 * @template {Kept} Created
 * @param {Element} parent
 * @param {Item[]} items
 * @param {(item: Item) => unknown} keyOf
 * @param {(item: Item) => Created} create
 * @param {(created: Created, item: Item) => unknown} [update]
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = keptOf.get(parent) ?? new Map();
  const after = new Map();
  let cursor = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    const created = before.get(key) ?? create(item);
    update?.(created, item);
    after.set(key, created);
    const node = "node" in created ? created.node : created;
    if (node === cursor) cursor = node.nextSibling;
    else parent.insertBefore(node, cursor);
  }
  while (cursor) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
  keptOf.set(parent, after);
}
