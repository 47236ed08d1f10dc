// The nodes of a pool as a grid: a cell each, its shape and colour by its state. It is one slider
// for the keyboard and for screen readers, whose value is the node that is chosen.

import { h } from "./dom.js";
import { kindOf } from "./parts.js";

// Cells and the gaps between them, in pixels: the largest that keep a pool within HIGH.
const SIZES = [[13, 2], [9, 2], [7, 2], [5, 1], [4, 1]], HIGH = 560;

function size(number, room) {
  return SIZES.find(([cell, gap]) => Math.ceil(number / Math.floor((room + gap) / (cell + gap))) * (cell + gap) <= HIGH)
    ?? SIZES.at(-1);
}

// `of(name)` is [state, loud]; `choose(index)` is called with the cell that was chosen.
export function grid(label, names, of, chosen, choose, open) {
  const at = Math.max(0, names.indexOf(chosen));
  return h("canvas", {
    tabindex: 0, role: "slider", class: "grid", "data-key": `grid ${label}`,
    "aria-label": label, "aria-orientation": "horizontal", "aria-valuemin": 1, "aria-valuemax": names.length,
    "aria-valuenow": at + 1, "aria-valuetext": `${names[at]}: ${of(names[at])[0]}`,
    "data-chosen": chosen && names.includes(chosen) ? chosen : "",
    drawn: (canvas) => paint(canvas, names, of, chosen),
    on: {
      click: (event, canvas) => {
        const box = canvas.getBoundingClientRect();
        const column = Math.floor((event.clientX - box.left) / canvas.$step);
        const row = Math.floor((event.clientY - box.top) / canvas.$step);
        const index = row * canvas.$columns + column;
        if (column < canvas.$columns && index < names.length) choose(names[index]);
      },
      keydown: (event, canvas) => {
        const far = canvas.$columns;
        const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: far, ArrowUp: -far, PageDown: 10 * far, PageUp: -10 * far };
        if (event.key === "Enter") return open(names[at]);
        let to = at + (steps[event.key] ?? 0);
        if (event.key === "Home") to = 0;
        else if (event.key === "End") to = names.length - 1;
        else if (!(event.key in steps)) return undefined;
        event.preventDefault();
        return choose(names[Math.min(names.length - 1, Math.max(0, to))]);
      },
    },
  });
}

function paint(canvas, names, of, chosen) {
  const room = canvas.parentElement.clientWidth;
  const [cell, gap] = size(names.length, room), step = cell + gap;
  const columns = Math.max(1, Math.min(names.length, Math.floor((room + gap) / step)));
  const width = columns * step, height = Math.ceil(names.length / columns) * step;
  const sharp = Math.min(devicePixelRatio || 1, 2);
  Object.assign(canvas, { $columns: columns, $step: step });
  if (canvas.width !== Math.round(width * sharp) || canvas.height !== Math.round(height * sharp)) {
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const style = getComputedStyle(canvas);
  const context = canvas.getContext("2d", { willReadFrequently: true });  // drawn by the processor, in milliseconds
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, width, height);
  const filled = {}, stroked = {};
  names.forEach((name, i) => {
    const kind = kindOf(of(name)[0]);
    shape(filled[kind] ??= new Path2D(), stroked[kind] ??= new Path2D(), kind,
      (i % columns) * step, Math.floor(i / columns) * step, cell);
  });
  for (const kind of Object.keys(filled)) {
    context.fillStyle = context.strokeStyle = style.getPropertyValue(`--${kind}`);
    context.lineWidth = kind === "unknown" ? 1.8 : kind !== "down" ? 1.5 : cell > 8 ? 3 : 2;
    context.fill(filled[kind]);
    context.stroke(stroked[kind]);
  }
  const at = names.indexOf(chosen);
  if (at >= 0) {
    context.strokeStyle = style.getPropertyValue("--mark");
    context.lineWidth = 2;
    context.strokeRect((at % columns) * step, Math.floor(at / columns) * step, cell, cell);
  }
}

// A shape of its own for each state: colours alone tell some people nothing.
function shape(fill, stroke, kind, x, y, cell) {
  const half = cell / 2;
  if (kind === "use") fill.rect(x, y, cell, cell);
  else if (cell < 6 && kind === "held") fill.rect(x, y + 1, cell, 2);
  else if (kind === "held") for (const part of [0, half - 1, cell - 2]) fill.rect(x, y + part, cell, 2);
  else if (kind === "unknown") {
    if (cell > 6) question(fill, stroke, x, y, cell);
    else fill.rect(x + 1, y + 1, cell - 2, cell - 2);
  } else if (kind === "down") {
    stroke.moveTo(x + 1, y + 1);
    stroke.lineTo(x + cell - 1, y + cell - 1);
    stroke.moveTo(x + cell - 1, y + 1);
    stroke.lineTo(x + 1, y + cell - 1);
  } else {
    if (kind !== "off") stroke.rect(x + 1, y + 1, cell - 2, cell - 2);
    if (kind === "boot") fill.rect(x, y + half, cell, half);
    if (kind === "off" || kind === "leaving") fill.rect(x + half - 1, y + half - 1, 2, 2);
  }
}

function question(fill, stroke, x, y, cell) {
  const middle = x + cell / 2, r = cell / 4;
  stroke.moveTo(middle - r, y + 1 + r);
  stroke.arc(middle, y + 1 + r, r, Math.PI, Math.PI / 2);
  stroke.lineTo(middle, y + cell * 0.68);
  fill.rect(middle - 1, y + cell * 0.82, 2, cell * 0.18);
}
