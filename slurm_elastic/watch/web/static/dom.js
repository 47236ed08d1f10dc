// Elements from values, and the page's change from one reading to the next: what stays the same is
// not touched, so that focus, selection, scroll and open parts survive.

import { localised } from "./words.js";

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

// Words of users and clouds rule no page: control characters and those that turn the direction of
// what follows are shown by their numbers.
export function visible(text) {
  return String(text).replace(CONTROL, (c) => {
    const code = c.charCodeAt(0).toString(16);
    return code.length < 3 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

// h("td", {class: "number"}, text, ...): text is text, never markup. `on` has handlers by event,
// `drawn` is called with the element once it is on the page, and again after each change.
export function h(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "on" || name === "drawn" || name === "value") made[`$${name}`] = value;
    else made.setAttribute(name, value === true ? "" : visible(value));
  }
  add(made, children);
  if (made.$value !== undefined) made.value = made.$value;  // a choice is one of the children
  return made;
}

function add(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    parent.append(child instanceof Node ? child : visible(localised(String(child))));
  }
}

// Make `place` have these children, by changing those that it has.
export function show(place, ...children) {
  const wanted = document.createElement("div");
  add(wanted, children);
  patchChildren(place, wanted);
  draw(place);
}

export function draw(place) {
  for (const one of place.querySelectorAll("canvas, .chart")) one.$drawn?.(one);
}

function patchChildren(old, wanted) {
  const next = [...wanted.childNodes];
  next.forEach((node, i) => {
    const before = old.childNodes[i];
    if (!before) old.append(node);
    else if (alike(before, node)) patch(before, node);
    else old.replaceChild(node, before);
  });
  while (old.childNodes.length > next.length) old.lastChild.remove();
}

function alike(a, b) {
  return a.nodeName === b.nodeName && a.dataset?.key === b.dataset?.key;
}

function patch(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  old.$on = wanted.$on;
  old.$drawn = wanted.$drawn;
  const owns = old.nodeName === "CANVAS" ? ["width", "height", "style"] : ["open"];
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !owns.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !(owns.includes(name) && name !== "open")) old.setAttribute(name, value);
  }
  if (old.nodeName === "CANVAS" || old.classList.contains("chart")) return;
  patchChildren(old, wanted);
  if (wanted.$value !== undefined && old !== document.activeElement) old.value = wanted.$value;
}

// One listener a kind of event for the whole page: handlers are properties of elements.
export function listen(root, ...kinds) {
  for (const kind of kinds) {
    root.addEventListener(kind, (event) => {
      for (let at = event.target; at && at !== root.parentNode; at = at.parentNode) {
        const handler = at.$on?.[kind];
        if (handler) return handler(event, at);
      }
    });
  }
}
