"""What came of a sweep: SWEEP/ablations.json, and the same as a table in Markdown, HTML and on the screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmtkit.config.schema import Recipe
from nmtkit.console import amount
from nmtkit.experiments.rows import Finding, PlannedRun, Sweep
from nmtkit.files import write_atomically, write_json, write_lines
from nmtkit.page import page, table, text

_COLUMNS = (
    "row", "N", "d_model", "d_ff", "h", "d_k", "d_v", "P_drop", "ε_ls", "updates", "PPL", "BLEU", "params (M)", "FLOPs",
)  # fmt: skip
_PUBLISHED_COLUMNS = ("paper: PPL", "BLEU", "params (M)")
_NOTE = (
    "PPL: perplexity per subword token, which compares within one vocabulary only. PPL and BLEU are taken on the "
    "validation set, of one checkpoint without averaging (the last one; under patience the best). Of several seeds: "
    "the mean, with the lowest and highest in brackets."
)
_PUBLISHED_NOTE = " The paper's numbers are of newstest2013."
Results = Mapping[str, dict[str, Any]]
"""By the name of a run what came of it."""


def make_report(
    recipe: Recipe, sweep: Sweep, runs: Sequence[PlannedRun], results: Results, failures: Mapping[str, str]
) -> dict[str, Any]:
    """What ablations.json holds.

    Args:
        failures: by the name of a run what was wrong.
    """
    names = dict.fromkeys(run.row.name for run in runs)
    rows = {name: _row_report([run for run in runs if run.row.name == name], results, failures) for name in names}
    compared = [_compare(finding, rows) for finding in sweep.findings if {finding.better, finding.other} <= set(rows)]
    return {"title": sweep.title, "recipe": recipe.name, "rows": list(rows.values()), "findings": compared}


def _row_report(runs: Sequence[PlannedRun], results: Results, failures: Mapping[str, str]) -> dict[str, Any]:
    """What came of a row; ``runs`` are its seeds."""
    model, training = runs[0].recipe.model, runs[0].recipe.training
    done = [results[run.name] for run in runs if run.name in results]
    return {
        "name": runs[0].row.name,
        "group": runs[0].row.group,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "d_model": model.d_model,
        "d_ff": model.d_ff,
        "num_heads": model.num_heads,
        "d_k": model.key_width,
        "d_v": model.value_width,
        "dropout": model.dropout,
        "label_smoothing": training.label_smoothing,
        "positions": model.positions,
        **{
            key: _summary([result[key] for result in done])
            for key in ("updates", "perplexity", "bleu", "flops", "seconds")
        },
        "parameters": done[0]["parameters"] if done else None,
        "paper": runs[0].row.paper.model_dump(),
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "state": _state(run.name, results, failures),
                "error": failures.get(run.name),
                "result": results.get(run.name),
            }
            for run in runs
        ],
    }


def _state(name: str, results: Results, failures: Mapping[str, str]) -> str:
    return "finished" if name in results else "failed" if name in failures else "to do"


def _summary(values: Sequence[float | int]) -> dict[str, float] | None:
    return {"mean": sum(values) / len(values), "lowest": min(values), "highest": max(values)} if values else None


def _compare(finding: Finding, rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Whether a finding holds here: with several seeds only if the seeds of the two rows do not overlap.

    A single seed is told, as chance alone may make as much of a difference.
    """
    better, other = rows[finding.better], rows[finding.other]
    compared: dict[str, Any] = {**finding.model_dump(), "verdict": "to do", "difference": None}
    published = [row["paper"][finding.metric] for row in (better, other)]
    compared["paper_difference"] = None if None in published else published[0] - published[1]
    ours, theirs = better[finding.metric], other[finding.metric]
    if ours is None or theirs is None:
        return compared
    compared["difference"] = ours["mean"] - theirs["mean"]
    sign = 1 if finding.metric == "bleu" else -1
    is_apart = ours["lowest"] > theirs["highest"] or theirs["lowest"] > ours["highest"]
    if finding.within is not None:
        holds = not is_apart or abs(compared["difference"]) <= finding.within
        compared["verdict"] = "holds" if holds else "does not hold"
    elif not is_apart:
        compared["verdict"] = "undecided: the seeds overlap"
    else:
        compared["verdict"] = "holds" if sign * compared["difference"] > 0 else "does not hold"
    if min(_num_finished(better), _num_finished(other)) == 1:
        compared["verdict"] += " (one seed)"
    return compared


def _num_finished(row: dict[str, Any]) -> int:
    """Seeds of a row that are trained and measured."""
    return sum(run["result"] is not None for run in row["runs"])


