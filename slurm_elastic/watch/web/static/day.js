// The last hours or days: machines, dollars an hour and jobs, as charts and as a table.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { clock, count, date, dollars } from "./words.js";

export const ofStatus = false;
const FRESH = 60000;
const SPANS = { "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "30d": "30 days" };
const DAY = 86400;
const state = { span: "", found: undefined, error: "", asking: 0, at: 0 };

export function render(shell, [wanted = "24h"]) {
  const span = wanted in SPANS ? wanted : "24h";
  if (span !== state.span) Object.assign(state, { span, found: undefined, error: "", asking: 0, at: 0 });
  if (!state.asking && Date.now() - state.at > FRESH) read(shell, span);
  draw(shell);
}

async function read(shell, span) {
  state.asking = 1;
  let answer;
  try {
    answer = { found: JSON.parse(await shell.ask("day", { span })), error: "" };
  } catch (error) {
    answer = { error: error.message };
  }
  if (span !== state.span) return;
  Object.assign(state, answer, { asking: 0, at: Date.now() });
  if (location.hash.startsWith("#/day")) draw(shell);
}

function draw(shell) {
  const { span, found, error } = state;
  shell.show(h("h1", {}, `The last ${SPANS[span]}`),
    h("p", { class: "controls" }, h("label", {}, "Show the last ", h("select", { value: span, on: { change: (_, box) => shell.go("day", box.value) } },
      Object.entries(SPANS).map(([key, name]) => h("option", { value: key }, name))))),
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? charts(found) : error ? "" : h("p", { class: "quiet" }, "Reading the day ..."));
}

function charts(day) {
  const times = Array.from({ length: day.points }, (_, i) => day.begin + i * day.step_s);
  const markets = Object.keys(day.machines);
  const machines = markets.map((market) => ({ name: market, values: day.machines[market], colour: market }));
  const money = markets.map((market) => ({ name: market, values: day.dollars[market], colour: market }));
  const jobs = [{ name: "running on our nodes", values: day.running, colour: "use" }];
  if (day.waiting) jobs.push({ name: "still waiting", values: day.waiting, colour: "held" });
  return [
    day.private.length ? h("p", { class: "quiet" }, `PrivateData=${day.private.join(",")}: only your own jobs' part is shown`) : "",
    h("div", { class: "charts" },
      chart("Machines paid", times, machines, count, day.peaks.machines),
      chart("Dollars an hour", times, money, (value) => `$${dollars(value)}`, day.peaks.dollars),
      chart("Jobs", times, jobs, count, day.peaks.running, "running "),
      chart("Machines booting", times, [{ name: "booting", values: day.booting, colour: "boot" }], count)),
    day.waiting ? h("p", { class: "quiet" }, "Still waiting: the jobs that wait now, from their submission on.") : "",
    hours(day, times, markets),
  ];
}

// Areas on top of each other, so that none covers another.
function chart(title, times, series, told, most, what = "") {
  const now = (what ? series.slice(0, 1) : series).reduce((sum, one) => sum + one.values.at(-1), 0);
  const long = times.at(-1) - times[0] > DAY;
  return h("figure", { "data-key": title },
    h("figcaption", {}, h("b", {}, title), h("span", { class: "quiet" },
      ` ${told(now)} ${what}now`, most ? `, at most ${told(most.value)}${most.at ? ` at ${long ? `${date(most.at)} ` : ""}${clock(most.at, false)}` : ""}` : "")),
    h("ul", { class: "legend" }, series.map((one) => h("li", {}, h("i", { class: `area ${one.colour}` }),
      `${one.name} ${told(one.values.at(-1))}`))),
    h("div", { class: "chart", "aria-hidden": "true", drawn: (place) => plot(place, times, series, told) }));
}

function plot(place, times, series, told) {
  const width = place.clientWidth, style = getComputedStyle(place);
  const look = `${width} ${style.getPropertyValue("--ink")} ${series.length}`;
  const sums = [];
  for (const one of series) sums.push(one.values.map((value, i) => value + (sums.at(-1)?.[i] ?? 0)));
  const data = [times, ...sums.reverse()], long = times.at(-1) - times[0] > DAY;
  if (place.$look === look) {
    if (place.$times !== times[0] || place.$told !== JSON.stringify(data.slice(1))) place.$plot.setData(data);
  } else {
    place.$plot?.destroy();
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, DejaVu Sans, sans-serif" };
    const stepped = uPlot.paths.stepped({ align: 1 });
    place.$plot = new uPlot({
      width, height: 170, legend: { show: false }, cursor: { points: { show: false }, y: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-4)] } },
      axes: [{ ...axis, values: (_, splits) => splits.map((at) => long ? date(at) : clock(at, false)), space: 60, size: 30,
        incrs: long ? [DAY, 2 * DAY, 7 * DAY] : [900, 3600, 7200, 3 * 3600, 6 * 3600] },
        { ...axis, size: 62, values: (_, splits) => splits.map((value) => Number.isInteger(value) || told !== count ? told(value) : "") }],
      series: [{}, ...[...series].reverse().map((one) => ({
        label: one.name, stroke: colour("sheet"), fill: colour(one.colour), width: 1, paths: stepped, points: { show: false },
      }))],
    }, data, place);
  }
  Object.assign(place, { $look: look, $times: times[0], $told: JSON.stringify(data.slice(1)) });
}

function hours(day, times, markets) {
  const long = day.at - day.begin > DAY, each = Math.round((long ? DAY : 3600) / day.step_s);
  const rows = [];
  for (let i = day.points - 1; i >= 0; i -= each) {
    const of = (values) => values.slice(i, i + each);
    const most = (values) => count(Math.max(...of(values)));
    const mean = (values) => of(values).reduce((sum, value) => sum + value, 0) / of(values).length;
    rows.push([i === day.points - 1 ? "now" : `${long ? `${date(times[i])} ` : ""}${clock(times[i], false)}`, ...markets.map((market) => most(day.machines[market])),
      `$${dollars(markets.reduce((sum, market) => sum + mean(day.dollars[market]), 0))}`, most(day.booting),
      most(day.running), day.waiting ? most(day.waiting) : "-"]);
  }
  return h("details", {}, h("summary", {}, `${long ? "Day by day" : "Hour by hour"}, as a table`), table(`Each ${long ? "24 hours" : "hour"}, the newest first: the most at once in it, dollars in the mean`,
    [["From", ""], ...markets.map((market) => [market, "number"]), ["$/h", "number"], ["Booting", "number"], ["Running", "number"],
      ["Still waiting", "number"]], rows));
}
