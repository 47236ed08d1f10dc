// What accounts, users, jobs cost: all parts sum to the charge, to the micro-dollar.

import { h } from "./dom.js";
import { budget } from "./now.js";
import { figure, table } from "./parts.js";
import { inCockpit } from "./source.js";
import { clock, count, day, micro, plural, zone } from "./words.js";

export const ofStatus = false;
const KEYS = ["account", "user", "job", "partition", "pool", "market", "cloud", "type", "day"];
const SPANS = { "": "this month (UTC)", "1d": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days", "90d": "the last 90 days" };
const FIRST = 30, DAY = 86400;

const state = { key: "", found: undefined, days: undefined, error: "", lost: false, asking: 0, rows: FIRST };

export function render(shell, [by = "account", since = ""], arrived) {
  const wanted = { by: KEYS.includes(by) ? by : "account", since: since in SPANS ? since : "" };
  const key = `${wanted.by} ${wanted.since}`;
  if (key !== state.key) Object.assign(state, { key, found: undefined, days: undefined, error: "", rows: FIRST });
  if (arrived || (!state.found && (!state.error || state.lost) && !state.asking)) read(shell, wanted);
  draw(shell, wanted);
}

async function read(shell, wanted) {
  const number = ++state.asking;
  try {
    const found = JSON.parse(await shell.ask("cost", wanted));
    if (number !== state.asking) return;
    Object.assign(state, { found, error: "" });
    if (location.hash.startsWith("#/cost")) draw(shell, wanted);
    const days = wanted.by === "day" ? found : JSON.parse(await shell.ask("cost", { ...wanted, by: "day" }));
    if (number !== state.asking) return;
    state.days = days;
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
        Object.entries(SPANS).map(([key, name]) => h("option", { value: key }, name)))),
      inCockpit ? "" : h("a", { href: "report" }, "The month's report")),
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? costs(shell, found, wanted, state.days) : error ? "" : h("p", { class: "quiet" }, "Summing ..."));
}

function costs(shell, found, wanted, days) {
  // Not Math.max(...): a browser takes some 100,000 arguments, and there may be more jobs.
  const most = found.lines.reduce((largest, line) => Math.max(largest, line.micro_dollars), 1);
  const whole = found.micro_dollars;
  const shown = found.lines.slice(0, state.rows);
  const rest = found.lines.slice(state.rows).reduce((sum, line) => sum + line.micro_dollars, 0);
  return [
    h("p", { class: "lead" }, h("strong", {}, micro(whole)), found.own_jobs_only ? " is your own jobs' part" : " in all",
      ` of ${plural(found.machines, "machine")}, ${day(found.since)} ${clock(found.since, false)} to ${day(found.until)} ${clock(found.until, false)} ${zone(found.until)}`),
    found.problems.length ? h("ul", { class: "sentences" }, found.problems.map((text) =>
      h("li", { class: "told bad" }, h("b", {}, "Wrong sum"), h("span", {}, text))))
      : h("p", { class: "quiet" }, `Checked: parts sum to the charge in each of ${count(found.pieces_checked)} pieces (at most an hour each).`),
    h("dl", { class: "figures" }, saving(found), unused(found), (shell.status()?.budgets ?? []).map(budget)),
    days ? trend(days) : "",
    found.lines.length ? table(`Dollars by ${wanted.by}`, [[wanted.by, ""], ["Dollars", "number"], ["Share", "number"], ["Used and unused", "bar"]],
      shown.map((line) => [line.unused ? h("i", {}, `unused: ${line.key}`) : line.key, micro(line.micro_dollars),
        whole ? `${(100 * line.micro_dollars / whole).toFixed(1)} %` : "", bar(line, most)]))
      : h("p", { class: "quiet" }, "Nothing was paid in that time."),
    shown.length < found.lines.length ? h("p", {}, h("button", { type: "button", on: { click: () => {
      state.rows = found.lines.length;
      draw(shell, wanted);
    } } }, `Show ${count(found.lines.length - shown.length)} more, ${micro(rest)} together`)) : "",
    found.lines.some((line) => line.unused || line.unused_micro_dollars)
      ? h("p", { class: "quiet of-bars" }, "Grey in the bars: paid, but used by no job (boot, idle, drain, ending).") : "",
    found.unused_advice ? h("p", { class: "quiet" }, found.unused_advice) : "",
  ];
}

// Against on-demand prices, as far as the clouds told them.
function saving(found) {
  const { on_demand_micro_dollars: dear, micro_dollars: paid } = found;
  if (!dear || dear <= paid) return "";
  return figure("Saved against on demand", `${(100 * (dear - paid) / dear).toFixed(1)} %`, `on demand it would be ${micro(dear)}`);
}

// Paid time that no job used, and the part that the settings always cost: boots, one wait, the end.
function unused(found) {
  const { unused_micro_dollars: part, normal_unused_micro_dollars: normal, micro_dollars: paid } = found;
  if (normal === undefined || !paid) return "";
  const share = (amount) => `${(100 * amount / paid).toFixed(1)} %`;
  return figure("Unused", share(part), `${share(normal)} is normal with these settings`);
}

// Dollars of each day (UTC), also of those without any.
function trend(days) {
  const of = new Map(days.lines.map((line) => [line.key, line]));
  const names = [];
  for (let at = Math.floor(days.since / DAY); at * DAY < days.until; at++) names.push(new Date(at * DAY * 1000).toISOString().slice(0, 10));
  if (names.length < 2 || !days.micro_dollars) return "";
  const dearest = days.lines.reduce((a, b) => (b.micro_dollars > a.micro_dollars ? b : a));
  const parts = names.flatMap((name, i) => {
    const line = of.get(name);
    if (!line) return [];
    const whole = 100 * line.micro_dollars / dearest.micro_dollars, unused = 100 * (line.unused_micro_dollars ?? 0) / dearest.micro_dollars;
    return [rect(10 * i + 1, 100 - whole, 8, whole - unused, "used"), rect(10 * i + 1, 100 - unused, 8, unused, "unused")];
  });
  const told = `at most ${micro(dearest.micro_dollars)} on ${dearest.key}`;
  return h("figure", { "data-key": "trend" }, h("figcaption", {}, h("b", {}, "Dollars a day"), h("span", { class: "quiet" }, ` (UTC) ${told}`)),
    drawn(`0 0 ${10 * names.length} 100`, parts, "trend"),
    h("p", { class: "ends quiet" }, h("span", {}, names[0]), h("span", {}, names.at(-1))));
}

function bar(line, most) {
  const part = (amount) => Math.max(0, 100 * amount / most);
  const unused = line.unused ? line.micro_dollars : line.unused_micro_dollars ?? 0;
  const used = part(line.micro_dollars - unused);
  return drawn("0 0 100 10", [rect(0, 0, used, 10, "used"), rect(used, 0, part(unused), 10, "unused")]);
}

const svg = (tag, properties) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  return made;
};

function drawn(viewBox, parts, kind = "") {
  const made = svg("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": "true", class: kind });
  made.append(...parts);
  return made;
}

const rect = (x, y, width, height, kind) => svg("rect", { x, y: y.toFixed(2), width: width.toFixed(2), height: height.toFixed(2), class: kind });
