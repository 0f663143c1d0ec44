// Elements. In: names, texts, attributes. Out: elements of the page. Never: text as markup.

export const $ = (id) => document.getElementById(id);

/** An element with a text, a class, attributes and children. */
export function element(name, { text, className, children = [], ...attributes } = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** The same for a drawing. */
export function svg(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function button(text, className, action) {
  const made = element("button", { text, className, type: "button" });
  made.addEventListener("click", action);
  return made;
}

/** Writes a text only if it is another one: a screen reader says what changes. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes these the children, without touching them if they are already: the focus stays where it is. */
export function setChildren(parent, children) {
  const same = children.length === parent.children.length && children.every((child, i) => child === parent.children[i]);
  if (!same) parent.replaceChildren(...children);
}

/** Elements by key, used again while their keys are there. */
export function keyed(parent, items, keyOf, make, fill) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  setChildren(parent, items.map((item) => {
    const key = keyOf(item);
    const child = known.get(key) ?? make(item);
    child.dataset.key = key;
    fill(child, item);
    return child;
  }));
}
