// Where documents come from: this server, or, as a plug-in of Cockpit, the commands themselves.

const COMMANDS = {
  status: () => ["status", "--json"],
  day: ({ span }) => ["status", "--day", span, "--json"],
  explain: ({ subject }) => ["explain", "--json", "--", subject],
  cost: ({ by, since }) => ["cost", "--by", by, ...(since ? ["--since", since] : []), "--format", "json"],
  mine: ({ user }) => ["mine", "--json", ...(user === "*" ? ["--everyone"] : user ? ["--user", user] : [])],
  clusters: () => ["status", "--clusters", "--json"],
  doctor: () => ["doctor", "--json"],
};
const POLL = 10000, PATIENCE = 60000;
// A browser breaks all requests off when its network changes, which may take some seconds.
const PAUSES = [0, 250, 1000, 4000];

export const inCockpit = location.pathname.includes("/cockpit/");

// Whether the server has actions. In Cockpit the commands themselves have them.
export const mayAct = !inCockpit;

// The text of a document. Rejects with a sentence for people; `lost`: to be asked for again.
export function ask(name, query = {}) {
  return inCockpit ? spawn(name, query) : fetched(name, query);
}

async function fetched(name, query) {
  const address = new URL(`api/${name}`, location.href.split("#")[0]);
  for (const [key, value] of Object.entries(query)) address.searchParams.set(key, value);
  // Doctor asks clouds, and may take minutes.
  const patience = name === "doctor" ? 6 * PATIENCE : PATIENCE;
  const { ok, code, text } = await answered(address, patience);
  if (ok) return text;
  throw new Error(sentence(text) ?? `slurm-elastic web answers ${code}: ${text.slice(0, 200)}`);
}

async function answered(address, patience) {
  for (const pause of PAUSES) {
    await new Promise((done) => setTimeout(done, pause));
    try {
      const answer = await fetch(address, { signal: AbortSignal.timeout(patience) });
      return { ok: answer.ok, code: answer.status, text: await answer.text() };
    } catch (error) {
      if (error.name === "TimeoutError") break;
    }
  }
  throw Object.assign(new Error("slurm-elastic web does not answer; trying again"), { lost: true });
}

function sentence(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return undefined;
  }
}

let cockpit;

function loaded() {
  cockpit ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "../base1/cockpit.js";
    script.onload = () => done(window.cockpit);
    script.onerror = () => failed(new Error("Cockpit's own library cannot be loaded"));
    document.head.append(script);
  });
  return cockpit;
}

async function spawn(name, query) {
  const library = await loaded();
  const command = ["slurm-elastic", ...COMMANDS[name](query)];
  const said = [];
  try {
    const process = library.spawn(command, { err: "message", superuser: "try" });
    await process.stream((part) => { said.push(part); });
  } catch (error) {
    // Doctor ends with 1 where it found something, and status where nothing can be read.
    if (!said.join("").startsWith("{")) throw new Error(error.message || `${command.join(" ")} failed`);
  }
  return said.join("");
}

// Calls `fresh` whenever there is a new status, and `lost` with a sentence where there is none;
// `behind` says whether the page lacks what was there before.
export function follow(fresh, lost, behind) {
  if (inCockpit) return poll(fresh);
  let events = heard(fresh, lost, behind);
  // A page that was left may be kept for the way back, with its connection: of these a browser has
  // six for all pages of a server, and the seventh page would wait for a minute.
  addEventListener("pagehide", () => events.close());
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    events = heard(fresh, lost, behind);
    fresh();
  });
}

function heard(fresh, lost, behind) {
  const events = new EventSource(new URL("api/events", location.href.split("#")[0]));
  events.onopen = () => { if (behind()) fresh(); };
  events.addEventListener("fresh", fresh);
  events.addEventListener("trouble", (event) => lost(JSON.parse(event.data)));
  events.onerror = () => {
    // Nothing but a page that is asked again and again goes through some proxies.
    if (events.readyState === EventSource.CLOSED) poll(fresh);
    else lost("the connection is lost; trying again");
  };
  return events;
}

function poll(fresh) {
  fresh();
  setInterval(() => { if (!document.hidden) fresh(); }, POLL);
}
