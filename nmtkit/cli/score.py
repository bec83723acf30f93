"""`nmtkit score`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import QuietOption

if TYPE_CHECKING:
    from nmtkit.evaluation.scoring import Score


def command(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="Folder of a run with translations.", show_default=False)
    ] = None,
    hypothesis: Annotated[
        Path | None, typer.Option("--hypothesis", metavar="FILE", help="Translations, one a line, plain or .gz.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="FILE", help="Reference translations.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--source", metavar="FILE", help="The source; only its number of lines is checked.")
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option("--target-language", metavar="de", help="Needed for scores that tokenise as Moses does."),
    ] = None,
    text: Annotated[
        str, typer.Option("--text", metavar="plain|tokenized", help="Whether the text is split into words already.")
    ] = "plain",
    metric: Annotated[
        list[str] | None, typer.Option("--metric", metavar="M", help="Only this metric; may be repeated.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Writes the scores there, keyed by the hypothesis file."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Translations to scores, each with its name and signature; for a run also what its training cost.

    Examples: nmtkit score runs/quickstart;
    nmtkit score --hypothesis out.de --reference test.de --target-language de
    """
    from nmtkit import console

    console.set_up(quiet=quiet)
    if (run is None) == (hypothesis is None and reference is None):
        raise typer.BadParameter("give a RUN, or --hypothesis and --reference")
    if run is not None:
        if source or target_language or metric or json_file or text != "plain":
            raise typer.BadParameter("a RUN says all itself; --source, --text and the others go with --hypothesis")
        _score_run(run)
        return
    if hypothesis is None or reference is None:
        raise typer.BadParameter("--hypothesis and --reference belong together")
    if text not in ("plain", "tokenized"):
        raise typer.BadParameter(f"{text!r} is not one of plain, tokenized", param_hint="--text")
    _score_files(hypothesis, reference, source, target_language, text, metric or None, json_file)


def _score_files(
    hypothesis: Path,
    reference: Path,
    source: Path | None,
    target_language: str | None,
    text: str,
    metrics: list[str] | None,
    json_file: Path | None,
) -> None:
    from nmtkit.errors import DataError
    from nmtkit.evaluation.scoring import left_out, score, scores_as_json
    from nmtkit.files import read_lines, write_json

    lines = {path: read_lines(path) for path in (hypothesis, reference, source) if path is not None}
    for path in lines:
        if len(lines[path]) != len(lines[hypothesis]):
            raise DataError(
                f"{hypothesis} has {len(lines[hypothesis])} lines, but {path} has {len(lines[path])}; "
                "line n of one must belong to line n of the other"
            )
    if not lines[hypothesis]:
        raise DataError(f"{hypothesis} and {reference} are empty: there is nothing to score")
    kind = "tokenized" if text == "tokenized" else "plain"
    scores = score(lines[hypothesis], lines[reference], target_language=target_language, text=kind, metrics=metrics)  # type: ignore[arg-type]
    missing = left_out(target_language=target_language, text=kind) if metrics is None else {}  # type: ignore[arg-type]
    print_scores({str(hypothesis): scores}, missing)
    if json_file is not None:
        write_json(json_file, {str(hypothesis): scores_as_json(scores)})


def _score_run(run: Path) -> None:
    from nmtkit.files import read_json
    from nmtkit.pipeline import score_run

    print_scores(score_run(run), {})
    print_cost(read_json(run / "cost.json"))


def print_scores(scores: dict[str, dict[str, "Score"]], missing: dict[str, str]) -> None:
    """Prints a table of scores; below it each one's signature, what it may be compared to, and what was left out."""
    from nmtkit import console
    from nmtkit.evaluation.scoring import comparable_to

    rows = [
        [name, metric, f"{entry.score:.2f}", entry.details]
        for name, entries in scores.items()
        for metric, entry in entries.items()
    ]
    signatures = {metric: entry.signature for entries in scores.values() for metric, entry in entries.items()}
    notes = ["Signature of each metric, and what it may be compared to:"]
    notes += [f"  {metric}  {signature}\n      {comparable_to(metric)}" for metric, signature in signatures.items()]
    notes += [f"  {metric}  left out: {reason}" for metric, reason in missing.items()]
    console.print_table("Scores", ["test", "metric", "score", "details"], rows, notes=notes)


def print_cost(cost: dict) -> None:
    """Prints what a training has cost."""
    from nmtkit import console

    rows = [
        ["updates", f"{cost['updates']:,}"],
        ["target tokens seen", f"{cost['target_tokens']:,}"],
        [
            "time",
            f"{console.duration(cost['seconds'])} on {cost['processes']} x {cost['device']} ({cost['precision']})",
        ],
        ["FLOPs, counted", f"{cost['flops']:.3g} ({cost['flops_per_second'] / 1e9:.1f} GFLOP/s)"],
        [
            "FLOPs, the paper's way",
            f"{cost['flops_paper_estimate']:.3g} (time x devices x {cost['sustained_flops_per_second'] / 1e9:.1f} "
            f"GFLOP/s, {cost['sustained_source']})",
        ],
    ]
    console.print_table("Training cost", ["what", "value"], rows)
