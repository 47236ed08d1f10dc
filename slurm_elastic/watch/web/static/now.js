// The cluster now: what needs somebody, then figures, clouds, nodes, machines, and what is not used.

import { h } from "./dom.js";
import { grid } from "./grid.js";
import { act, acts } from "./acts.js";
import { because, figure, states, table, told, waiting, why } from "./parts.js";
import { brief, count, dollars, expand, plural } from "./words.js";

export const ofStatus = true;
const FIRST = 25;
const SORTS = {
  attention: ["What needs attention", (a, b) => a.calm - b.calm],
  node: ["Node", () => 0],
  price: ["Price", (a, b) => b.price - a.price],
  cost: ["Cost so far", (a, b) => b.cost - a.cost],
  age: ["Age", (a, b) => b.age_s - a.age_s],
};

const seen = { node: "", sort: "attention", words: "", rows: FIRST, all: false };

export function render(shell) {
  const status = shell.status();
  const again = () => render(shell);
  const byNode = nodesOf(status);
  shell.show(
    h("h1", { class: "unseen" }, `Cluster ${status.cluster} now`),
    headline(status),
    figures(status),
    h("section", { "aria-labelledby": "clouds" }, h("h2", { id: "clouds" }, "Clouds"),
      h("ul", { class: "clouds" }, siteNodes(status), status.clouds.map((one) => cloud(status, one)))),
    h("section", { "aria-labelledby": "queue" }, h("h2", { id: "queue" }, "Waiting jobs"), waiting(status.queue, again)),
    nodes(shell, status, byNode, again),
    machines(status, again),
    notNow(status),
    money(status),
  );
}

function headline(status) {
  const urgent = status.attention.filter((one) => one.level !== "note");
  const calm = h("p", { class: "told fine" }, h("b", {}, "All is calm"), h("span", {},
    `${plural(status.instances.length, "machine")}, nothing needs attention`));
  return h("section", { "aria-label": "What needs attention" },
    urgent.length ? "" : calm, told(status.attention),
    status.directives.length ? acts(act("resume", {}, "Resume ...", "or end an order")) : "",
    status.head ? h("p", { class: "quiet" }, status.head.text) : "", status.daemon.pending_requests
      ? h("p", { class: "quiet" }, `${plural(status.daemon.pending_requests, "request of slurmctld waits", "requests of slurmctld wait")}`)
      : "");
}

function figures(status) {
  const { site, queue } = status;
  const known = site && !status.ledger_error;
  const shown = [];
  if (known) {
    shown.push(figure("Machines paid", count(site.machines), site.limit === null ? "no cap" : `of at most ${count(site.limit)}`,
      usedPart(site.machines, site.limit)));
    shown.push(figure("Dollars an hour", `$${dollars(site.price_now)}`,
      `at worst $${dollars(site.price_worst)}` + (site.price_limit === null ? "" : ` of at most $${dollars(site.price_limit)}`),
      usedPart(site.price_worst, site.price_limit)));
  }
  if (queue) {
    shown.push(figure("Jobs", count(queue.running), "have nodes"));
    shown.push(figure("Jobs waiting", count(queue.waiting), queue.waiting ? reasons(queue) : "no job waits"));
  }
  for (const one of status.budgets) shown.push(budget(one));
  return h("dl", { class: "figures" }, shown);
}

// The used part of a cap. A cap of 0, by which an operator stops all starts, is used up.
const usedPart = (used, cap) => cap === null ? undefined : cap ? used / cap : 1;

function reasons(queue) {
  const phrases = Object.entries(queue.waits_for ?? {}).map(([phrase, number]) => `${count(number)} ${phrase}`);
  return [queue.oldest_s ? `the longest ${brief(queue.oldest_s)}` : "", phrases.join(", ")].filter(Boolean).join(": ");
}

export function budget(one) {
  const whose = one.account ? `Account ${one.account}` : one.user ? `User ${one.user}` : one.cloud ? `Budget of ${one.cloud}` : "Budget";
  const detail = [
    one.per_day === null ? "" : `$${dollars(one.day)} of $${dollars(one.per_day)} today`,
    one.per_month === null ? "" : `$${dollars(one.month)} of $${dollars(one.per_month)} this month`,
  ].filter(Boolean).join("; ");
  const part = Math.max(one.per_day ? one.day / one.per_day : 0, one.per_month ? one.month / one.per_month : 0);
  return figure(whose, `${Math.round(100 * part)} %`, detail, part);
}

// The nodes of the site itself, which no cloud provides.
function siteNodes({ site_nodes: own }) {
  if (!own) return "";
  return h("li", { "data-key": "site nodes" },
    h("p", { class: "title" }, "site", h("span", { class: "quiet" }, ` ${plural(own.count, "own node")}`)),
    h("p", {}, states(own.states, own.count, "site nodes")));
}

