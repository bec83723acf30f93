"""The tables of scores that `score` and `run` print."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmtkit.evaluation.metrics import Score
    from nmtkit.evaluation.significance import Method, PairedResult

    Differences = dict[tuple[Method, str], dict[str, PairedResult]]
    """Of each test and metric, the result of each system; the first is the baseline."""


def print_scores(scores: dict[str, dict[str, "Score"]], missing: dict[str, str], *, of: str = "test") -> None:
    """Prints a table of scores; below it each one's signature, what it may be compared to, and what was left out.

    Args:
        of: what the scores are keyed by.
    """
    from nmtkit import console
    from nmtkit.evaluation.metrics import comparable_to

    def shown(metric: str, value: float) -> str:
        return f"{value:.4f}" if metric == "comet" else f"{value:.2f}"

    def interval(metric: str, score: "Score") -> str:
        found = score.interval
        return "" if found is None else f"{shown(metric, found.mean)} ± {shown(metric, found.half_width)}"

    short = _short_names(scores)
    all_scores = [(short[name], metric, score) for name, entries in scores.items() for metric, score in entries.items()]
    rows = [[name, metric, shown(metric, score.score), interval(metric, score)] for name, metric, score in all_scores]
    signatures = dict.fromkeys((metric, score.signature) for _, metric, score in all_scores)
    # As a column they would take so much of 80 characters that words of the others break.
    notes = [f"  {name}  {metric}  {score.details}" for name, metric, score in all_scores if score.details]
    notes = ["Precisions and lengths:", *notes, ""] if notes else []
    notes.append("Signature of each metric, and what it may be compared to:")
    notes += [f"  {metric}  {signature}\n      {comparable_to(metric)}" for metric, signature in signatures]
    intervals = [score.interval for _, _, score in all_scores if score.interval is not None]
    if intervals:
        first = intervals[0]
        notes.append(f"Intervals: 95 %, of {first.resamples} bootstrap resamples of the lines, seed {first.seed}.")
    notes += [f"  {metric}  left out: {reason}" for metric, reason in missing.items()]
    console.print_table("Scores", [of, "metric", "score", "95 % interval"], rows, notes=notes)


def print_differences(differences: "Differences") -> None:
    """Prints how the systems differ from the first, by each metric, with a p-value of each test."""
    from nmtkit import console
    from nmtkit.evaluation.significance import SIGNIFICANT_BELOW

    methods = list(dict.fromkeys(method for method, _ in differences))
    metrics = list(dict.fromkeys(metric for _, metric in differences))
    baseline, *others = systems = next(iter(differences.values()))
    short = _short_names(systems)
    rows = []
    for system in others:
        for metric in metrics:
            of_tests = [differences[method, metric][system] for method in methods]
            p_values = [f"{one.p_value:.4f}{'*' if one.is_significant else ''}" for one in of_tests]
            rows.append(
                [short[system], metric, f"{of_tests[0].score:.2f}", f"{of_tests[0].difference:+.2f}", *p_values]
            )
    notes = [f"* p < {SIGNIFICANT_BELOW}: chance alone would hardly make so large a difference on these lines."]
    notes += [
        f"  {method}, {metric}  {next(iter(of.values())).signature}" for (method, metric), of in differences.items()
    ]
    columns = ["system", "metric", "score", "difference", *(f"p, {method}" for method in methods)]
    console.print_table(f"Differences from {short[baseline]}", columns, rows, notes=notes)


def _short_names(names: Iterable[str]) -> dict[str, str]:
    """Return the file names of paths, or the paths where two have the same file name."""
    files = {name: Path(name).name for name in names}
    return files if len(set(files.values())) == len(files) else {name: name for name in files}
