"""Common elements of all HTML pages: one file, nothing from the network, light and dark colours, readable on a phone.

Foreign text (sentences, names) is converted to HTML by `text`, and data for scripts by `json_script`; both accept any
text. The scripts of pages set text as text (`textContent`), never as HTML.
"""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

HUES = ("#2a78c2", "#d0671f", "#2d9a6a", "#b8478f", "#8a7a1c", "#7561d0", "#1f97a6", "#cb4b4b")
"""Distinct colours of lines, for white and black backgrounds."""

_LIGHT = """--ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --ground: #ffffff; --panel: #f6f8fa; --accent: #1f6fb4;
  --source: #2a6fb8; --target: #c8641b; --bad: #b3261e; color-scheme: light;"""
_DARK = """--ink: #e6edf3; --faint: #9198a1; --line: #3d444d; --ground: #0d1117; --panel: #151b23; --accent: #6cb0f5;
  --source: #6cb0f5; --target: #f0a066; --bad: #ff8b80; color-scheme: dark;"""

_STYLE = (
    f"""
:root {{ {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {_DARK} }} }}
:root[data-theme=dark] {{ {_DARK} }}
"""
    + """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
h1, h2, h3, p, li { overflow-wrap: anywhere; } td, th { overflow-wrap: break-word; }
p, figcaption, small { color: var(--faint); }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; }
.numbers div { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.numbers b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.none td { color: var(--faint); } td.error { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; }
"""
)

_SCREEN_STYLE = """
a { color: var(--accent); }
fieldset { border: 0; margin: 0; padding: 0; min-width: 0; display: flex; flex-wrap: wrap; gap: .25rem .35rem;
  align-items: center; }
legend { float: left; padding: 0 .35rem 0 0; color: var(--faint); font-size: .9rem; }
.switch { position: relative; display: inline-block; }
.switch input { position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; opacity: 0; cursor: pointer; }
.switch span, button.plain { display: block; padding: .15rem .6rem; border: 1px solid var(--line); border-radius: 1rem;
  font: inherit; font-size: .9rem; color: var(--ink); background: var(--ground); cursor: pointer; }
.switch input:checked + span { background: var(--panel); border-color: var(--accent); box-shadow: inset 0 0 0 1px
  var(--accent); }
:focus-visible, .switch input:focus-visible + span { outline: 3px solid var(--accent); outline-offset: 1px; }
.theme { justify-content: flex-end; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1.25rem; margin: .75rem 0; }
details { margin: .5rem 0; } summary { cursor: pointer; }
code, pre { font: .85rem/1.45 ui-monospace, monospace; } pre { overflow-x: auto; background: var(--panel);
  padding: .75rem; border-radius: .5rem; }
code { overflow-wrap: anywhere; }
@media print { .controls, .theme { display: none; } }
"""

BARS_STYLE = """
.bars svg { width: 100%; max-width: 34rem; height: auto; display: block; }
.bars text { fill: var(--faint); font-size: 12px; } .bars line { stroke: var(--line); }
.bars .first { fill: var(--source); } .bars .second { fill: var(--target); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .3em; }
.key.first::before { background: var(--source); } .key.second::before { background: var(--target); }
"""
"""The style of `bars`."""
_WIDTH, _ROW, _LABEL, _NUMBER = 420, 36, 92, 56
"""Width of a bar chart, its height per label, and the space left and right of the bars, in units of the picture."""

_THEME_SWITCH = """<fieldset class="theme"><legend>Colours</legend>
<label class="switch"><input type="radio" name="theme" value="" checked><span>system</span></label>
<label class="switch"><input type="radio" name="theme" value="light"><span>light</span></label>
<label class="switch"><input type="radio" name="theme" value="dark"><span>dark</span></label></fieldset>"""

_THEME_SCRIPT = """document.querySelector(".theme").addEventListener("change", event => {
  document.documentElement.dataset.theme = event.target.value;
});"""