function cloud(status, one) {
  const known = !status.ledger_error;
  const limit = one.limit === null ? "" : ` of ${count(one.limit)}`;
  return h("li", { "data-key": `cloud ${one.name}` },
    h("p", { class: "title" }, why(one.name), h("span", { class: "quiet" }, ` ${one.location}, ${one.provider}`)),
    known ? h("p", {}, `${limit ? `${count(one.machines)}${limit} machines` : plural(one.machines, "machine")} paid, `, h("b", {}, `$${dollars(one.price_now)}/h`),
      one.price_limit === null ? "" : `, at worst $${dollars(one.price_worst)} of $${dollars(one.price_limit)}`) : "",
    (status.reserved ?? []).filter((row) => row.cloud === one.name).map((row) => h("p", {}, `Reserved: ${row.text}`)),
    h("p", {}, states(one.states, one.nodes, one.name)),
    one.blocked ? h("p", { class: "told warn" }, h("b", {}, "Shut"), h("span", {}, one.blocked)) : "",
    acts(act("pause", { scope: `cloud:${one.name}` }, "Pause", `cloud ${one.name}`),
      act("limit", { scope: `cloud:${one.name}` }, "Limit", `cloud ${one.name}`),
      act("drain", { subject: `cloud:${one.name}` }, "Drain", `cloud ${one.name}`),
      status.clouds.length > 1 ? act("migrate", { subject: `cloud:${one.name}` }, "Migrate", `cloud ${one.name}`) : ""),
    one.problem ? h("p", { class: "told bad" }, h("b", {}, "Error"), h("span", {}, "see above")) : "");
}

// By name: state, why it is so, and the machine that is paid for it.
function nodesOf(status) {
  const found = new Map();
  for (const group of status.nodes) {
    for (const name of expand(group.nodes)) found.set(name, { state: group.state, note: group.note });
  }
  for (const machine of status.instances) {
    if (!machine.node) continue;
    const node = found.get(machine.node) ?? { note: "" };
    found.set(machine.node, { ...node, machine });
  }
  return found;
}

function nodes(shell, status, byNode, again) {
  const hidden = status.pools.every((pool) => !Object.keys(pool.states).length);  // by PrivateData=nodes
  const other = status.slurm_error !== null ? "unknown, as Slurm does not answer"
    : hidden ? "unknown, as Slurm does not show its nodes" : "powered down";
  const of = (name) => {
    const node = byNode.get(name);
    return [node?.state ?? other, !(node?.machine?.calm ?? true)];
  };
  const choose = (name) => {
    seen.node = name;
    again();
  };
  return h("section", { "aria-labelledby": "nodes" }, h("h2", { id: "nodes" }, "Nodes"),
    status.pools.map((pool) => {
      const names = expand(pool.nodes);
      if (!names.length) return "";
      const limit = pool.limit === null ? "" : ` of at most ${count(pool.limit)}`;
      const paid = status.ledger_error ? "machines not known"
        : limit ? `${count(pool.machines)}${limit} machines` : plural(pool.machines, "machine");
      return h("div", { class: "pool", "data-key": `pool ${pool.name}` },
        h("h3", {}, why(pool.name), h("span", { class: "quiet" },
          ` of ${pool.cloud}, ${pool.markets.join(", ")}; ${paid}`)),
        h("p", {}, states(pool.states, pool.count, pool.name)),
        acts(act("pause", { scope: `pool:${pool.name}` }, "Pause", `pool ${pool.name}`),
          act("limit", { scope: `pool:${pool.name}`, key: "max_nodes" }, "Limit", `pool ${pool.name}`),
          act("drain", { subject: `pool:${pool.name}` }, "Drain", `pool ${pool.name}`),
          act("replace", { subject: `pool:${pool.name}` }, "Replace", `pool ${pool.name}`),
          status.clouds.length > 1 ? act("migrate", { subject: `pool:${pool.name}` }, "Migrate", `pool ${pool.name}`) : ""),
        h("div", { class: "cells" }, grid(`Nodes of pool ${pool.name}, arrow keys move, Enter explains`, names, of,
          seen.node, choose, (name) => shell.go("explain", name))),
        names.includes(seen.node) ? chosen(seen.node, of, byNode.get(seen.node)) : "");
    }));
}

function chosen(name, of, node) {
  const machine = node?.machine;
  return h("p", { class: "chosen" }, h("b", {}, name), ` is ${of(name)[0]}`, node?.note ? `: ${node.note}` : "",
    machine ? `. ${machine.instance_type} in ${machine.zone}, ${machine.market}, $${dollars(machine.price)}/h for `
      + `${brief(machine.age_s)}; ${jobs(machine)}${machine.next}` : "", " ", why(name, "Why?", `Explain ${name}`),
    " ", machine ? act("drain", { subject: name }, "Drain", `node ${name}`) : "",
    " ", machine ? act("replace", { subject: name }, "Replace", `node ${name}`) : "");
}

const jobs = (machine) => machine.jobs.length
  ? `${machine.jobs.slice(0, 3).map((job) => `job ${job.label || job.id}${job.user ? ` of ${job.user}` : ""}`).join(", ")}`
    + `${machine.jobs.length > 3 ? ` and ${machine.jobs.length - 3} more` : ""}; ` : "";

function noMachine(pools) {
  const kept = pools.reduce((sum, pool) => sum + pool.stopped, 0);
  if (!kept) return "No machine is paid.";
  return `No machine runs; ${kept === 1 ? "1 stopped machine is" : `${kept} stopped machines are`} paid for.`;
}

