// The last hours or days: machines, dollars an hour and jobs, as charts and as a table.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { clock, count, date, dollars } from "./words.js";

export const ofStatus = false;
const FRESH = 60000;
const SPANS = { "1h": "hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "30d": "30 days" };
const HOUR = 3600, DAY = 24 * HOUR;
// `span`: as in the address, "" if it names none. `shown`: the span of what is drawn.
const state = { span: undefined, shown: "24h", found: undefined, error: "", asking: 0, at: 0 };

export function render(shell, [wanted = ""]) {
  const span = wanted in SPANS ? wanted : "";
  if (span !== state.span) Object.assign(state, { span, shown: span || "24h", found: undefined, error: "", asking: 0, at: 0 });
  if (!state.asking && Date.now() - state.at > FRESH) read(shell, span);
  draw(shell);
}

async function read(shell, span) {
  state.asking = 1;
  let answer;
  try {
    let shown = span || "24h", found = JSON.parse(await shell.ask("day", { span: shown }));
    if (!span && fitting(found) !== shown) {
      shown = fitting(found);
      found = JSON.parse(await shell.ask("day", { span: shown }));
    }
    answer = { found, shown, error: "" };
  } catch (error) {
    answer = { error: error.message };
  }
  if (span !== state.span) return;
  Object.assign(state, answer, { asking: 0, at: Date.now() });
  if (location.hash.startsWith("#/day")) draw(shell);
}

// The shortest span that has all of the day's machines and jobs, so that a young site fills its charts.
function fitting(day) {
  const series = [...Object.values(day.machines), day.running, day.waiting ?? []];
  const firsts = series.map((values) => values.findIndex((value) => value > 0)).filter((i) => i >= 0);
  const age = firsts.length ? day.at - (day.begin + Math.min(...firsts) * day.step_s) : DAY;
  return age < HOUR ? "1h" : age < 6 * HOUR ? "6h" : "24h";
}

function draw(shell) {
  const { shown, found, error } = state;
  shell.show(h("h1", {}, `The last ${SPANS[shown]}`),
    h("p", { class: "controls" }, h("label", {}, "Show the last ", h("select", { value: shown, on: { change: (_, box) => shell.go("day", box.value) } },
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
        incrs: long ? [DAY, 2 * DAY, 7 * DAY] : [300, 900, 3600, 7200, 3 * 3600, 6 * 3600] },
        { ...axis, size: 62, values: (_, splits) => splits.map((value) => Number.isInteger(value) || told !== count ? told(value) : "") }],
      series: [{}, ...[...series].reverse().map((one) => ({
        label: one.name, stroke: colour("sheet"), fill: colour(one.colour), width: 1, paths: stepped, points: { show: false },
      }))],
    }, data, place);
  }
  Object.assign(place, { $look: look, $times: times[0], $told: JSON.stringify(data.slice(1)) });
}

function hours(day, times, markets) {
  const long = day.at - day.begin > DAY, short = day.at - day.begin <= HOUR;
  const each = Math.round((long ? DAY : short ? HOUR / 6 : HOUR) / day.step_s);
  const rows = [];
  for (let i = day.points - 1; i >= 0; i -= each) {
    const of = (values) => values.slice(i, i + each);
    const most = (values) => count(Math.max(...of(values)));
    const mean = (values) => of(values).reduce((sum, value) => sum + value, 0) / of(values).length;
    rows.push([i === day.points - 1 ? "now" : `${long ? `${date(times[i])} ` : ""}${clock(times[i], false)}`, ...markets.map((market) => most(day.machines[market])),
      `$${dollars(markets.reduce((sum, market) => sum + mean(day.dollars[market]), 0))}`, most(day.booting),
      most(day.running), day.waiting ? most(day.waiting) : "-"]);
  }
  return h("details", {}, h("summary", {}, `${long ? "Day by day" : short ? "Ten minutes by ten" : "Hour by hour"}, as a table`), table(`Each ${long ? "24 hours" : short ? "10 minutes" : "hour"}, the newest first: the most at once in it, dollars in the mean`,
    [["From", ""], ...markets.map((market) => [market, "number"]), ["$/h", "number"], ["Booting", "number"], ["Running", "number"],
      ["Still waiting", "number"]], rows));
}
