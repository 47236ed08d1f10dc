// Numbers, times and lists of nodes in words, as the commands write them.

export function brief(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole}s`;
  if (whole < 600 && whole % 60) return `${Math.floor(whole / 60)}m ${whole % 60}s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}m`;
  const days = minutes >= 1440;
  const first = Math.floor(minutes / (days ? 1440 : 60));
  const second = days ? Math.floor((minutes % 1440) / 60) : minutes % 60;
  return `${first}${days ? "d" : "h"}` + (second ? ` ${second}${days ? "h" : "m"}` : "");
}

export function dollars(amount) {
  const size = Math.abs(amount);
  return amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: size >= 10 ? 2 : size >= 0.01 ? 4 : 6 });
}

// Whole micro-dollars: nothing is rounded.
export function micro(amount) {
  const whole = Math.floor(amount / 1e6);
  return `$${whole.toLocaleString("en")}.${String(amount - whole * 1e6).padStart(6, "0")}`;
}

export const count = (number) => number.toLocaleString("en");
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

const two = (number) => String(number).padStart(2, "0");

export function day(at) {
  const t = new Date(at * 1000);
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())}`;
}

export const date = (at) => day(at).slice(5);

export function clock(at, seconds = true) {
  const t = new Date(at * 1000);
  return `${two(t.getHours())}:${two(t.getMinutes())}` + (seconds ? `:${two(t.getSeconds())}` : "");
}

// The zone of this browser, as "CET" or "GMT+1".
export function zone(at) {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(new Date(at * 1000));
  return parts.find((part) => part.type === "timeZoneName").value;
}

// Not the end of a span such as 20:00-06:00 UTC, whose beginning would stay in UTC.
const UTC = /(?<![-:\d])(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d)(:\d\d)? UTC\b/g;

// Sentences have UTC, so that they mean the same on every host; people read their own time. A time
// without a date is of the day on which the text was written (Unix time): the offset of the zone
// may be another one today.
export function localised(text, written = Date.now() / 1000) {
  if (!text.includes(" UTC")) return text;
  return text.replace(UTC, (all, date, minute, second) => {
    const at = Date.parse(`${date ?? new Date(written * 1000).toISOString().slice(0, 10)}T${minute}${second ?? ":00"}Z`) / 1000;
    return Number.isNaN(at) ? all : `${date ? `${day(at)} ` : ""}${clock(at, Boolean(second))} ${zone(at)}`;
  });
}

export function bytes(size) {
  const mib = size / 1048576;
  if (!size) return "-";
  if (mib < 1) return `${size} B`;
  return mib < 1000 ? `${Math.round(mib)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

const MOST = 200000;
const lists = new Map();

// The names of a hostlist: "pub[1-3,07],op1". Slurm's rules (hostlist(3) of LLNL).
export function expand(text) {
  let found = lists.get(text);
  if (!found) {
    found = split(text).flatMap(one);
    if (lists.size > 2000) lists.clear();
    lists.set(text, found);
  }
  return found;
}

function split(text) {
  const parts = [];
  let depth = 0, begin = 0;
  for (let i = 0; i <= text.length; i++) {
    if (text[i] === "[") depth++;
    else if (text[i] === "]") depth--;
    else if ((text[i] === "," && depth === 0) || i === text.length) {
      if (i > begin) parts.push(text.slice(begin, i));
      begin = i + 1;
    }
  }
  return parts;
}

function one(text) {
  const found = /^([^[]*)\[([^\]]*)\](.*)$/s.exec(text);
  if (!found) return [text];
  const [, head, ranges, tail] = found;
  const numbers = ranges.split(",").flatMap((range) => {
    const [from, to = from] = range.split("-");
    const first = Number(from), last = Math.min(Number(to), first + MOST);
    return Array.from({ length: last - first + 1 }, (_, i) => String(first + i).padStart(from.length, "0"));
  });
  const tails = one(tail);
  return numbers.flatMap((number) => tails.map((end) => `${head}${number}${end}`));
}
