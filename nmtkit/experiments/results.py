"""The results of a sweep: SWEEP/ablations.json, and the same as tables in Markdown, HTML and on the screen."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.config.schema import Recipe
from nmtkit.console import amount, with_decimals
from nmtkit.evaluation.cost_tables import Table
from nmtkit.experiments.rows import Finding, PlannedRun, Sweep
from nmtkit.files import write_text
from nmtkit.json_toml import write_json
from nmtkit.lines import write_lines
from nmtkit.page import page, table, text

_COLUMNS = [
    "row", "N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "ε_ls", "updates", "PPL", "BLEU", "params (M)", "FLOPs",
]  # fmt: skip
_PUBLISHED = {"perplexity": ("paper: PPL", 2), "bleu": ("paper: BLEU", 1), "parameters": ("paper: params (M)", 0)}
"""Titles of the columns with published results, and their decimals."""
_NOTE = (
    "PPL: perplexity per subword token, which compares within one vocabulary only. Scores are taken on the "
    "validation set, of one checkpoint without averaging (the last one; under patience the best). Of several seeds: "
    "the mean, with the lowest and highest in brackets."
)
Results = Mapping[str, dict[str, Any]]
"""Results of finished runs by name."""


def make_report(
    recipe: Recipe, sweep: Sweep, runs: Sequence[PlannedRun], results: Results, failures: Mapping[str, str]
) -> dict[str, Any]:
    """Return the content of ablations.json.

    Args:
        failures: errors of failed runs by name.
    """
    rows = {}
    for name in dict.fromkeys(run.row.name for run in runs):
        rows[name] = _row_report([run for run in runs if run.row.name == name], results, failures)
    compared = [_compare(finding, rows) for finding in sweep.findings if {finding.better, finding.other} <= set(rows)]
    return {"title": sweep.title, "recipe": recipe.name, "rows": list(rows.values()), "findings": compared}


def _row_report(runs: Sequence[PlannedRun], results: Results, failures: Mapping[str, str]) -> dict[str, Any]:
    """Return the results of a row; ``runs`` are its runs with different seeds."""
    model, training = runs[0].recipe.model, runs[0].recipe.training
    done = [results[run.name] for run in runs if run.name in results]
    return {
        "name": runs[0].row.name,
        "group": runs[0].row.group,
        "encoder_layers": 0 if model.is_joined else model.encoder_layers,
        **{key: getattr(model, key) for key in ("decoder_layers", "d_model", "d_ff", "num_heads")},
        "d_k": model.key_width,
        "d_v": model.value_width,
        "dropout": model.dropout,
        "label_smoothing": training.label_smoothing,
        "positions": model.positions,
        **{
            key: _summary([result.get(key) for result in done])
            for key in ("updates", "perplexity", "bleu", "flops", "seconds")
        },
        "parameters": done[0]["parameters"] if done else None,
        "paper": runs[0].row.paper.model_dump(),
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "state": "finished" if run.name in results else "failed" if run.name in failures else "to do",
                "error": failures.get(run.name),
                "result": results.get(run.name),
            }
            for run in runs
        ],
    }


def _summary(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return mean and range; None if there is no value, or that of a run that diverged is missing or not finite."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or len(finite) < len(values):
        return None
    return {"mean": sum(finite) / len(finite), "lowest": min(finite), "highest": max(finite)}


def _compare(finding: Finding, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a finding with its verdict: undecided if the ranges of several seeds overlap.

    Verdicts from a single seed are marked, as chance alone can cause such a difference.
    """
    better, other = rows[finding.better], rows[finding.other]
    compared: dict[str, Any] = {**finding.model_dump(), "verdict": "to do", "difference": None}
    published = [row["paper"][finding.metric] for row in (better, other)]
    compared["paper_difference"] = None if None in published else published[0] - published[1]
    ours, theirs = better[finding.metric], other[finding.metric]
    num_finished = min(_num_finished(better), _num_finished(other))
    if ours is None or theirs is None:
        if num_finished:
            # With a perplexity in all runs, none diverged.
            has_no_bleu = better["perplexity"] and other["perplexity"]
            compared["verdict"] = f"not comparable: a run {'has no BLEU' if has_no_bleu else 'diverged'}"
        elif any(all(run["state"] == "failed" for run in row["runs"]) for row in (better, other)):
            compared["verdict"] = "not comparable: a run failed"
        return compared
    difference = compared["difference"] = ours["mean"] - theirs["mean"]
    # Of one seed, lowest and highest are the same, so two rows are always apart unless equal.
    is_apart = ours["lowest"] > theirs["highest"] or theirs["lowest"] > ours["highest"]
    if finding.within is not None:
        holds = not is_apart or abs(difference) <= finding.within
    else:
        holds = difference > 0 if finding.metric == "bleu" else difference < 0
    compared["verdict"] = "holds" if holds else "does not hold"
    if finding.within is None and not is_apart:
        compared["verdict"] = (
            f"undecided: the {'scores are equal' if difference == 0 and num_finished == 1 else 'seeds overlap'}"
        )
    if num_finished == 1:
        compared["verdict"] += " (one seed)"
    return compared


