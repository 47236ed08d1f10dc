// Doctor's findings: what is wrong, and what to do. It asks all clouds, so it runs when it is asked for.

import { h } from "./dom.js";
import { clock, plural, zone } from "./words.js";

export const ofStatus = false;
const LEVELS = { ok: ["ok", "Fine"], note: ["warn", "Note"], wrong: ["bad", "Wrong"] };
const state = { found: undefined, error: "", asking: false };

export function render(shell, _, arrived) {
  if (arrived && !state.asking) look(shell);
  draw(shell);
}

async function look(shell) {
  state.asking = true;
  draw(shell);
  try {
    Object.assign(state, { found: JSON.parse(await shell.ask("doctor")), error: "" });
  } catch (error) {
    state.error = error.message;
  }
  state.asking = false;
  if (location.hash.startsWith("#/doctor")) draw(shell);
}

function draw(shell) {
  const { found, error, asking } = state;
  shell.show(h("h1", {}, "Doctor"),
    h("p", { role: "status" }, asking ? "Asking Slurm and all clouds: this may take a minute ..." : found ? conclusion(found) : ""),
    error ? h("p", { class: "told bad" }, h("b", {}, "Not known"), h("span", {}, error)) : "",
    found ? found.parts.map(part) : "",
    found ? fine(found) : "",
    (found || error) && !asking ? h("p", {}, h("button", { type: "button", on: { click: () => look(shell) } }, "Look again"),
      h("span", { class: "quiet" }, " findings are kept for five minutes")) : "");
}

function conclusion(found) {
  const notes = found.parts.flatMap((one) => one.findings).filter((one) => one.level === "note").length;
  const told = found.wrong ? `${plural(found.wrong, "thing")} to put right` : notes ? `Nothing is broken; ${plural(notes, "note")} to read` : "All is well";
  return `${told}, as of ${clock(found.at)} ${zone(found.at)}.`;
}

const title = (name) => `${name[0].toUpperCase()}${name.slice(1)}`;

function part(one) {
  const order = { wrong: 0, note: 1 };
  const findings = one.findings.filter((each) => each.level !== "ok").sort((a, b) => order[a.level] - order[b.level]);
  return findings.length ? h("section", { "data-key": one.name }, h("h2", {}, title(one.name)), sentences(findings)) : "";
}

// What is as it should be, folded: it is many rows, and nobody has to read them.
function fine(found) {
  const parts = found.parts.map((one) => [one.name, one.findings.filter((each) => each.level === "ok")])
    .filter(([, findings]) => findings.length);
  const number = parts.reduce((sum, [, findings]) => sum + findings.length, 0);
  if (!number) return "";
  return h("details", { "data-key": "fine" }, h("summary", {}, `${plural(number, "check")} found nothing wrong`),
    parts.map(([name, findings]) => h("section", { "data-key": name }, h("h2", {}, title(name)), sentences(findings))));
}

function sentences(findings) {
  return h("ul", { class: "sentences" }, findings.map((finding) => {
    const [kind, word] = LEVELS[finding.level];
    return h("li", { class: `told ${kind}` }, h("b", {}, word), h("div", {},
      h("p", {}, h("b", {}, finding.check), `: ${finding.found}`),
      finding.expected ? h("p", { class: "quiet" }, `expected: ${finding.expected}`) : "",
      finding.advice ? h("p", { class: "do" }, `do: ${finding.advice}`) : ""));
  }));
}
