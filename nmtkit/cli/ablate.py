"""`nmtkit ablate`."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.config.recipe import load_recipe
from nmtkit.errors import NmtkitError
from nmtkit.experiments.results import failures_of, make_report, result_tables, write_report
from nmtkit.experiments.rows import TABLE3, choose_rows, plan, read_sweep


def command(
    recipe: options.Recipe,
    rows: Annotated[
        str | None, Option(metavar="NAME,...", help="Only the rows or groups (A, B, ...) with these names.")
    ] = None,
    rows_file: Annotated[Path | None, Option(help="Rows of your own, in TOML.  [default: the paper's Table 3]")] = None,
    seeds: Annotated[int, Option(min=1, help="Number of runs per row, each with the next seed.")] = 1,
    scale: Annotated[
        bool, Option(help="Scale the sizes of RECIPE as each row scales those of the base model in the rows file.")
    ] = False,
    jobs: Annotated[int | None, Option(min=1, help="Runs at a time.  [default: one per CUDA device, else 1]")] = None,
    sweep_dir: Annotated[
        Path | None, Option(metavar="DIR", help="Folder of all runs.  [default: runs/<recipe name>-ablations]")
    ] = None,
    only: Annotated[
        str | None, Option(metavar="RUN", help="Do only this run, such as A-h1-seed2; write no table.")
    ] = None,
    set_: options.Set = None,
    mirror: options.Mirror = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Train variations of one recipe, such as the paper's Table 3, and compare them.

    Each row changes a few settings of RECIPE. The data are prepared once. Finished runs are not repeated, and stopped
    runs are resumed. If a run fails, the table shows its error, the other runs continue, and the exit code is 1. The
    results are in DIR/ablations.json, ablations.md and ablations.html, which are updated after every run.

    \b
    Examples:
      nmtkit ablate wmt14-en-de-base --seeds 2
      nmtkit ablate multi30k-en-de-tiny --scale --rows base,A-h1,C --seeds 2
    """
    loaded = load_recipe(recipe, set_ or [])
    sweep = read_sweep(rows_file or TABLE3)
    chosen = choose_rows(sweep, rows.split(",") if rows is not None else [])
    runs = plan(loaded, sweep, chosen, seeds=seeds, scale=scale)
    folder = sweep_dir if sweep_dir is not None else Path("runs") / f"{loaded.name}-ablations"

    from nmtkit.experiments.sweep import (
        default_jobs,
        finished_result,
        prepare_sweep,
        refuse_another_sweep,
        run_here,
        run_in_processes,
    )
    from nmtkit.run import Run

    alone = next((run for run in runs if run.name == only), None)
    if only is not None and alone is None:
        raise NmtkitError(f"--only: there is no run {only!r}; the runs are {', '.join(run.name for run in runs)}")
    refuse_another_sweep(loaded, runs, folder)
    with options.resumable("stopped"):
        fingerprint = prepare_sweep(loaded, folder, mirror, device, threads)
    if alone is not None:
        outcome = run_here(alone, folder, fingerprint, device, threads)
        if isinstance(outcome, int):
            sys.exit(128 + outcome)
        console.log.info("%s: %s", alone.name, _summary(outcome))
        return

    # Those of this process; with --quiet, the logs of the runs would be empty.
    arguments = [argument for argument in sys.argv[2:] if argument != "--quiet"]
    jobs = jobs or default_jobs(device)

    # The tables show all rows that were begun here, and the seeds up to the first that no row has begun, also if only
    # some were chosen this time.
    def is_begun(name: str) -> bool:
        return Run(folder / name).recipe_file.is_file()

    first, shown_seeds = loaded.training.seed, seeds
    while any(is_begun(f"{row.name}-seed{first + shown_seeds}") for row in sweep.rows):
        shown_seeds += 1
    begun = [
        row
        for row in sweep.rows
        if row in chosen or any(is_begun(f"{row.name}-seed{first + number}") for number in range(shown_seeds))
    ]
    is_all = (begun, shown_seeds) == (chosen, seeds)
    planned = runs if is_all else plan(loaded, sweep, begun, seeds=shown_seeds, scale=scale)
    shown = [run for run in planned if run in runs or is_begun(run.name)]
    results = {run.name: result for run in shown if (result := finished_result(run, folder, fingerprint)) is not None}
    failures: dict[str, str] = {}

    def report() -> dict[str, Any]:
        return make_report(loaded, sweep, shown, results, failures)

    todo = [run for run in runs if run.name not in results]
    num_done = len(runs) - len(todo)
    console.log.info("%d runs, %d of them finished already", len(runs), num_done)
    # `closing` stops the processes at an error or a signal; a generator is collected at any later time.
    with (
        options.resumable("the runs save and stop"),
        Run(folder).locked("ablate"),
        closing(run_in_processes(todo, folder, arguments, jobs=jobs, device=device, threads=threads)) as ended,
    ):
        for number, (run, fault) in enumerate(ended, start=num_done + 1):
            result = finished_result(run, folder, fingerprint)
            count = f"{number}/{len(runs)} {run.name}"
            if fault is None and result is not None:
                results[run.name] = result
                console.log.info("%s: %s", count, _summary(result))
            else:
                failures[run.name] = fault or "left no result"
                console.log.error("%s: %s", count, failures[run.name])
            write_report(folder, report())
    final = report()
    for table in result_tables(final):
        console.print_table(table.title, table.columns, table.rows, notes=table.notes)
    for failure in failures_of(final):
        console.say(f"failed: {failure}")
    for path in write_report(folder, final):
        console.say(str(path))
    if failures:
        sys.exit(1)


def _summary(result: dict[str, Any]) -> str:
    perplexity = result["perplexity"]
    scores = "diverged" if perplexity is None else f"perplexity {console.with_decimals(perplexity, 2)}"
    if result["bleu"] is not None:
        scores += f", BLEU {result['bleu']:.1f}"
    return f"{scores}, trained in {console.duration(result['seconds'])}"
