"""Curves of runs over the course of training, drawn in the page by Plotly: the only door to it.

metrics.jsonl --curves--> {name: {"data", "layout"}}, as Plotly's own figures have it --report.js--> pictures

A trace holds the run's numbers as they are, over updates; report.js exchanges what they are drawn over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from nmtkit.errors import NmtkitError, to_install
from nmtkit.evaluation.report import Run
from nmtkit.page import HUES


def is_number(value: Any) -> bool:
    """Whether it can be drawn: of an update that was skipped it is None, of a training that diverged perhaps NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


OVER = {
    "updates": ("updates", "step", 1.0),
    "tokens": ("target tokens", "target_tokens", 1.0),
    "minutes": ("minutes", "seconds", 1 / 60),
    "flops": ("FLOPs", "flops", 1.0),
}
"""What curves can be drawn over: title of the axis, key of metrics.jsonl, what its value is multiplied by."""


@dataclass(frozen=True)
class Curve:
    """One picture.

    Attributes:
        title: with the unit.
        keys: of metrics.jsonl, each with its label; a dotted line for all but the last.
        scale: what a value is multiplied by.
        exponents: how Plotly writes large and small numbers of the axis.
    """

    title: str
    keys: tuple[tuple[str, str], ...]
    scale: float = 1.0
    exponents: str = "power"


CURVES = {
    "nll": Curve("Negative log-likelihood, nats a token", (("nll", "training"), ("valid_nll", "validation"))),
    "loss": Curve("Loss, nats a token, label smoothing included", (("loss", "training"),)),
    "bleu": Curve("BLEU of the validation text", (("valid_bleu", "validation"),)),
    "learning-rate": Curve("Learning rate", (("learning_rate", "training"),)),
    "gradient-norm": Curve("Gradient norm before clipping", (("gradient_norm", "training"),)),
    "speed": Curve("Target tokens a second", (("target_tokens_per_second", "training"),), exponents="SI"),
    "memory": Curve("Memory, GB", (("memory_bytes", "training"),), scale=1e-9),
}


def check_installed() -> None:
    """Raises NmtkitError where Plotly is not installed."""
    if find_spec("plotly") is None:
        raise NmtkitError(f"the report's curves need Plotly, which is not installed: {to_install('report')}")


def library() -> str:
    """Plotly's script, to stand in the page."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def curves(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Every picture that the runs have numbers for."""
    found = {name: _figure(curve, runs) for name, curve in CURVES.items()}
    return {name: figure for name, figure in found.items() if figure["data"]}


def averages(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """The averages of checkpoints that `average --search` tried: a picture a metric, a trace a run and spacing."""
    metrics = dict.fromkeys(one["metric"] for run in runs for one in run.get("averaging.json", "tried", default=[]))
    found = {metric: _averages_by(metric, runs) for metric in metrics}
    return {metric: figure for metric, figure in found.items() if figure["data"]}


def _averages_by(metric: str, runs: Sequence[Run]) -> dict[str, Any]:
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, run in enumerate(runs):
        tried = run.get("averaging.json", "tried", default=[])
        tried = [one for one in tried if one["metric"] == metric and is_number(one["score"])]
        for spacing in sorted({one["spacing"] for one in tried}):
            chosen = [one for one in tried if one["spacing"] == spacing]
            apart = {1: "each", 2: "every 2nd", 3: "every 3rd"}.get(spacing, f"every {spacing}th")
            figure.add_trace(
                go.Scatter(
                    x=[one["n"] for one in chosen],
                    y=[one["score"] for one in chosen],
                    name=_plain(apart if len(runs) == 1 else f"{run.name}, {apart}"),
                    mode="lines+markers",
                    line={
                        "color": HUES[number % len(HUES)],
                        "dash": {1: "solid", 2: "dash"}.get(spacing, "dot"),
                    },
                    hovertemplate="%{y:.5~g}<extra>%{fullData.name}</extra>",
                    meta={"run": number, "spacing": spacing},
                )
            )
    layout = _layout("averaged checkpoints", "power", has_legend=True)
    layout["xaxis"]["dtick"] = 1 if max((max(trace.x) for trace in figure.data), default=0) <= 20 else None
    figure.update_layout(**layout)
    return _as_json(figure)


def _figure(curve: Curve, runs: Sequence[Run]) -> dict[str, Any]:
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, run in enumerate(runs):
        for key, label in curve.keys:
            needed = (key, *(of for _, of, _ in OVER.values()))
            lines = [line for line in run.metrics if all(is_number(line.get(each)) for each in needed)]
            if lines:
                figure.add_trace(_trace(go, curve, runs, number, key, label, lines))
    figure.update_layout(**_layout(OVER["updates"][0], curve.exponents, has_legend=len(figure.data) > 1))
    return _as_json(figure)


def _as_json(figure: Any) -> dict[str, Any]:
    """As Plotly's script takes it, without its default template: 7 kB that the page's own style overrides."""
    description: dict[str, Any] = figure.to_plotly_json()
    layout = {key: value for key, value in description["layout"].items() if key != "template"}
    return {"data": [dict(trace) for trace in description["data"]], "layout": layout}


def _trace(
    go: Any, curve: Curve, runs: Sequence[Run], number: int, key: str, label: str, lines: list[dict[str, Any]]
) -> Any:
    name = label if len(runs) == 1 else f"{runs[number].name}, {label}" if len(curve.keys) > 1 else runs[number].name
    few = len(lines) <= 60
    return go.Scatter(
        x=[line["step"] for line in lines],
        y=[line[key] * curve.scale for line in lines],
        name=_plain(name),
        mode="lines+markers" if few else "lines",
        line={
            "color": HUES[number % len(HUES)],
            "width": 2,
            "dash": "dot" if key != curve.keys[-1][0] else "solid",
        },
        marker={"size": 5},
        hovertemplate="%{y:.5~g}<extra>%{fullData.name}</extra>",
        meta={
            "run": number,
            "key": key,
            "over": {over: [line[of] * scale for line in lines] for over, (_, of, scale) in OVER.items()},
        },
    )


def _plain(name: str) -> str:
    """A name in which Plotly, which takes some markup in names, finds none."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in name.replace("<", "‹").replace("&", "＆")
    )


def _layout(x_title: str, y_exponents: str, *, has_legend: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {"automargin": True, "zeroline": False, "fixedrange": True}
    return {
        "height": 300,
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "x unified",
        "showlegend": has_legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        "xaxis": {**axis, "title": {"text": x_title, "font": {"size": 13}}, "exponentformat": "SI"},
        "yaxis": {**axis, "exponentformat": y_exponents},
    }


STYLE = """
.curve { min-height: 300px; }
.js-plotly-plot text { fill: var(--faint) !important; }
.js-plotly-plot .gridlayer path, .js-plotly-plot .crisp { stroke: var(--line) !important; }
.js-plotly-plot .hoverlayer .legend text, .js-plotly-plot .hoverlayer .axistext text { fill: var(--ink) !important; }
.js-plotly-plot .hoverlayer .bg, .js-plotly-plot .hoverlayer .axistext path { fill: var(--panel) !important;
  stroke: var(--line) !important; }
"""
