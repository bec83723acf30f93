"""`nmtkit compare`."""

from pathlib import Path
from typing import Annotated

import typer

from nmtkit.cli.options import QuietOption, check_files


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN RUN ...", help="Folders of runs. The first is the baseline.", show_default=False),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="M",
            help="Metric; may be repeated.  [default: sacrebleu, chrf2 and, where possible, bleu-tokenized; "
            "evalb for trees]",
        ),
    ] = None,
    paired: Annotated[
        str, typer.Option("--paired", metavar="bootstrap|randomization", help="Significance test to use.")
    ] = "bootstrap",
    trials: Annotated[
        int | None,
        typer.Option("--trials", metavar="N", min=1, help="Trials of the test.  [default: 1000; randomization: 10000]"),
    ] = None,
    sentences: Annotated[
        int, typer.Option("--sentences", metavar="N", min=0, help="Number of changed sentences to show.")
    ] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="File for all results as JSON.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Compare runs: settings that differ, scores with significance tests, cost, and changed sentences.

    The runs must have identical test sets.

    Example: nmtkit compare runs/base runs/pre-norm --metric sacrebleu
    """
    from nmtkit import console
    from nmtkit.run import Run

    if paired not in ("bootstrap", "randomization"):
        raise typer.BadParameter(f"{paired!r} is not one of bootstrap, randomization", param_hint="--paired")
    if len(runs) < 2:
        raise typer.BadParameter("give at least two runs")
    owned = [
        path for run in map(Run, runs) for path in (run.recipe_file, run.metrics, run.prediction, run.scores, run.cost)
    ]
    check_files([("--json", json_file)], [("a run", path) for path in owned])
    console.set_up(quiet=quiet)

    from nmtkit.cli.cost import print_tables
    from nmtkit.evaluation.compare import compare_runs, comparison_tables
    from nmtkit.files import write_json

    comparison = compare_runs(runs, metrics=metric, method=paired, trials=trials, num_sentences=sentences)  # type: ignore[arg-type]
    print_tables(comparison_tables(comparison))
    if json_file is not None:
        write_json(json_file, comparison.as_json())
