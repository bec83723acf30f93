"use strict";
// The report's curves and switches. The numbers come from the JSON of id "curves"; text is set as text.

const CURVES = JSON.parse(document.getElementById("curves").textContent);
const shown = {over: "updates", log: false, hidden: new Set()};

function drawn(figure) {
  const data = figure.data.map(trace => ({...trace, x: trace.meta.over[shown.over],
    visible: !shown.hidden.has(trace.meta.run)}));
  const layout = structuredClone(figure.layout);
  layout.xaxis.title.text = CURVES.over[shown.over];
  layout.yaxis.type = shown.log ? "log" : "linear";
  return [data, layout];
}

const HOW = {displayModeBar: false, responsive: true, displaylogo: false};

function drawCurves() {
  for (const [name, figure] of Object.entries(CURVES.figures)) {
    const [data, layout] = drawn(figure);
    Plotly.react(document.getElementById(`curve-${name}`), data, layout, HOW);
  }
}

document.addEventListener("change", event => {
  const {name, value, checked} = event.target;
  if (name === "over") shown.over = value;
  else if (name === "log") shown.log = checked;
  else if (name === "runs" && checked) shown.hidden.delete(Number(value));
  else if (name === "runs") shown.hidden.add(Number(value));
  else if (name === "origin") { document.body.classList.toggle("origins", checked); return; }
  else if (name.startsWith("validation")) { showValidation(event.target.closest(".samples"), value); return; }
  else return;
  drawCurves();
});

// Of the translations made at each validation, those of one, or all.
function showValidation(place, validation) {
  for (const one of place.querySelectorAll("[data-validation]")) {
    one.hidden = validation !== "all" && one.dataset.validation !== validation;
  }
}

drawCurves();
for (const [metric, figure] of Object.entries(CURVES.averages)) {
  Plotly.react(document.getElementById(`curve-averages-${metric}`), figure.data, figure.layout, HOW);
}
