"""`nmtkit compare`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.json_toml import write_json


def command(
    runs: Annotated[list[Path], Argument(metavar="RUN RUN...", help="Folders of runs. The first is the baseline.")],
    metric: Annotated[
        list[str] | None,
        Option(
            metavar="M",
            help="Metric; may be repeated.  [default: sacrebleu, chrf2 and, where possible, bleu-tokenized; for "
            "summaries, ROUGE; for parsing, evalb; for classification, labels; for regression, numbers]",
        ),
    ] = None,
    paired: Annotated[
        Literal["bootstrap", "randomization", "mcnemar"] | None,
        Option(help="Significance test to use.  [default: mcnemar for accuracy, bootstrap for other scores]"),
    ] = None,
    trials: options.Trials = None,
    sentences: Annotated[
        int | None, Option(min=0, help="Number of sentences to show, those whose scores changed most.  [default: 5]")
    ] = None,
    json_file: Annotated[Path | None, Option("--json", help="File for all results as JSON.")] = None,
) -> None:
    """Compare runs: settings that differ, scores with significance tests, cost, and sentences whose score changed most.

    Test sets that all runs have must be identical; others are left out. Language models and Decision Transformers get
    no significance tests.

    Example: nmtkit compare runs/base runs/pre-norm --metric sacrebleu
    """
    from nmtkit.evaluation.compare import compare_runs, comparison_tables
    from nmtkit.run import Run

    if len(runs) < 2:
        raise BadParameter("give at least two runs")
    owned: list[Path] = []
    for run in map(Run, runs):
        owned += [run.recipe_file, run.metrics, run.prediction, run.scores, run.cost]
        owned += run.translations_record.parent.glob("*")
    if trials and paired == "mcnemar":
        raise BadParameter("McNemar's test has no trials", param_hint="--trials")
    options.check_files([("--json", json_file)], [("a run", path) for path in owned])
    comparison = compare_runs(runs, metrics=metric, method=paired, trials=trials, num_sentences=sentences)
    if json_file is not None:  # before a reader of stdout that has seen enough ends the command
        write_json(json_file, asdict(comparison))
    for table in comparison_tables(comparison):
        console.print_table(table.title, table.columns, table.rows, notes=table.notes)
