// Pieces that several pages have: tables, sentences, names that lead to their explanation.

import { h } from "./dom.js";
import { brief, count, plural } from "./words.js";

export const STATES = {
  "in use": "use", idle: "idle", booting: "boot", held: "held", "powering down": "leaving",
  down: "down", drained: "down", "no machine": "down", "unknown to Slurm": "down", "powered down": "off",
};
export const kindOf = (state) => STATES[state] ?? "unknown";

export function why(subject, label = subject, name = "") {
  return h("a", { href: `#/explain/${encodeURIComponent(subject)}`, class: "name", title: name || undefined }, label);
}

// Sentences, worst first; each has its level as a word, as colour alone tells nobody.
const LEVELS = { loud: "Act now", bad: "Broken", warn: "Look", note: "Note" };

export function told(sentences) {
  return h("ul", { class: "sentences" }, sentences.map((one) =>
    h("li", { class: `told ${one.level}` }, h("b", {}, LEVELS[one.level]), h("div", {}, h("p", {}, one.text), remedy(one)))));
}

// Why, below these sentences: what they tell of a cloud or a pool is only named.
export function because(row, sentences) {
  const told = /^(cloud|pool):/.test(row.cause) && sentences.some((one) => one.cause === row.cause);
  return told ? `${row.cause.replace(":", " ")}, see above` : row.reason;
}

// What to do, unless the sentence has it already; doctor knows the rest.
function remedy({ level, text, advice: told }) {
  if (told) return h("p", { class: "do" }, `do: ${told}`);
  const asks = (level === "loud" || level === "bad") && !text.includes("do: ");
  return asks ? h("p", { class: "do" }, h("a", { href: "#/doctor" }, "What to do, says doctor")) : "";
}

const WAITING = 10;
const all = new Set();

// The jobs that wait, longest first. `again` draws the page anew.
export function waiting(queue, again) {
  if (!queue) return h("p", { class: "quiet" }, "Not known: Slurm does not answer.");
  const { jobs = [] } = queue;
  if (!jobs.length) return h("p", { class: "quiet" }, "No job waits.");
  const shown = all.has("waiting") ? jobs : jobs.slice(0, WAITING);
  const found = jobs.reduce((sum, one) => sum + one.tasks, 0);
  return [
    table(`${plural(queue.waiting, "job waits", "jobs wait")}${found < queue.waiting ? `, of which ${count(found)} are listed` : ""}${jobs.length > 1 ? ", the longest first" : ""}`,
      [["Job", ""], ["Why it waits", "list"], ["Waits", "number"], ["User", "list"], ["Wants", ""], ["Partition", ""]],
      shown.map((one) => [[why(String(one.label || one.id)), one.tasks > 1 ? ` (${count(one.tasks)} tasks)` : "", one.name ? ` ${one.name}` : ""],
        one.stuck ? one.reason_text : one.pool_reason || one.reason_text || one.reason, one.age_s === null ? "" : brief(one.age_s), [one.user, one.account].filter(Boolean).join(", "),
        `${plural(one.nodes, "node")}, ${plural(one.cpus, "CPU")}`, one.partitions.join(", ")]), "waiting"),
    shown.length < jobs.length ? h("p", {}, h("button", { type: "button", on: { click: () => {
      all.add("waiting");
      again();
    } } }, `Show all ${count(jobs.length)}`)) : "",
  ];
}

// columns: [heading, class]; rows: lists of cells. A table that is too wide scrolls by itself; on a
// phone each row is a card, whose cells have their headings before them (the roles say that all the
// same it is a table).
export function table(caption, columns, rows, key = caption) {
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption, "data-key": key },
    h("table", { role: "table" }, h("caption", {}, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([name, kind]) =>
        h("th", { scope: "col", role: "columnheader", class: kind }, name)))),
      h("tbody", { role: "rowgroup" }, rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, i) =>
        i === 0 ? h("th", { scope: "row", role: "rowheader", class: columns[i][1] }, cell)
          : h("td", { role: "cell", class: columns[i][1], "data-label": columns[i][0] }, cell)))))));
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
  if (!entries.length) entries.push(["unknown", total]);
  return h("span", { class: "states", "data-key": key }, entries.map(([state, number]) =>
    h("span", { class: "state" }, h("i", { class: `swatch ${kindOf(state)}` }), `${count(number)} ${state}`)));
}
