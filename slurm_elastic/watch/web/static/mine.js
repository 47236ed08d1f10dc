// My jobs: where they run, when they start, what they cost, why they wait, what is saved of them.

import { h } from "./dom.js";
import { table, told, why } from "./parts.js";
import { brief, clock, count, date, day, dollars, zone } from "./words.js";

export const ofStatus = false;
const EVERYONE = "*", READ_EVERY = 15000;

const state = { user: undefined, found: undefined, error: "", asking: 0, read: 0 };

export function render(shell, [user = ""], arrived) {
  if (user !== state.user) Object.assign(state, { user, found: undefined, error: "" });
  const old = performance.now() - state.read > READ_EVERY;
  if (arrived || (!state.asking && (old || !state.found))) read(shell, user);
  draw(shell);
}

async function read(shell, user) {
  const number = ++state.asking;
  state.read = performance.now();
  try {
    const text = await shell.ask("mine", { user });
    if (number !== state.asking) return;
    Object.assign(state, { found: JSON.parse(text), error: "" });
  } catch (error) {
    if (number !== state.asking) return;
    state.error = error.message;
  }
  state.asking = 0;
  if (location.hash.startsWith("#/mine")) draw(shell);
}

function draw(shell) {
  const { found, error } = state;
  shell.show(h("h1", {}, title(found)),
    found?.users.length ? chooser(shell, found) : "",
    error ? h("p", { class: "told warn" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? jobs(found) : error ? "" : h("p", { class: "quiet" }, "Reading the jobs ..."));
}

function title(found) {
  if (!found?.users.length) return "My jobs";
  return found.user ? `Jobs of ${found.user}` : "Jobs of all users";
}

// For those who may see all jobs.
function chooser(shell, found) {
  const names = [...new Set([found.user, ...found.users])].filter(Boolean);
  return h("p", { class: "controls" }, h("label", {}, "Of ", h("select", {
    value: found.user || EVERYONE, on: { change: (_, box) => shell.go("mine", box.value) },
  }, h("option", { value: EVERYONE }, "all users"), names.map((name) => h("option", { value: name }, name)))));
}

function jobs(found) {
  const troubles = [
    found.end_only && { level: "loud", text: found.end_only },
    found.slurm_error && { level: "bad", text: `Slurm does not answer: ${found.slurm_error}. Only jobs in clouds are listed.` },
  ].filter(Boolean);
  const rows = found.jobs;
  return [
    troubles.length ? told(troubles) : "",
    rows.length ? table(caption(found), [["Job", ""], ["Where", "list"], ["When", ""], ["Cost", "number"], ["At most", "number"],
      ["Why", "next"], ["Saved", "next"]], rows.map((one) => row(found, one)), "mine")
      : h("p", { class: "quiet" }, `No job, and none since ${day(found.since)} ${clock(found.since, false)}.`),
    found.left_out ? h("p", { class: "quiet" }, `${count(found.left_out)} more are not listed.`) : "",
    rows.some((one) => one.start?.is_guess) ? h("p", { class: "quiet" }, "Starts with ~ are rough guesses: this site has few ended jobs so far.") : "",
    rows.some((one) => one.at_most_micro_dollars) ? h("p", { class: "quiet" }, "At most: up to the time limit, on the machines that it has; "
      + "for a waiting job on whole machines at the dearest price.") : "",
  ];
}

function caption(found) {
  const shown = (one) => one.state === "running" && one.slurm_state.includes("CONFIGURING") ? "booting" : one.state;
  const sum = (state) => found.jobs.reduce((all, one) => all + (shown(one) === state ? one.tasks : 0), 0);
  const parts = [[sum("running"), "running"], [sum("booting"), "booting"], [sum("waiting"), "waiting"], [sum("ended"), "ended"]];
  return `${parts.filter(([number]) => number).map(([number, name]) => `${count(number)} ${name}`).join(", ")}; times in ${zone(found.at)}`;
}

function row(found, one) {
  return [
    [why(one.label), one.name ? ` ${one.name}` : "", found.user ? "" : h("span", { class: "quiet" }, ` ${one.user}`)],
    one.nodes ? `${one.nodes}${one.clouds.length ? ` (${one.clouds.join(", ")})` : ""}` : one.partitions.join(", "),
    when(found, one), `$${dollars(one.micro_dollars / 1e6)}`, bound(one),
    one.state === "ended" ? [one.slurm_state, one.reason].filter(Boolean).join(" ") : one.stuck ? h("span", { class: "alarm" }, reason(one)) : reason(one),
    saved(found, one.save),
  ];
}

const time = (found, at) => !at ? "-" : day(at) === day(found.at) ? clock(at, false) : date(at);

function when(found, one) {
  if (one.state === "ended") return `ended ${time(found, one.ended_at)}`;
  if (one.state === "running") return `${one.slurm_state.includes("CONFIGURING") ? "boots" : "since"} ${time(found, one.started_at)}`;
  if (one.begin) return `not before ${time(found, one.begin)}`;
  return one.start ? start(one.start) : "waits";
}

function start({ seconds: [, median], is_guess: guess }) {
  if (median < 1) return "now";
  const unit = [86400, 3600, 60].find((size) => median >= size) ?? 1;
  return guess ? `in ~${brief(Math.max(Math.round(median / unit), 1) * unit)}` : `in ${brief(median)}`;
}

function bound(one) {
  if (one.state === "ended") return "";
  if (one.at_most_micro_dollars === null) return one.limit_s === null && one.slurm_state ? "no limit" : "-";
  return `$${dollars(one.at_most_micro_dollars / 1e6)}`;
}

// As the last lines of `explain`.
export function costAndStart(one) {
  const most = one.at_most_micro_dollars;
  const limit = one.state === "ended" ? "" : most !== null ? ` so far, at most $${dollars(most / 1e6)}` : one.limit_s === null
    ? " so far, and no time limit" : " so far";
  const expected = one.begin ? ` Expected start: not before ${day(one.begin)} ${clock(one.begin, false)}.`
    : one.start ? ` Expected start: ${start(one.start)} in partition ${one.start.partition}${one.start.is_guess ? " (a rough guess)" : ""}.` : "";
  return `Cost: $${dollars(one.micro_dollars / 1e6)}${limit}.${expected}`;
}

function reason(one) {
  if (one.stuck && one.advice) return `${one.reason}; do: ${one.advice}`;
  return one.retry_at ? `${one.reason}; asked again at ${clock(one.retry_at, false)}` : one.reason;
}

// A time alone would read as one of today.
function saved(found, save) {
  if (!save) return "";
  const move = save.move_step ? `, ${save.move_step}` : "";
  const other = save.at !== null && day(save.at) !== day(found.at) ? `${date(save.at)} ` : "";
  if (save.at !== null) return `${other}${clock(save.at, false)} (${save.method})${move}${save.reason ? `; no new save: ${save.reason}` : ""}`;
  if (save.is_known === false) return `not known: ${save.reason}`;
  return save.reason ? `no: ${save.reason}` : `not yet (${save.method})${move}`;
}
