// Links to the forms of actions, if this visitor may do them. The forms are pages of the server.

import { h } from "./dom.js";

let known = { user: null, read_only: "", actions: [] };

// Learn which actions the server offers. Without an answer the page shows none.
export async function learn(ask) {
  try {
    known = JSON.parse(await ask("actions"));
  } catch { /* the page itself says that the server does not answer */ }
}

// Whether the server has pages of actions, if only to say why this visitor may not act.
export const hasForms = () => Boolean(known.user || known.read_only);

export function may(name) {
  return known.actions.some((action) => action.name === name && !action.refusal);
}

// act("pause", { scope: "aws" }, "Pause", "cloud aws"): the link, or nothing.
export function act(name, values, label, object) {
  if (!may(name)) return "";
  const query = new URLSearchParams({ do: name, ...values });
  return h("a", { href: `act?${query}`, class: "act", "aria-label": `${label} ${object}` }, label);
}

// The links of one object in a row.
export function acts(...links) {
  const shown = links.filter(Boolean);
  return shown.length ? h("p", { class: "acts" }, shown) : "";
}
