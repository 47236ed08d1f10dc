// What accounts, users, jobs cost: all parts sum to the charge, to the micro-dollar.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { clock, count, day, micro } from "./words.js";

export const ofStatus = false;
const KEYS = ["account", "user", "job", "partition", "pool", "market", "cloud", "day"];
const SPANS = { "": "this month (UTC)", "1d": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days", "90d": "the last 90 days" };
const FIRST = 30;

const state = { key: "", found: undefined, error: "", lost: false, asking: 0, rows: FIRST };

export function render(shell, [by = "account", since = ""], arrived) {
  const wanted = { by: KEYS.includes(by) ? by : "account", since: since in SPANS ? since : "" };
  const key = `${wanted.by} ${wanted.since}`;
  if (key !== state.key) Object.assign(state, { key, found: undefined, error: "", rows: FIRST });
  if (arrived || (!state.found && (!state.error || state.lost) && !state.asking)) read(shell, wanted);
  draw(shell, wanted);
}

async function read(shell, wanted) {
  const number = ++state.asking;
  try {
    const found = JSON.parse(await shell.ask("cost", wanted));
    if (number !== state.asking) return;
    Object.assign(state, { found, error: "" });
  } catch (error) {
    if (number !== state.asking) return;
    Object.assign(state, { error: error.message, lost: error.lost });
  }
  state.asking = 0;
  if (location.hash.startsWith("#/cost")) draw(shell, wanted);
}

function draw(shell, wanted) {
  const { found, error } = state;
  const move = (change) => {
    const next = { ...wanted, ...change };
    shell.go("cost", next.by, ...(next.since ? [next.since] : []));
  };
  shell.show(h("h1", {}, `Cost by ${wanted.by}`),
    h("p", { class: "controls" },
      h("label", {}, "By ", h("select", { value: wanted.by, on: { change: (_, box) => move({ by: box.value }) } },
        KEYS.map((key) => h("option", { value: key }, key)))),
      h("label", {}, "Of ", h("select", { value: wanted.since, on: { change: (_, box) => move({ since: box.value }) } },
        Object.entries(SPANS).map(([key, name]) => h("option", { value: key }, name))))),
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? costs(shell, found, wanted) : error ? "" : h("p", { class: "quiet" }, "Summing ..."));
}

function costs(shell, found, wanted) {
  const most = Math.max(1, ...found.lines.map((line) => line.micro_dollars));
  const whole = found.micro_dollars;
  const shown = found.lines.slice(0, state.rows);
  const rest = found.lines.slice(state.rows).reduce((sum, line) => sum + line.micro_dollars, 0);
  return [
    h("p", { class: "lead" }, h("strong", {}, micro(whole)), found.own_jobs_only ? " is your own jobs' part" : " in all",
      ` of ${count(found.machines)} machines, ${day(found.since)} ${clock(found.since, false)} to ${day(found.until)} ${clock(found.until, false)}`),
    found.problems.length ? h("ul", { class: "sentences" }, found.problems.map((text) =>
      h("li", { class: "told bad" }, h("b", {}, "Wrong sum"), h("span", {}, text))))
      : h("p", { class: "quiet" }, `Checked: parts sum to the charge in each of ${count(found.pieces_checked)} pieces (at most an hour each).`),
    found.lines.length ? table(`Dollars by ${wanted.by}`, [[wanted.by, ""], ["Dollars", "number"], ["Share", "number"], ["Of the dearest", "bar"]],
      shown.map((line) => [line.unused ? h("i", {}, `unused: ${line.key}`) : line.key, micro(line.micro_dollars),
        whole ? `${(100 * line.micro_dollars / whole).toFixed(1)} %` : "", bar(line, most)]))
      : h("p", { class: "quiet" }, "Nothing was paid in that time."),
    rest ? h("p", {}, h("button", { type: "button", on: { click: () => {
      state.rows = found.lines.length;
      draw(shell, wanted);
    } } }, `Show ${count(found.lines.length - shown.length)} more, ${micro(rest)} together`)) : "",
    found.lines.some((line) => line.unused || line.unused_micro_dollars)
      ? h("p", { class: "quiet of-bars" }, "Grey: paid, and used by nobody (boot, idle, drain, ending).") : "",
  ];
}

function bar(line, most) {
  const part = (amount) => Math.max(0, 100 * amount / most);
  const unused = line.unused ? line.micro_dollars : line.unused_micro_dollars ?? 0;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.append(rect(0, part(line.micro_dollars - unused), "used"), rect(part(line.micro_dollars - unused), part(unused), "unused"));
  return svg;
}

function rect(x, width, kind) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x: x.toFixed(2), width: width.toFixed(2), height: 10, class: kind })) made.setAttribute(name, value);
  return made;
}
