// Pieces that several pages have: tables, sentences, names that lead to their explanation.

import { h } from "./dom.js";
import { count } from "./words.js";

export const STATES = {
  "in use": "use", idle: "idle", booting: "boot", held: "held", "powering down": "leaving",
  down: "down", drained: "down", "no machine": "down", "unknown to Slurm": "down", "powered down": "off",
};
export const kindOf = (state) => STATES[state] ?? "down";

export function why(subject, label = subject, name = "") {
  return h("a", { href: `#/explain/${encodeURIComponent(subject)}`, class: "name", title: name || undefined }, label);
}

// Sentences, worst first; each has its level as a word, as colour alone tells nobody.
const LEVELS = { loud: "Act now", bad: "Broken", warn: "Look", note: "Note" };

export function told(sentences) {
  return h("ul", { class: "sentences" }, sentences.map((one) =>
    h("li", { class: `told ${one.level}` }, h("b", {}, LEVELS[one.level]), h("span", {}, one.text))));
}

// columns: [heading, class]; rows: lists of cells. A table that is too wide scrolls by itself.
export function table(caption, columns, rows, key = caption) {
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption, "data-key": key },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([name, kind]) =>
        h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, i) =>
        i === 0 ? h("th", { scope: "row", class: columns[i][1] }, cell)
          : h("td", { class: columns[i][1] }, cell)))))));
}

// A number with the most that it may be; the bar says how near that is.
export function figure(title, value, detail, part) {
  const bar = part === undefined ? "" : h("meter", {
    min: 0, max: 1, high: 0.8, optimum: 0, value: Math.min(1, part), "aria-label": `${title}: part of what is allowed`,
  });
  return h("div", { class: "figure" }, h("dt", {}, title), h("dd", {}, h("strong", {}, value), bar,
    detail ? h("small", {}, detail) : ""));
}

// How many nodes are in which state, as one bar and in words.
export function states(found, total, key) {
  const entries = Object.entries(found);
  if (!entries.length) return h("span", { class: "quiet" }, "states are not known");
  return h("span", { class: "states", "data-key": key }, entries.map(([state, number]) =>
    h("span", { class: "state" }, h("i", { class: `swatch ${kindOf(state)}` }), `${count(number)} ${state}`)));
}
