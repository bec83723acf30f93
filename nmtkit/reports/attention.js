"use strict";
// The interactive picture of attention_maps.section: every element with data-attention="ID" becomes one, from the JSON
// of that id. Text comes as text and is set as text, never as HTML.

for (const place of document.querySelectorAll("[data-attention]")) {
  showAttention(place, JSON.parse(document.getElementById(place.dataset.attention).textContent));
}

function showAttention(place, data) {
  const ROW = 28, WEAKEST = 100, SHARES = 10000, COLOURS = 8;
  const state = {kind: data.first.kind, form: data.first.form, view: "lines", layer: 0, heads: new Set(), token: null,
    pinned: false};
  const map = () => data[state.form][state.kind];
  const heads = () => [...state.heads].sort((one, other) => one - other);

  function element(name, attributes = {}, children = []) {
    const made = name === "svg" || name === "line"
      ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function token(text) {
    return element("bdi", {}, [text]);
  }

  // A group of radio buttons or checkboxes; calls back with the value of the one that changed.
  function group(kind, legend, choices, isOn, onChange) {
    const name = `${place.dataset.attention}-${legend}`;
    const labels = choices.map(([value, text, style]) => {
      const input = element("input", {type: kind, name, value});
      input.checked = isOn(value);
      return element("label", {class: `switch ${style ?? ""}`}, [input, element("span", {}, [text])]);
    });
    const made = element("fieldset", {"data-switch": legend}, [element("legend", {}, [legend]), ...labels]);
    made.addEventListener("change", event => onChange(event.target.value, event.target.checked));
    return made;
  }

  function changed(key, value) {
    state[key] = value;
    state.layer = Math.min(state.layer, map().weights.length - 1);
    draw();
  }

  function controls() {
    const numbers = count => Array.from({length: count}, (_, index) => [String(index), String(index + 1)]);
    const made = element("div", {class: "controls"});
    made.append(
      group("radio", "Attention", Object.entries(data[state.form]).map(([kind, entry]) => [kind, entry.title]),
        value => value === state.kind, value => changed("kind", value)),
      group("radio", "Layer", numbers(map().weights.length), value => Number(value) === state.layer,
        value => changed("layer", Number(value))),
      headSwitches(numbers(map().weights[0].length)),
      group("radio", "View", [["lines", "lines"], ["matrix", "matrix"]], value => value === state.view,
        value => changed("view", value)),
      group("radio", "Tokens", [["pieces", "pieces"], ["words", "words"]], value => value === state.form,
        value => changed("form", value)));
    return made;
  }

  function headSwitches(numbers) {
    const made = group("checkbox", "Heads", numbers.map(([value, text]) => [value, text, `head-${value % COLOURS}`]),
      value => state.heads.has(Number(value)), (value, on) => {
        if (on) state.heads.add(Number(value)); else state.heads.delete(Number(value));
        draw();
      });
    const all = element("button", {type: "button", class: "plain", "data-heads": "all"}, ["all or none"]);
    all.addEventListener("click", () => {
      const missing = state.heads.size < numbers.length;
      state.heads = new Set(missing ? numbers.map(([value]) => Number(value)) : []);
      draw();
    });
    made.append(all);
    return made;
  }

  // The weights between a token that was chosen and those of the other side: [other, [weight of each chosen head]].
  function weightsOf({side, index}) {
    const layer = map().weights[state.layer];
    const others = side === "rows" ? map().columns : map().rows;
    return others.map((_, other) => heads().map(
      head => side === "rows" ? layer[head][index][other] : layer[head][other][index]));
  }

  function lines() {
    const {rows, columns} = map();
    const height = ROW * Math.max(rows.length, columns.length);
    const svg = element("svg", {viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", "aria-hidden": "true"});
    for (const head of heads()) {
      const weights = map().weights[state.layer][head];
      for (let row = 0; row < rows.length; row++) for (let column = 0; column < columns.length; column++) {
        if (weights[row][column] < WEAKEST) continue;
        svg.append(element("line", {x1: 0, x2: 100, y1: (row + 0.5) * ROW, y2: (column + 0.5) * ROW,
          class: `head-${head % COLOURS}`, "stroke-opacity": weights[row][column] / SHARES,
          "vector-effect": "non-scaling-stroke", "data-row": row, "data-column": column}));
      }
    }
    return element("div", {class: "lines"}, [tokenList("rows", rows), svg, tokenList("columns", columns)]);
  }

  function tokenList(side, tokens) {
    const label = side === "rows" ? "Tokens that attend" : "Tokens that are attended to";
    return element("ol", {class: side, "aria-label": label}, tokens.map((text, index) => {
      const button = element("button", {type: "button", title: text, "aria-pressed": "false", "data-side": side,
        "data-index": index}, [token(text)]);
      const choose = () => { if (!state.pinned) choosing({side, index}); };
      button.addEventListener("mouseenter", choose);
      button.addEventListener("focus", choose);
      button.addEventListener("mouseleave", () => { if (!state.pinned) choosing(null); });
      button.addEventListener("blur", () => { if (!state.pinned) choosing(null); });
      button.addEventListener("click", () => {
        const again = state.pinned && state.token.side === side && state.token.index === index;
        state.pinned = !again;
        choosing(again ? null : {side, index});
      });
      return element("li", {}, [button]);
    }));
  }

  // Shows what one token attends to, or what attends to it; null: all of them.
  function choosing(chosen) {
    state.token = chosen;
    const weights = chosen ? weightsOf(chosen) : null;
    for (const line of place.querySelectorAll("line")) {
      const own = chosen && Number(chosen.side === "rows" ? line.dataset.row : line.dataset.column) === chosen.index;
      line.style.display = !chosen || own ? "" : "none";
    }
    for (const button of place.querySelectorAll(".lines button")) {
      const index = Number(button.dataset.index);
      const isChosen = chosen !== null && button.dataset.side === chosen.side && index === chosen.index;
      button.setAttribute("aria-pressed", String(isChosen && state.pinned));
      button.querySelector(".bars")?.remove();
      if (!chosen || button.dataset.side === chosen.side) continue;
      const bars = element("span", {class: "bars", "aria-hidden": "true"}, heads().map((head, at) => {
        const bar = element("i", {class: `head-${head % COLOURS}`});
        bar.style.opacity = weights[index][at] / SHARES;
        return bar;
      }));
      if (chosen.side === "rows") button.prepend(bars); else button.append(bars);
    }
    say(chosen, weights);
  }

  // The same in words and numbers.
  function say(chosen, weights) {
    const said = place.querySelector(".said");
    said.replaceChildren();
    if (!state.heads.size) { said.append("No head is chosen."); return; }
    if (!chosen) {
      said.append(`Layer ${state.layer + 1}, heads ${heads().map(head => head + 1).join(", ")}. `
        + "Point at a token, or go to it with the Tab key, to see its lines alone; click to keep them, Escape to let go.");
      return;
    }
    const others = chosen.side === "rows" ? map().columns : map().rows;
    const mean = weights.map(ofHeads => ofHeads.reduce((sum, weight) => sum + weight, 0) / ofHeads.length);
    const order = mean.map((_, index) => index).sort((one, other) => mean[other] - mean[one]).slice(0, 5);
    said.append(token(map()[chosen.side][chosen.index]),
      chosen.side === "rows" ? " attends to " : " is attended to by ");
    order.forEach((index, at) => said.append(at ? ", " : "", token(others[index]),
      ` ${(100 * mean[index] / SHARES).toFixed(1)} %`));
    said.append(state.heads.size > 1 ? " (mean of the chosen heads)." : ".");
  }

  function matrix() {
    const {rows, columns} = map();
    const chosen = heads(), layer = map().weights[state.layer];
    const head = element("tr", {}, [element("td"), ...columns.map(
      text => element("th", {scope: "col"}, [token(text)]))]);
    const body = rows.map((text, row) => element("tr", {}, [element("th", {scope: "row"}, [token(text)]),
      ...columns.map((_, column) => {
        const sum = chosen.reduce((total, at) => total + layer[at][row][column], 0);
        const percent = chosen.length ? 100 * sum / chosen.length / SHARES : 0;
        const cell = element("td", {}, [percent < 0.5 ? "" : String(Math.round(percent))]);
        cell.style.background = `color-mix(in srgb, var(--accent) ${Math.min(100, percent)}%, var(--panel))`;
        if (percent > 55) cell.style.color = "var(--ground)";
        return cell;
      })]));
    const table = element("table", {class: "matrix"}, [element("thead", {}, [head]), element("tbody", {}, body)]);
    return element("div", {class: "wide", tabindex: "0"}, [table]);
  }

  function draw() {
    const focused = document.activeElement?.closest("[data-switch]") && place.contains(document.activeElement)
      ? [document.activeElement.closest("[data-switch]").dataset.switch, document.activeElement.value,
        document.activeElement.dataset.heads] : null;
    state.pinned = false;
    state.token = null;
    const about = state.view === "lines" ? element("p", {class: "said", "aria-live": "polite"})
      : element("p", {}, [`Layer ${state.layer + 1}, mean of heads ${heads().map(head => head + 1).join(", ") || "none"}: `
        + "how many percent of its attention the token of a row gives to that of a column."]);
    place.replaceChildren(controls(), about, state.view === "lines" ? lines() : matrix());
    if (state.view === "lines") say(null, null);
    if (focused) {
      const [legend, value, all] = focused;
      const group = place.querySelector(`[data-switch="${legend}"]`);
      (all ? group.querySelector("button") : group.querySelector(`input[value="${value}"]`))?.focus();
    }
  }

  place.addEventListener("keydown", event => {
    if (event.key === "Escape" && state.view === "lines") { state.pinned = false; choosing(null); }
  });
  state.layer = map().weights.length - 1;
  state.heads = new Set(map().weights[0].map((_, head) => head));
  draw();
}
