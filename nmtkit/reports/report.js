"use strict";
// The report's curves and switches. The numbers come from the JSON of id "curves"; text is set as text.

const CURVES = JSON.parse(document.getElementById("curves").textContent);
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 260, LEFT = 56, RIGHT = 22, TOP = 8, BOTTOM = 40, MOST_POINTS = 60;
const shown = {over: "updates", log: false, hidden: new Set()};

function add(parent, name, attributes, content) {
  const made = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== undefined) made.textContent = content;
  parent.append(made);
  return made;
}

// A number in few characters: 1.2 k, 0.00123, 3.4e-7.
function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e21)) return value.toExponential(2).replace(/\.?0+e/, "e");
  const power = size < 1e3 ? 0 : Math.floor(Math.log10(size) / 3);
  return String(Number((value / 1000 ** power).toPrecision(4))) + ["", " k", " M", " G", " T", " P", " E"][power];
}

// Round numbers from low to high, about five; on a logarithmic axis powers of ten where it spans some.
function ticks(low, high, log) {
  const powers = Math.floor(Math.log10(high)) - Math.ceil(Math.log10(low));
  if (log && powers >= 1) {
    const step = Math.ceil(powers / 5), first = Math.ceil(Math.log10(low));
    return Array.from({length: Math.floor(powers / step) + 1}, (_, index) => 10 ** (first + index * step));
  }
  const rough = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(factor => factor * unit >= rough * 0.999) * unit;
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high; index++) {
    found.push(Number((index * step).toPrecision(12)));  // not 0.30000000000000004
  }
  return found;
}

// A function from numbers to pixels, with the ticks that lie on it.
function axis(values, from, to, log) {
  let low = Math.min(...values), high = Math.max(...values);
  if (low === high) {
    const room = Math.abs(low) / 2 || 1;
    [low, high] = log ? [low / 2, high * 2] : [low - room, high + room];
  }
  const place = log ? Math.log10 : value => value;
  const scale = value => from + (to - from) * (place(value) - place(low)) / (place(high) - place(low));
  return {scale, ticks: ticks(low, high, log)};
}

// Draws lines of {run, label, dotted, x, y} into a place, with what is below the pointer in numbers.
function draw(place, lines, title, log, named = false) {
  const drawn = lines.filter(line => !shown.hidden.has(line.run)).map(line => ({...line, points: line.x
    .map((x, index) => [x, line.y[index]]).filter(([, y]) => y !== null && (!log || y > 0))}));
  const points = drawn.flatMap(line => line.points);
  place.replaceChildren();
  const legend = add(place, "div", {class: "legend"});
  if (named || lines.length > 1) for (const line of drawn) add(legend, "span", {class: `run run-${line.run % CURVES.colours}`},
    line.dotted ? `${line.label} (dotted)` : line.label);
  if (!points.length) return;
  const width = Math.max(place.clientWidth, 240), bottom = HEIGHT - BOTTOM;
  const svg = place.appendChild(document.createElementNS(SVG, "svg"));
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const across = axis(points.map(([x]) => x), LEFT, width - RIGHT, false);
  const up = axis(points.map(([, y]) => y), bottom, TOP, log);
  for (const tick of up.ticks) {
    add(svg, "line", {class: "grid", x1: LEFT, x2: width - RIGHT, y1: up.scale(tick), y2: up.scale(tick)});
    add(svg, "text", {x: LEFT - 6, y: up.scale(tick) + 4, "text-anchor": "end"}, short(tick));
  }
  for (const tick of across.ticks) {
    add(svg, "text", {class: "tick", x: across.scale(tick), y: bottom + 16, "text-anchor": "middle"}, short(tick));
  }
  add(svg, "text", {x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle"}, title);
  for (const line of drawn) {
    const path = line.points.map(([x, y]) => `${across.scale(x).toFixed(1)} ${up.scale(y).toFixed(1)}`);
    const group = add(svg, "g", {class: `run-${line.run % CURVES.colours}`, "data-run": line.run, "data-key": line.key || ""});
    add(group, "path", {class: line.dotted ? "line dotted" : "line", d: `M${path.join("L")}`});
    if (line.points.length <= MOST_POINTS) {
      for (const [x, y] of line.points) add(group, "circle", {cx: across.scale(x), cy: up.scale(y), r: 2.5});
    }
  }
  follow(place, svg, drawn, across.scale, width);
}

function follow(place, svg, drawn, scale, width) {
  const at = add(svg, "line", {class: "at", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  const tip = add(place, "div", {class: "tip"});
  tip.hidden = true;
  svg.addEventListener("pointermove", event => {
    const pointer = event.offsetX * width / svg.clientWidth;
    const near = drawn.filter(line => line.points.length).map(line => [line, line.points.reduce((best, point) =>
      Math.abs(scale(point[0]) - pointer) < Math.abs(scale(best[0]) - pointer) ? point : best)]);
    tip.textContent = near.map(([line, [x, y]]) => `${line.label} ${short(y)} at ${short(x)}`.trim()).join("\n");
    tip.hidden = false;
    tip.style.left = `${Math.min(event.offsetX, Math.max(0, place.clientWidth - tip.offsetWidth))}px`;
    for (const end of ["x1", "x2"]) at.setAttribute(end, scale(near[0][1][0]));
    at.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; at.setAttribute("visibility", "hidden"); });
}

function drawCurves() {
  for (const [name, figure] of Object.entries(CURVES.figures)) {
    const lines = figure.lines.map(line => ({...line, x: CURVES.runs[line.run].x[shown.over],
      y: CURVES.runs[line.run].y[line.key]}));
    draw(document.getElementById(`curve-${name}`), lines, CURVES.over[shown.over], shown.log);
  }
  for (const [kind, title] of [["averages", "averaged checkpoints"], ["returns", "step"]]) {
    for (const [name, lines] of Object.entries(CURVES[kind])) {
      draw(document.getElementById(`curve-${kind}-${name}`), lines, title, false, kind === "returns");
    }
  }
}

document.addEventListener("change", event => {
  const {name, value, checked} = event.target;
  if (name === "over") shown.over = value;
  else if (name === "log") shown.log = checked;
  else if (name === "runs" && checked) shown.hidden.delete(Number(value));
  else if (name === "runs") shown.hidden.add(Number(value));
  else if (name.startsWith("validation")) { showValidation(event.target.closest(".samples"), value); return; }
  else return;
  drawCurves();
});
addEventListener("resize", drawCurves);

// Shows the translations of one validation, or of all.
function showValidation(place, validation) {
  for (const part of place.querySelectorAll("[data-validation]")) {
    part.hidden = validation !== "all" && part.dataset.validation !== validation;
  }
}

drawCurves();
