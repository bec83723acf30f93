"""Curves of runs over the course of training, which report.js draws as SVG in the page.

metrics.jsonl --figures--> the numbers, each once, and which of them make up a picture --report.js--> pictures
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.reports.run_facts import RunFacts

MOST_REPORTS = 500
"""Reports of a run in its curves and their table, besides validations: more than a picture has columns of pixels."""


def is_number(value: Any) -> bool:
    """Return whether a value can be drawn: it is None for a skipped update, and may be NaN when training diverged."""
    return isinstance(value, int | float) and math.isfinite(value)


OVER = {
    "updates": ("updates", "step", 1.0),
    "tokens": ("{unit}", "target_tokens", 1.0),
    "minutes": ("minutes", "seconds", 1 / 60),
    "flops": ("FLOPs", "flops", 1.0),
}
"""The x-axes of curves: title, with the {unit} of the task; key of metrics.jsonl, factor of its values."""


@dataclass(frozen=True)
class Curve:
    """One picture.

    Attributes:
        title: with the unit; {unit} and {nll_title} are those of the task.
        keys: of metrics.jsonl, each with its label; a dotted line for all but the last.
        scale: factor of the values.
    """

    title: str
    keys: tuple[tuple[str, str], ...]
    scale: float = 1.0


CURVES = {
    "nll": Curve("{nll_title}", (("nll", "training"), ("valid_nll", "validation"))),
    "loss": Curve("Loss with smoothing and additional terms", (("loss", "training"),)),
    "bleu": Curve("BLEU on the validation set", (("valid_bleu", "validation"),)),
    "learning-rate": Curve("Learning rate", (("learning_rate", "training"),)),
    "gradient-norm": Curve("Gradient norm before clipping", (("gradient_norm", "training"),)),
    "speed": Curve("Speed, {unit} per second", (("target_tokens_per_second", "training"),)),
    "memory": Curve("Memory, GB", (("memory_bytes", "training"),), scale=1e-9),
}


def spacing_of_reports(run: RunFacts) -> int:
    """Return the distance between the reports that are shown, so that there are at most MOST_REPORTS."""
    return max(1, -(-len(run.metrics) // MOST_REPORTS))


def reports_shown(run: RunFacts) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl that are shown: evenly spaced ones, every validation and the last."""
    last = len(run.metrics)
    numbers = {*range(1, last + 1, spacing_of_reports(run)), *run.validations, *([last] if last else [])}
    return [run.metrics[number - 1] for number in sorted(numbers)]


def figures(runs: Sequence[RunFacts]) -> dict[str, Any]:
    """Return every picture that the runs have numbers for, and the numbers of each run, which pictures share."""
    numbers = [_numbers(run) for run in runs]
    words = {key: " or ".join(dict.fromkeys(getattr(run.task, key) for run in runs)) for key in ("unit", "nll_title")}
    found = {}
    for name, curve in CURVES.items():
        lines = []
        for index, of_run in enumerate(numbers):
            for key, label in curve.keys:
                if any(value is not None for value in of_run["y"][key]):
                    shown = _label(runs, index, label if len(curve.keys) > 1 else "")
                    lines.append({"run": index, "key": key, "label": shown, "dotted": key != curve.keys[-1][0]})
        if lines:
            found[name] = {"title": curve.title.format(**words), "lines": lines}
    over = {name: title.format(**words) for name, (title, _, _) in OVER.items()}
    return {"figures": found, "runs": numbers if found else [], "over": over}


def _numbers(run: RunFacts) -> dict[str, dict[str, list[float | None]]]:
    def short(value: float) -> float:  # eight digits are more than a picture shows
        return value if isinstance(value, int) else float(f"{value:.8g}")

    # All axes share one list of lines, so a line needs a finite value on each.
    lines = [line for line in reports_shown(run) if all(is_number(line.get(key)) for _, key, _ in OVER.values())]
    return {
        "x": {name: [short(line[key] * scale) for line in lines] for name, (_, key, scale) in OVER.items()},
        "y": {
            key: [short(line[key] * curve.scale) if is_number(line.get(key)) else None for line in lines]
            for curve in CURVES.values()
            for key, _ in curve.keys
        },
    }


def _label(runs: Sequence[RunFacts], index: int, label: str) -> str:
    return ", ".join(part for part in (runs[index].name if len(runs) > 1 else "", label) if part)


def predicted_returns(runs: Sequence[RunFacts]) -> dict[int, list[dict[str, Any]]]:
    """Return the mean predicted probability of the highest return at each step of play, by index of the run: a line for
    episodes with success and a dotted one for those without.

    Source: Figure 5 of Chen et al. 2021 (arXiv 2106.01345).
    """
    found = {}
    for index, run in enumerate(runs):
        means = run.get("play.json", "best_return_probabilities", default={})
        found[index] = [
            {"run": index, "label": name, "dotted": name != "success", "x": [*range(1, len(values) + 1)], "y": values}
            for name, values in means.items()
            if values
        ]
    return {index: lines for index, lines in found.items() if lines}


def averages(runs: Sequence[RunFacts]) -> dict[str, list[dict[str, Any]]]:
    """Return the averages of checkpoints that `average --search` tried: for each metric a line per run."""
    found: dict[str, list[dict[str, Any]]] = {}
    for index, run in enumerate(runs):
        rows = [row for row in run.get("averaging.json", "tried", default=[]) if is_number(row["score"])]
        for metric in dict.fromkeys(row["metric"] for row in rows):
            of_metric = [row for row in rows if row["metric"] == metric]
            x, y = [row["n"] for row in of_metric], [row["score"] for row in of_metric]
            found.setdefault(metric, []).append({"run": index, "label": _label(runs, index, ""), "x": x, "y": y})
    return found
