// The chain of decisions about a node, a job, a pool: what was decided when, why, and what was not.

import { h } from "./dom.js";
import { act, acts } from "./acts.js";
import { costAndStart } from "./mine.js";
import { table, told, waiting, why } from "./parts.js";
import { brief, clock, day, dollars, localised, plural } from "./words.js";

export const ofStatus = false;
const FIRST = 40, OFFERS = 12, RECENT = 12;
const LISTS = ["ranked", "behind", "refused", "rejected"];
const HIDDEN = new Set(["jobs", "now", "plan", ...LISTS]);

const state = { subject: "", chains: undefined, error: "", lost: false, asking: 0, rows: FIRST };

export function render(shell, [subject = ""], arrived) {
  if (subject !== state.subject) Object.assign(state, { subject, chains: undefined, error: "", rows: FIRST });
  if (subject && (arrived || (!state.chains && (!state.error || state.lost) && !state.asking))) read(shell, subject);
  draw(shell);
}

async function read(shell, subject) {
  const number = ++state.asking;
  try {
    const text = await shell.ask("explain", { subject });
    if (number !== state.asking) return;
    Object.assign(state, { chains: text.trim().split("\n").map((line) => JSON.parse(line)), error: "" });
  } catch (error) {
    if (number !== state.asking) return;
    Object.assign(state, { chains: undefined, error: error.message, lost: error.lost });
  }
  state.asking = 0;
  if (location.hash.startsWith("#/explain")) draw(shell);
}

function draw(shell) {
  const { subject, chains, error } = state;
  if (!subject) {
    shell.show(h("h1", {}, "Explain"), h("p", {}, "Choose a job or a node, or name one above, or a pool or a cloud: every "
      + "decision about it is shown, the newest first, with its reason and the rejected offers."), ...offered(shell));
    return;
  }
  shell.show(h("h1", {}, `Why is ${subject} where it is?`),
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    !chains && !error ? h("p", { class: "quiet" }, "Reading its decisions ...") : "",
    (chains ?? []).map((chain) => one(shell, chain)));
}

// What people ask about: jobs that wait, and the nodes with the newest machines.
function offered(shell) {
  const status = shell.status();
  if (!status) return [h("p", { class: "quiet" }, "Reading the cluster ...")];
  const nodes = status.instances.filter((machine) => machine.node).sort((a, b) => b.launched_at - a.launched_at).slice(0, RECENT);
  return [
    h("section", { "aria-labelledby": "queue" }, h("h2", { id: "queue" }, "Waiting jobs"), waiting(status.queue, () => draw(shell))),
    h("section", { "aria-labelledby": "recent" }, h("h2", { id: "recent" }, "Recent nodes"), nodes.length
      ? table("Nodes with the newest machines", [["Node", ""], ["Next", "next"], ["Pool", ""], ["Age", "number"]],
        nodes.map((machine) => [why(machine.node), machine.next, why(machine.pool), brief(machine.age_s)]))
      : h("p", { class: "quiet" }, status.ledger_error ? "Not known: the ledger cannot be read." : "No machine is paid.")),
  ];
}

function one(shell, chain) {
  const decisions = [...chain.decisions].reverse();
  const shown = decisions.slice(0, state.rows);
  return h("section", { "data-key": chain.subject, "aria-label": `${chain.about} ${chain.subject}` },
    h("p", { class: "lead" }, chain.now),
    chain.about === "job" ? acts(act("save", { job: chain.subject.replace("job:", "") }, "Save now", `job ${chain.subject}`)) : "",
    chain.end_only ? told([{ level: "loud", text: chain.end_only }]) : "",
    told(chain.attention.map((text) => ({ level: "warn", text }))),
    chain.private.length ? h("p", { class: "quiet" }, `PrivateData=${chain.private.join(",")}: only your own jobs' part is shown`) : "",
    verdicts(chain),
    machines(chain),
    chain.job ? h("p", { class: "lead" }, costAndStart(chain.job)) : "",
    h("h2", {}, chain.decisions.length ? "Decisions, the newest first" : "No decision about it is in the ledger"),
    h("ol", { class: "chain", reversed: true }, shown.map((decision, i) => step(decision, shown[i - 1], chain))),
    shown.length < decisions.length ? h("p", {}, h("button", { type: "button", on: { click: () => {
      state.rows = decisions.length;
      draw(shell);
    } } }, `Show all ${decisions.length}`)) : "");
}

