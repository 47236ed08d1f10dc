// Checkpoints and migrations: what threatens nodes, which jobs are on their way, which are saved.

import { h } from "./dom.js";
import { table, told, why } from "./parts.js";
import { brief, bytes, clock, plural } from "./words.js";

export const ofStatus = true;

export function render(shell) {
  const { checkpoints: found, checkpoints_error: error } = shell.status();
  shell.show(h("h1", {}, "Checkpoints and migrations"), ...(found ? parts(found) : [error
    ? told([{ level: "bad", text: `Saves and moves are not known, as their records cannot be read: ${error}` }])
    : h("p", { class: "quiet" }, "slurm-elastic-ckptman has never run here: no job is saved, and none is moved.")]));
}

function parts(found) {
  const open = found.moves.filter((move) => !move.over), over = found.moves.filter((move) => move.over);
  return [
    found.alive && !found.trouble ? h("p", { class: "told fine" }, h("b", {}, "Alive"), h("span", {},
      `slurm-elastic-ckptman, heartbeat ${brief(found.heartbeat_age_s ?? 0)} before this reading; `
      + `${plural(found.threats.length, "notice")}, ${plural(open.length, "job")} on the way, ${plural(found.saved.length, "saved job")}`))
      : told([{ level: "bad", text: found.trouble || "slurm-elastic-ckptman is not running; no job is saved" }]),
    found.threats.length ? table("Notices", [["Node", ""], ["Kind", ""], ["Left", "number"], ["Told by", "next"]],
      found.threats.map((one) => [why(one.node), one.kind, left(one.left_s), one.reason ? `${one.source}: ${one.reason}` : one.source])) : "",
    open.length ? moves("Jobs that are saved or moved now", open, ["Since", (one) => clock(one.began_at)], ["Left", (one) => left(one.left_s)]) : "",
    found.unsavable.length ? table("Jobs that cannot be saved", [["Job", ""], ["Method", ""], ["Why", "next"], ["It would help to", "next"]],
      found.unsavable.map((one) => [why(one.label), one.method, one.reason, one.advice])) : "",
    found.saved.length ? table("Saved jobs", [["Job", ""], ["Method", ""], ["Save", "number"], ["Node", ""], ["Age", "number"],
      ["Size", "number"], ["Took", "number"]], found.saved.map((one) => [why(one.label), one.method, one.number, why(one.node),
      brief(one.age_s), bytes(one.size_bytes), `${one.took_s.toFixed(1)} s`])) : "",
    over.length ? moves("Moved in the last 24 hours", over, ["Began", (one) => clock(one.began_at)], ["Took", (one) => brief(one.took_s)],
      ["Work lost", (one) => one.work_lost_s === null ? "-" : brief(one.work_lost_s)]) : "",
  ];
}

function moves(title, rows, ...times) {
  return table(title, [["Job", ""], ["Step", ""], ...times.map(([name]) => [name, "number"]), ["Off nodes", "list"], ["Cause", "next"], ["Note", "next"]],
    rows.map((one) => [why(one.label), step(one), ...times.map(([, told]) => told(one)),
      one.nodes.join(", ") || "-", one.cause, [one.image === null ? "" : `from save ${one.image}`, one.note].filter(Boolean).join("; ")]));
}

function step(one) {
  if (one.started_over) return h("b", { class: "alarm" }, "started over");
  return h("b", { class: one.step === "back" ? "good" : "" }, [one.step, one.waits_for].filter(Boolean).join(" for "));
}

const left = (seconds) => seconds === null ? "-" : seconds > 0 ? brief(seconds) : "over";
