// This cluster and the others of the configuration: a row for each, and the sums.

import { h } from "./dom.js";
import { table } from "./parts.js";
import { brief, clock, count, dollars } from "./words.js";

export const ofStatus = false;
const PERIOD = 30000;
let found, trouble, read = 0;

export function render(shell, _, arrived) {
  if (arrived || Date.now() - read > PERIOD) refresh(shell);
  shell.show(h("h1", {}, "Clusters"), trouble ? h("p", { class: "told bad" }, trouble) : "",
    found ? rows() : trouble ? "" : h("p", { class: "quiet" }, "Asking the heads of all clusters ..."));
}

async function refresh(shell) {
  read = Date.now();
  try {
    found = JSON.parse(await shell.ask("clusters"));
    trouble = undefined;
  } catch (error) {
    trouble = error.message;
  }
  if (location.hash.startsWith("#/clusters")) render(shell, [], false);
}

function rows() {
  const known = (value, form) => value === null ? "-" : form(value);
  const row = (one, name, note) => [name, known(one.machines, count), known(one.price_now, (sum) => `$${dollars(sum)}`),
    known(one.cost, (sum) => `$${dollars(sum)}`), known(one.running, count), known(one.waiting, count),
    known(one.oldest_s, brief), known(one.age_s, brief), note];
  const without = found.missing.length ? h("span", { class: "alarm" }, `without ${found.missing.join(", ")}`) : "";
  return table(`As of ${clock(found.at)}`, [["Cluster", ""], ["Machines", "number"], ["$/h now", "number"],
    ["$ of 24 h", "number"], ["Jobs run", "number"], ["Jobs wait", "number"], ["Longest", "number"], ["Age", "number"],
    ["Attention", "next"]], [
    ...found.clusters.map((one) => row(one, one.name, one.trouble ? h("span", { class: "alarm" }, one.trouble) : one.note)),
    row(found.total, h("b", {}, "all"), without),
  ], "clusters");
}