def _num_finished(row: dict[str, Any]) -> int:
    return sum(run["result"] is not None for run in row["runs"])


def write_report(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Write ablations.json, ablations.md and ablations.html."""
    paths = [folder / f"ablations.{kind}" for kind in ("json", "md", "html")]
    write_json(paths[0], report)
    markdown, body = [], []
    for level, made in enumerate(result_tables(report), start=1):
        cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in made.rows]
        markdown += ["#" * level + f" {made.title}", ""]
        markdown += [f"| {' | '.join(row)} |" for row in (made.columns, ["---"] * len(made.columns), *cells)]
        markdown += [line for note in made.notes for line in ("", note)] + [""]
        body += [f"<h{level}>{text(made.title)}</h{level}>"]
        body += [table(made.columns, [[text(cell) for cell in row] for row in made.rows])]
        body += [f"<p>{text(note)}</p>" for note in made.notes]
    if failures := failures_of(report):
        markdown += ["## Failed", "", *(f"- {failure}" for failure in failures), ""]
        body += ["<h2>Failed</h2><ul>", *(f"<li>{text(failure)}</li>" for failure in failures), "</ul>"]
    write_lines(paths[1], markdown[:-1])
    style = "body { max-width: 84rem; } td { white-space: nowrap; }"
    write_text(paths[2], page(f"{report['title']}; recipe {report['recipe']}", body, style=style))
    return paths


def result_tables(report: dict[str, Any]) -> list[Table]:
    """Return the table of rows, without columns that no row fills, and the table of findings, if any."""
    has_published = any(value is not None for row in report["rows"] for value in row["paper"].values())
    published = _PUBLISHED if has_published else {}
    title = f"{report['title']}; recipe {report['recipe']}"
    note = _NOTE + _precision_note(report)
    rows = []
    for row in report["rows"]:
        encoder, decoder = row["encoder_layers"], row["decoder_layers"]
        is_failed = any(run["error"] for run in row["runs"])
        without_value = "failed" if is_failed else "diverged" if _num_finished(row) else "to do"
        published_values = [(row["paper"][key], decimals) for key, (_, decimals) in published.items()]
        rows.append([
            row["name"],
            str(decoder) if encoder in (0, decoder) else f"{encoder}+{decoder}",
            *(str(row[key]) for key in ("d_model", "d_ff", "num_heads", "d_k", "d_v")),
            f"{row['dropout']:g}",
            f"{row['label_smoothing']:g}",
            f"{row['updates']['mean']:,.0f}" if row["updates"] else "",
            _seed_range(row, "perplexity", 2) or without_value,
            _seed_range(row, "bleu", 1),
            _millions(row["parameters"]) if row["parameters"] else "",
            amount(row["flops"]["mean"]) if row["flops"] else "",
            *("" if value is None else f"{value:.{decimals}f}" for value, decimals in published_values),
        ])  # fmt: skip
    columns = [*_COLUMNS, *(column for column, _ in published.values())]
    filled = [index for index in range(len(columns)) if any(cells[index] for cells in rows)]
    rows = [[cells[index] for index in filled] for cells in rows]
    tables = [Table(title, [columns[index] for index in filled], rows, [note])]
    if report["findings"]:
        differences = ["difference", "paper_difference"] if has_published else ["difference"]
        titles = ["finding", "by", "difference", *(["in the paper"] if has_published else []), "here"]
        rows = [
            [
                finding["text"],
                f"{'BLEU' if finding['metric'] == 'bleu' else 'PPL'}, {finding['better']} - {finding['other']}",
                *(_difference_text(finding[key]) for key in differences),
                finding["verdict"],
            ]
            for finding in report["findings"]
        ]
        tables.append(Table("Findings", titles, rows, []))
    return tables


def _precision_note(report: dict[str, Any]) -> str:
    """Return the precision of the training, by run where it differs."""
    runs: dict[str, list[str]] = {}
    for run in (run for row in report["rows"] for run in row["runs"]):
        if precision := (run["result"] or {}).get("precision"):
            runs.setdefault(precision, []).append(run["name"])
    shown = [f"in {precision}: {', '.join(names)}" for precision, names in runs.items()] if len(runs) > 1 else []
    return f" Trained {'; '.join(shown or [f'in {precision}' for precision in runs])}." if runs else ""


def _seed_range(row: dict[str, Any], key: str, decimals: int) -> str:
    if row[key] is None:
        return ""
    mean, lowest, highest = (with_decimals(row[key][part], decimals) for part in ("mean", "lowest", "highest"))
    return f"{mean} ({lowest} to {highest})" if _num_finished(row) > 1 else mean


def _millions(parameters: float) -> str:
    return f"{parameters / 1e6:.2f}" if parameters >= 1e6 else f"{parameters / 1e6:.3g}"


def _difference_text(value: float | None) -> str:
    return "" if value is None else ("\u2212" if value < 0 else "+") + with_decimals(abs(value), 2)


def failures_of(report: dict[str, Any]) -> list[str]:
    """Return a line for every run that failed."""
    return [f"{run['name']}: {run['error']}" for row in report["rows"] for run in row["runs"] if run["error"]]
