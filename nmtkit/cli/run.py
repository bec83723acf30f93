"""`nmtkit run`."""

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import (
    DeviceOption,
    MirrorOption,
    QuietOption,
    RecipeArgument,
    RunDirOption,
    SetOption,
    ThreadsOption,
    TrackerOption,
    run_folder,
)

if TYPE_CHECKING:
    from nmtkit.config import Recipe

SHOWN_TRANSLATIONS = 4


def command(
    recipe: RecipeArgument,
    run_dir: RunDirOption = None,
    set_: SetOption = None,
    mirror: MirrorOption = None,
    processes: Annotated[
        int,
        typer.Option("--processes", metavar="N", min=1, help="Processes that train on this machine, one a device."),
    ] = 1,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    tracker: TrackerOption = None,
    quiet: QuietOption = False,
) -> None:
    """All five steps in order: prepare, train, average, translate, score. Finished ones are skipped.

    With --processes N, N others train, and the command itself does the other steps.

    Example: nmtkit run quickstart

    Example: nmtkit run multi30k-en-de --processes 2 --threads 1
    """
    from nmtkit import console
    from nmtkit.cli.cost import print_cost
    from nmtkit.cli.score_tables import print_scores
    from nmtkit.cli.train import again
    from nmtkit.config import load_recipe

    console.set_up(quiet=quiet, rank=console.environment_number("RANK", 0))
    loaded = load_recipe(recipe, set_ or [])
    folder = run_folder(loaded.name, run_dir)
    if console.environment_number("WORLD_SIZE", 1) > 1:
        _take_part(loaded, folder, device, threads, tracker or [])
        return

    from nmtkit.evaluation.scoring import scores_as_json
    from nmtkit.launcher import launch
    from nmtkit.pipeline import run
    from nmtkit.workers import check_processes

    launched = None
    if processes > 1:
        check_processes(processes, device)
        launched = functools.partial(launch, processes, sys.argv[1:])
    try:
        result = run(
            loaded, folder, mirror=mirror, device=device, threads=threads, trackers=tracker or [], launched=launched
        )
    except SystemExit:  # by a signal, outside of training
        console.log.info("stopped; %s", again())
        raise
    if result.exit_code:
        if launched is None:
            console.log.info("saved; %s", again())
        sys.exit(result.exit_code)
    assert result.scores is not None
    assert result.cost is not None
    for test in list(result.scores)[:1]:
        _print_translations(folder, test)
    if "builtin/synthetic" in loaded.data.test:
        _print_phenomena(folder)
    if result.scores:
        print_scores(result.scores, {})
    print_cost(result.cost, {test: scores_as_json(entries) for test, entries in result.scores.items()})
    _print_next_commands(loaded, folder)


def _take_part(recipe: "Recipe", run_dir: Path, device: str, threads: int | None, trackers: Sequence[str]) -> None:
    """Trains as one of several processes; the other steps are made by the one that has started them."""
    from nmtkit.cli.train import train_or_stop
    from nmtkit.errors import NmtkitError
    from nmtkit.workers import is_launched

    if not is_launched():
        raise NmtkitError(
            "`run` starts processes itself, by --processes N; under a launcher use `prepare` first and then `train`"
        )
    train_or_stop(recipe, run_dir, device=device, threads=threads, trackers=trackers)


def _print_translations(run_dir: Path, test: str) -> None:
    from nmtkit import console
    from nmtkit.data.preparation import read_text_pair
    from nmtkit.files import read_lines

    sources, references = read_text_pair(run_dir / "data" / "test" / test)
    hypotheses = read_lines(run_dir / "translations" / f"{test}.txt")
    rows = []
    step = max(1, len(sources) // SHOWN_TRANSLATIONS)
    for number in list(range(0, len(sources), step))[:SHOWN_TRANSLATIONS]:
        rows += [["source", sources[number]], ["translation", hypotheses[number]], ["reference", references[number]]]
        rows.append(["", ""])
    console.print_table(f"Some translations of {test}", ["", ""], rows[:-1])


def _print_phenomena(run_dir: Path) -> None:
    from nmtkit import console
    from nmtkit.pipeline import phenomenon_scores

    rows = [[name, f"{count}", f"{score.score:.2f}"] for name, count, score in phenomenon_scores(run_dir)]
    console.print_table("Test set synthetic, by phenomenon", ["phenomenon", "sentences", "sacreBLEU"], rows)


def _print_next_commands(recipe: "Recipe", run_dir: Path) -> None:
    if recipe.name == "quickstart":
        print("This was a made-up corpus of a small grammar: its score says that all steps work, and nothing more.")
    print("Next:")
    next_commands = {
        f'echo "..." | nmtkit translate {run_dir}': "translate a line of your own",
        "nmtkit recipes": "the other built-in recipes",
        "nmtkit recipes multi30k-en-de > mine.toml": "a recipe to copy and change",
    }
    width = max(map(len, next_commands))
    for text, what in next_commands.items():
        print(f"  {text:{width}}    {what}")
