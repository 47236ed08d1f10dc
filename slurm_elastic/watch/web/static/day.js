// The last 24 hours: machines, dollars an hour and jobs, as charts and as a table.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { clock, count, dollars } from "./words.js";

export const ofStatus = false;
const FRESH = 60000;
const DASHED = ["boot", "held"];  // beside the others, not of their sum
const state = { found: undefined, error: "", asking: false, at: 0 };

export function render(shell) {
  if (!state.asking && Date.now() - state.at > FRESH) read(shell);
  draw(shell);
}

async function read(shell) {
  state.asking = true;
  try {
    Object.assign(state, { found: JSON.parse(await shell.ask("day")), error: "" });
  } catch (error) {
    state.error = error.message;
  }
  Object.assign(state, { asking: false, at: Date.now() });
  if (location.hash.startsWith("#/day")) draw(shell);
}

function draw(shell) {
  const { found, error } = state;
  shell.show(h("h1", {}, "The last 24 hours"),
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? charts(found) : error ? "" : h("p", { class: "quiet" }, "Reading the day ..."));
}

function charts(day) {
  const times = Array.from({ length: day.points }, (_, i) => day.begin + i * day.step);
  const markets = Object.keys(day.machines);
  const machines = markets.map((market) => ({ name: market, values: day.machines[market], colour: market }));
  const money = markets.map((market) => ({ name: market, values: day.dollars[market], colour: market }));
  const jobs = [{ name: "running on our nodes", values: day.running, colour: "use" }];
  if (day.waiting) jobs.push({ name: "still waiting", values: day.waiting, colour: "held" });
  return [
    day.private.length ? h("p", { class: "quiet" }, `PrivateData=${day.private.join(",")}: only your own jobs' part is shown`) : "",
    h("div", { class: "charts" },
      chart("Machines paid", times, [...machines, { name: "booting", values: day.booting, colour: "boot" }], count, day.most.machines),
      chart("Dollars an hour", times, money, (value) => `$${dollars(value)}`, day.most.dollars),
      chart("Jobs", times, jobs, count, day.most.running)),
    day.waiting ? h("p", { class: "quiet" }, "Still waiting: the jobs that wait now, from their submission on.") : "",
    hours(day, times, markets),
  ];
}

function chart(title, times, series, told, most) {
  const now = series.filter((one) => !DASHED.includes(one.colour)).reduce((sum, one) => sum + one.values.at(-1), 0);
  return h("figure", { "data-key": title },
    h("figcaption", {}, h("b", {}, title), h("span", { class: "quiet" },
      ` ${told(now)} now, at most ${told(most.value)}${most.at ? ` at ${clock(most.at, false)}` : ""}`)),
    h("ul", { class: "legend" }, series.map((one) => h("li", {}, h("i", { class: `line ${one.colour}` }),
      `${one.name} ${told(one.values.at(-1))}`))),
    h("div", { class: "chart", "aria-hidden": "true", drawn: (place) => plot(place, times, series, told) }));
}

function plot(place, times, series, told) {
  const width = place.clientWidth, style = getComputedStyle(place);
  const look = `${width} ${style.getPropertyValue("--ink")} ${series.length}`;
  const data = [times, ...series.map((one) => one.values)];
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
      axes: [{ ...axis, values: (_, splits) => splits.map((at) => clock(at, false)), space: 60, size: 30 },
        { ...axis, size: 62, values: (_, splits) => splits.map((value) => Number.isInteger(value) || told !== count ? told(value) : "") }],
      series: [{}, ...series.map((one) => ({
        label: one.name, stroke: colour(one.colour), width: 2, paths: stepped, points: { show: false },
        dash: DASHED.includes(one.colour) ? [5, 4] : one.colour === "on-demand" ? [9, 3] : undefined,
      }))],
    }, data, place);
  }
  Object.assign(place, { $look: look, $times: times[0], $told: JSON.stringify(data.slice(1)) });
}

function hours(day, times, markets) {
  const each = Math.round(3600 / day.step);
  const rows = [];
  for (let i = day.points - 1; i >= 0; i -= each) {
    const of = (values) => values.slice(i, i + each);
    const most = (values) => count(Math.max(...of(values)));
    const mean = (values) => of(values).reduce((sum, value) => sum + value, 0) / of(values).length;
    rows.push([i === day.points - 1 ? "now" : clock(times[i], false), ...markets.map((market) => most(day.machines[market])),
      `$${dollars(markets.reduce((sum, market) => sum + mean(day.dollars[market]), 0))}`, most(day.booting),
      most(day.running), day.waiting ? most(day.waiting) : "-"]);
  }
  return h("details", {}, h("summary", {}, "Hour by hour, as a table"), table("Each hour, the newest first: the most at once in it, dollars in the mean",
    [["From", ""], ...markets.map((market) => [market, "number"]), ["$/h", "number"], ["Booting", "number"], ["Running", "number"],
      ["Still waiting", "number"]], rows));
}