function verdicts(chain) {
  const groups = new Map();
  for (const verdict of chain.verdicts) {
    const key = `${verdict.cloud} ${verdict.reason}`;
    groups.set(key, { ...verdict, pools: [...(groups.get(key)?.pools ?? []), verdict.pool] });
  }
  if (!groups.size) return "";
  return h("div", { "data-key": "verdicts" }, h("h2", {}, "Why it gets no machine"),
    h("dl", { class: "reasons" }, [...groups.values()].map((group) => [
      h("dt", {}, `${group.cloud}: `, group.pools.slice(0, 3).map((pool, i) => [i ? ", " : "", why(pool)]),
        group.pools.length > 3 ? ` and ${group.pools.length - 3} more` : ""),
      h("dd", {}, group.reason)])));
}

function machines(chain) {
  const found = [...chain.machines].reverse().slice(0, 5);
  if (!found.length) return "";
  return h("div", { "data-key": "machines" }, h("h2", {}, "Machines"),
    h("ul", { class: "plain" }, found.map(({ instance: i, ended, suspending, end_reason: reason }) => h("li", {},
      why(i.node), ": ", h("code", {}, i.id), `, ${i.instance_type} in ${i.zone}, ${i.market}, $${dollars(i.price)}/h, `,
      `since ${day(i.launched)} ${clock(i.launched)}`,
      ended ? `, ended after ${brief(ended - i.launched)}: ${reason ?? ""}` : suspending ? `, terminating: ${reason ?? ""}` : ""))),
    chain.machines.length > found.length ? h("p", { class: "quiet" }, `and ${plural(chain.machines.length - found.length, "more machine")}`) : "");
}

function step(decision, before, chain) {
  const date = day(decision.at);
  const detail = Object.entries(decision.detail ?? {});
  const offers = detail.filter(([name, rows]) => LISTS.includes(name) && Array.isArray(rows) && rows.length);
  const rest = detail.filter(([name]) => !HIDDEN.has(name));
  const more = offers.length + rest.length;
  return h("li", { "data-key": `${decision.at} ${decision.kind} ${decision.correlation}` },
    !before || day(before.at) !== date ? h("p", { class: "date" }, date) : "",
    h("div", { class: "step" },
      h("time", { datetime: new Date(decision.at * 1000).toISOString() }, clock(decision.at)),
      h("b", { class: `kind ${decision.kind}` }, decision.kind),
      h("div", {}, h("p", {}, localised(decision.reason, decision.at)), h("p", { class: "quiet" }, subjects(decision.subjects, chain),
        " ", h("code", {}, decision.correlation)),
      more ? h("details", {}, h("summary", {}, offers.length ? "Offers and figures" : "Figures"),
        offers.map(([name, rows]) => h("div", {}, h("h4", {}, name), h("ul", { class: "plain" },
          rows.slice(0, OFFERS).map((row) => h("li", {}, offer(row))),
          rows.length > OFFERS ? h("li", { class: "quiet" }, `and ${rows.length - OFFERS} more`) : ""))),
        rest.length ? h("dl", { class: "reasons" }, rest.map(([name, value]) => [h("dt", {}, name),
          h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])) : "") : "")));
}

// Nodes and pools, then jobs; each in the order of their numbers, but for the one that is asked about.
function subjects(all, { subject: own, labels = {} }) {
  const jobs = all.filter((one) => one.startsWith("job:")), others = all.filter((one) => !one.startsWith("job:"));
  return [...some(others, own, "node"), others.length && jobs.length ? ", " : "", ...some(jobs, `job:${own}`, "job", labels)];
}

function some(names, own, kind, labels = {}) {
  const sorted = [...names].sort((a, b) => (b === own) - (a === own) || a.localeCompare(b, "en", { numeric: true }));
  const shown = sorted.slice(0, 6).map((one, i) => {
    const name = one.replace(/^(job|pool):/, "");
    return [i ? ", " : "", why(name, one.startsWith("job:") ? `job ${labels[name] ?? name}` : name)];
  });
  return [shown, sorted.length > 6 ? ` and ${plural(sorted.length - 6, `more ${kind}`)}` : ""];
}

// [key, room, reason], [key, reason], [reason, how many, which], or a name: as `explain` reads it.
function offer(row) {
  if (typeof row === "string" || !Array.isArray(row) || !row.length) return typeof row === "string" ? row : JSON.stringify(row);
  const [key, ...rest] = row;
  if (rest.length === 2 && Array.isArray(rest[1])) return `${rest[1].join(" ")}: ${key}`;
  const room = Number.isInteger(rest[0]) ? ` for ${plural(rest.shift(), "node")}` : "";
  return `${key}${room}${rest.length ? `: ${rest.join(" ")}` : ""}`;
}