function machines(status, again) {
  const all = status.instances;
  if (!all.length) {
    return h("section", {}, h("h2", {}, "Machines"),
      h("p", { class: "quiet" }, status.ledger_error ? "Not known: the ledger cannot be read." : noMachine(status.pools)));
  }
  const words = seen.words.toLowerCase();
  const wanted = words ? all.filter((one) => text(one).includes(words)) : all;
  const rows = [...wanted].sort(SORTS[seen.sort][1]);
  const shown = rows.slice(0, seen.rows);
  return h("section", { "aria-labelledby": "machines" }, h("h2", { id: "machines" }, `Machines`),
    all.length > 5 ? controls(again) : "",
    table(`${plural(wanted.length, "machine")}${words ? ` of ${count(all.length)}` : ""}`, [
      ["Node", ""], ["Next", "next"], ["Market", ""], ["$/h", "number"], ["Age", "number"], ["Cost", "number"],
      ["Jobs", "list"], ["Type, zone", ""], ["Id", ""],
    ], shown.map(row), "machines"),
    rows.length > shown.length ? h("p", {}, h("button", { type: "button", on: { click: () => {
      seen.rows = Math.min(rows.length, seen.rows * 4);
      again();
    } } }, `Show more of ${count(rows.length)}`)) : "");
}

const text = (one) => [one.node, one.id, one.pool, one.cloud, one.market, one.instance_type, one.zone, one.next,
  ...one.jobs.flatMap((job) => [job.id, job.user])].join(" ").toLowerCase();

function controls(again) {
  return h("p", { class: "controls" },
    h("label", {}, "Filter ", h("input", { type: "search", value: seen.words, on: { input: (_, box) => {
      seen.words = box.value;
      again();
    } } })),
    h("label", {}, "Sort by ", h("select", { value: seen.sort, on: { change: (_, box) => {
      seen.sort = box.value;
      again();
    } } }, Object.entries(SORTS).map(([key, [name]]) =>
      h("option", { value: key }, name)))));
}

function row(one) {
  return [
    one.node ? why(one.node) : h("span", { class: "quiet" }, "none"),
    h("span", { class: one.calm ? "" : "alarm" }, one.next),
    h("span", { class: `market ${one.market}` }, one.market),
    one.price.toFixed(4), brief(one.age_s), `$${one.cost.toFixed(4)}`,
    one.jobs.slice(0, 3).map((job, i) => [i ? ", " : "", why(String(job.label || job.id)), job.user ? ` ${job.user}` : ""]).concat(
      one.jobs.length > 3 ? [` and ${one.jobs.length - 3} more`] : []),
    `${one.instance_type}, ${one.zone}`, h("code", {}, one.id),
  ];
}

function notNow(status) {
  const parts = [];
  if (status.launches.length) {
    parts.push(table("Launches without an answer yet", [["Pool", ""], ["Nodes", "list"], ["Offer", ""], ["Since", "number"]],
      status.launches.map((one) => [why(one.pool), one.nodes, one.offer, brief(one.age_s)])));
  }
  if (status.cool_downs.length) {
    parts.push(table("Offers that are not bought now", [["Offer", ""], ["Left", "number"], ["Why", "next"]],
      status.cool_downs.map((one) => [[one.key, " ", act("clear", { subjects: one.key }, "Clear", one.key)], brief(one.left_s), `${one.code}: ${because(one, status.attention)}`])));
  }
  if (status.holds.length) {
    parts.push(table("Nodes kept from Slurm", [["Pool", ""], ["Nodes", "list"], ["Left", "number"], ["Why", "next"]],
      status.holds.map((one) => [why(one.pool), one.nodes,
        one.kind === "capacity" ? (one.left_s > 0 ? brief(one.left_s) : "over") : "-", because(one, status.attention)])));
  }
  return parts.length ? h("section", { "aria-labelledby": "notnow" }, h("h2", { id: "notnow" }, "Not now"), parts) : "";
}

function money(status) {
  const { totals } = status;
  if (!totals.length) return "";
  const all = { market: "all" };
  for (const key of ["machines", "price_now", "cost_live", "ended", "cost_ended"]) all[key] = totals.reduce((sum, one) => sum + one[key], 0);
  const rows = (totals.length > 1 ? [...totals, all] : totals).map((one) => [h("span", { class: `market ${one.market}` }, one.market), count(one.machines),
    `$${dollars(one.price_now)}`, `$${dollars(one.cost_live)}`, count(one.ended), `$${dollars(one.cost_ended)}`,
    h("b", {}, `$${dollars(one.cost_live + one.cost_ended)}`)]);
  return h("section", { "aria-labelledby": "money" }, h("h2", { id: "money" }, "Money"),
    table("Running now, and ended in the last 24 hours", [["Market", ""], ["Running", "number"], ["$/h now", "number"],
      ["So far", "number"], ["Ended", "number"], ["Of ended", "number"], ["In all", "number"]], rows),
    h("p", {}, h("a", { href: "#/cost" }, "By account, user, job ...")));
}