def write_report(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Writes ablations.json, ablations.md and ablations.html."""
    paths = [folder / f"ablations.{kind}" for kind in ("json", "md", "html")]
    write_json(paths[0], report)
    write_lines(paths[1], _markdown(report))
    with write_atomically(paths[2]) as file:
        file.write(_page(report))
    return paths


def _has_published(report: dict[str, Any]) -> bool:
    """Whether others' numbers are known of any row."""
    return any(value is not None for row in report["rows"] for value in row["paper"].values())


def note(report: dict[str, Any]) -> str:
    """What the table's numbers are."""
    return _NOTE + (_PUBLISHED_NOTE if _has_published(report) else "")


def columns(report: dict[str, Any]) -> tuple[str, ...]:
    """The titles of the table's columns; those of others' numbers where there are any."""
    return (*_COLUMNS, *(_PUBLISHED_COLUMNS if _has_published(report) else ()))


def row_cells(report: dict[str, Any]) -> list[list[str]]:
    """What stands in these columns for every row."""
    published = (("perplexity", 2), ("bleu", 1), ("parameters", 0)) if _has_published(report) else ()
    return [
        [
            row["name"],
            _layers(row),
            *(str(row[key]) for key in ("d_model", "d_ff", "num_heads", "d_k", "d_v")),
            f"{row['dropout']:g}",
            f"{row['label_smoothing']:g}",
            f"{row['updates']['mean']:,.0f}" if row["updates"] else "",
            _of_seeds(row, "perplexity", 2) or _unfinished(row),
            _of_seeds(row, "bleu", 1),
            f"{row['parameters'] / 1e6:.2f}" if row["parameters"] else "",
            amount(row["flops"]["mean"]) if row["flops"] else "",
            *("" if row["paper"][key] is None else f"{row['paper'][key]:.{digits}f}" for key, digits in published),
        ]
        for row in report["rows"]
    ]


def finding_columns(report: dict[str, Any]) -> tuple[str, ...]:
    """The titles of the columns that findings are told in."""
    return ("finding", "by", "difference", *(("in the paper",) if _has_published(report) else ()), "here")


def finding_cells(report: dict[str, Any]) -> list[list[str]]:
    """What stands in these columns for every finding whose rows are there."""
    differences = ("difference", "paper_difference") if _has_published(report) else ("difference",)
    return [
        [
            finding["text"],
            f"{'BLEU' if finding['metric'] == 'bleu' else 'PPL'}, {finding['better']} - {finding['other']}",
            *("" if finding[key] is None else f"{finding[key]:+.2f}".replace("-", "\u2212") for key in differences),
            finding["verdict"],
        ]
        for finding in report["findings"]
    ]


def failures_of(report: dict[str, Any]) -> list[str]:
    """A line for every run that failed."""
    return [f"{run['name']}: {run['error']}" for row in report["rows"] for run in row["runs"] if run["error"]]


def _layers(row: dict[str, Any]) -> str:
    encoder, decoder = row["encoder_layers"], row["decoder_layers"]
    return str(encoder) if encoder == decoder else f"{encoder}+{decoder}"


def _of_seeds(row: dict[str, Any], key: str, digits: int) -> str:
    summary = row[key]
    if summary is None:
        return ""
    mean, lowest, highest = (f"{summary[part]:.{digits}f}" for part in ("mean", "lowest", "highest"))
    return f"{mean} ({lowest} to {highest})" if _num_finished(row) > 1 else mean


def _unfinished(row: dict[str, Any]) -> str:
    return "failed" if any(run["error"] for run in row["runs"]) else "to do"


def _heading(report: dict[str, Any]) -> str:
    return f"{report['title']}; recipe {report['recipe']}"


def _markdown(report: dict[str, Any]) -> list[str]:
    lines = [f"# {_heading(report)}", "", *_markdown_table(columns(report), row_cells(report)), "", note(report)]
    if report["findings"]:
        lines += ["", "## Findings", "", *_markdown_table(finding_columns(report), finding_cells(report))]
    if failures := failures_of(report):
        lines += ["", "## Failed", "", *(f"- {failure}" for failure in failures)]
    return lines


def _markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *cells)]


def _page(report: dict[str, Any]) -> str:
    heading = text(_heading(report))
    body = [f"<h1>{heading}</h1>", _page_table(columns(report), row_cells(report)), f"<p>{text(note(report))}</p>"]
    if report["findings"]:
        body += ["<h2>Findings</h2>", _page_table(finding_columns(report), finding_cells(report))]
    if failures := failures_of(report):
        body += ["<h2>Failed</h2><ul>", *(f"<li>{text(failure)}</li>" for failure in failures), "</ul>"]
    return page(_heading(report), body, style="body { max-width: 84rem; } td { white-space: nowrap; }")


def _page_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(titles, [[text(cell) for cell in row] for row in rows])