def page(title: str, body: Sequence[str], *, style: str = "") -> str:
    """Return a complete page without scripts."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{plain(title)}</title><style>{_STYLE}{style}</style></head><body>",
        *body,
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def live_page(title: str, body: Sequence[str], *, style: str, scripts: Sequence[str]) -> str:
    """Return a complete page with a switch of colours, and with scripts that run after the page has been loaded.

    Args:
        scripts: JavaScript in which neither `</script` nor `<!--` occurs.
    """
    # HTML parsers look for these in strings and comments of a script, too.
    assert not any(re.search("</script|<!--", script, re.IGNORECASE) for script in scripts)
    ends = [f"<script>\n{script}\n</script>" for script in (_THEME_SCRIPT, *scripts)]
    return page(title, [_THEME_SWITCH, *body, *ends], style=_SCREEN_STYLE + style)


_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # pictures of control characters
    **dict.fromkeys((*range(0x7F, 0xA0), *range(0xD800, 0xE000)), "\ufffd"),
}


def text(content: str) -> str:
    """Return text as HTML that shows exactly this text: no markup, no effect on the direction of text around it.

    Control characters are shown as their Unicode symbols or as U+FFFD, and lone surrogates as U+FFFD.
    """
    return f"<bdi>{plain(content)}</bdi>"


def plain(content: str) -> str:
    """Return text as HTML for attributes and titles, in which its direction cannot be isolated."""
    return escape(content.translate(_SHOWN))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return a table that scrolls sideways on a narrow screen.

    Args:
        columns: headings, as text.
        rows: cells, as HTML.
        numbers_from: index of the first right-aligned column.
    """
    first = len(columns) if numbers_from is None else numbers_from
    marks = [" class=number" if index >= first else "" for index in range(len(columns))]
    head = "".join(f"<th scope=col{mark}>{text(column)}</th>" for mark, column in zip(marks, columns, strict=True))
    lines = ("".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, row, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="group" aria-label="table">{whole}</div>'


def bars(title: str, series: Mapping[str, Mapping[str, int]]) -> str:
    """Return a chart of the shares in each series, with one label per row, so that it fits a narrow screen.

    Args:
        series: one or two, by name; each has counts by label, for the same labels. If there is none, return "".
    """
    if not series:
        return ""
    labels = list(next(iter(series.values())))
    totals = {name: sum(counts.values()) or 1 for name, counts in series.items()}
    shares = {name: {label: counts[label] / totals[name] for label in labels} for name, counts in series.items()}
    highest = max(max(of_series.values()) for of_series in shares.values())
    height = _ROW * len(labels)
    colours = dict(zip(series, ("first", "second"), strict=False))
    drawn = [f'<line x1="{_LABEL}" x2="{_LABEL}" y1="0" y2="{height}"/>']
    for row, label in enumerate(labels):
        top = row * _ROW
        drawn.append(f'<text x="{_LABEL - 8}" y="{top + 21}" text-anchor="end">{escape(label)}</text>')
        for index, (name, of_series) in enumerate(shares.items()):
            width = of_series[label] / highest * (_WIDTH - _LABEL - _NUMBER)
            y = top + 3 + index * 15
            drawn.append(f'<rect class="{colours[name]}" x="{_LABEL}" y="{y}" width="{width:.1f}" height="13"/>')
            drawn.append(f'<text x="{_LABEL + width + 6:.1f}" y="{y + 11}">{100 * of_series[label]:.1f} %</text>')
    keys = " ".join(f'<span class="key {colour}">{escape(name)}</span>' for name, colour in colours.items())
    return (
        f'<figure class="bars"><figcaption>{escape(title)}. {keys}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(drawn)}</svg></figure>'
    )


def json_script(name: str, value: Any) -> str:
    """Return a script element with data as JSON, which no text in the data can end."""
    # In ASCII, so that U+2028, lone surrogates and direction marks are escaped too.
    content = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{content}</script>'


def switches(kind: str, name: str, legend: str, choices: Sequence[tuple[str, str]], chosen: Sequence[str]) -> str:
    """Return a group of radio buttons or checkboxes.

    Args:
        kind: radio or checkbox.
        choices: value and label, as text.
        chosen: values that are selected at first.
    """
    inputs = "".join(
        f'<label class="switch"><input type="{kind}" name="{plain(name)}" value="{plain(value)}"'
        f"{' checked' if value in chosen else ''}><span>{text(label)}</span></label>"
        for value, label in choices
    )
    return f"<fieldset><legend>{plain(legend)}</legend>{inputs}</fieldset>"


def asset(package: str, name: str) -> str:
    """Return the text of a script or style sheet in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")
