// The frame: which page is shown, when it is read again, how fresh it is.

import { draw, h, listen, show } from "./dom.js";
import { hasForms, learn } from "./acts.js";
import { ask, follow, mayAct } from "./source.js";
import { brief, clock, day, zone } from "./words.js";
import * as clusters from "./clusters.js";
import * as cost from "./cost.js";
import * as doctor from "./doctor.js";
import * as explain from "./explain.js";
import * as now from "./now.js";
import * as migrations from "./migrations.js";
import * as mine from "./mine.js";
import * as today from "./day.js";

const PAGES = {
  now: ["Now", now],
  mine: ["My jobs", mine],
  day: ["Day", today],
  explain: ["Explain", explain],
  cost: ["Cost", cost],
  migrations: ["Migrations", migrations],
  clusters: ["Clusters", clusters],
  doctor: ["Doctor", doctor],
};
const OLD = 60;

const content = document.getElementById("content");
const beat = document.getElementById("beat");
let status, trouble, asked = 0;

function place() {
  const [name = "", ...rest] = location.hash.slice(1).split("/").filter(Boolean);
  return { name: name in PAGES ? name : "now", rest: rest.map(decoded) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const shell = { show: (...children) => show(content, ...children), ask, go, status: () => status };

function go(...path) {
  location.hash = `#/${path.map(encodeURIComponent).join("/")}`;
}

function render(arrived) {
  const { name, rest } = place();
  const [title, page] = PAGES[name];
  document.title = `${title} · ${status?.cluster ?? "slurm-elastic"}`;
  show(document.getElementById("pages"), h("ul", {}, Object.entries(PAGES).filter(([key]) => key !== "clusters" || status?.other_clusters?.length).map(([key, [label]]) =>
    h("li", {}, h("a", { href: `#/${key}`, "aria-current": key === name ? "page" : undefined }, label))),
    hasForms() ? h("li", {}, h("a", { href: "act" }, "Act")) : ""));
  if (page.ofStatus && !status) {
    if (trouble) show(content, h("h1", {}, title), h("p", { class: "told loud" }, trouble));
    return;
  }
  page.render(shell, rest, arrived);
}

async function refresh() {
  const number = ++asked;
  try {
    const text = await ask("status");
    if (number !== asked) return;
    status = JSON.parse(text);
    trouble = undefined;
    document.getElementById("cluster").textContent = status.cluster;
  } catch (error) {
    if (number !== asked) return;
    trouble = error.message;
  }
  tick();
  render(false);
  if (status) requestAnimationFrame(() => setTimeout(() => performance.mark("painted")));
}

function tick() {
  const age = status ? Math.max(0, Date.now() / 1000 - status.at) : 0;
  // Of the head's clock and this one's: a difference is not an age.
  const old = status && age > OLD && trouble;
  beat.className = trouble ? "lost" : "";
  const told = status ? `as of ${clock(status.at)} ${zone(status.at)}` : "";
  const next = trouble ? `${told}${told ? ": " : ""}${trouble}${old ? ` (${brief(age)} ago)` : ""}` : told;
  if (beat.textContent !== next) beat.textContent = next;
  beat.title = status ? `${day(status.at)} ${clock(status.at)}, this browser's time` : "";
}

listen(document.body, "click", "change", "submit", "keydown", "input");
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const subject = event.target.elements.subject.value.trim();
  if (subject) go("explain", subject);
});
addEventListener("hashchange", () => {
  render(true);
  scrollTo(0, 0);
  content.focus({ preventScroll: true });
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) draw(content);
  width = innerWidth;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(content));

// Whoever opens the page sees the first reading before anything else is asked for.
render(true);
refresh().then(() => {
  follow(refresh, (why) => { trouble = why; tick(); }, () => trouble !== undefined);
  if (mayAct) learn(ask).then(() => render(false));
});
