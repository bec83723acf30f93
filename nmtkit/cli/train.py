"""`nmtkit train`."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit import console
from nmtkit.cli.options import (
    DeviceOption,
    QuietOption,
    RecipeArgument,
    RunDirOption,
    SetOption,
    ThreadsOption,
    TrackerOption,
    run_folder,
)

if TYPE_CHECKING:
    from nmtkit.config.schema import Recipe


def command(
    recipe: RecipeArgument,
    run_dir: RunDirOption = None,
    set_: SetOption = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Number of processes, one per device.")
    ] = 1,
    init: Annotated[
        Path | None,
        typer.Option(
            "--init", metavar="MODEL", help="Start from the weights of this model. Short for --set training.init=MODEL."
        ),
    ] = None,
    verify_resume: Annotated[
        bool,
        typer.Option(
            "--verify-resume",
            help="Only check resuming: repeat the updates between the last two resume states and compare bit for bit.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    tracker: TrackerOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a model and write checkpoints. Run the same command again to resume.

    Ctrl-C or SIGTERM finishes the current update, saves, and exits with 130 or 143. A second signal stops at once. The
    number of processes does not change the updates: tokens_per_update is divided among the processes.

    Example: nmtkit train mine.toml --set training.seed=2 --run-dir runs/seed-2
    """
    import json

    from nmtkit.config.recipe import load_recipe

    if tracker:
        from nmtkit.distributed.workers import check_trackers

        check_trackers(tracker)
    overrides = [*(set_ or []), *([f"training.init={json.dumps(str(init))}"] if init is not None else [])]
    if processes > 1 and console.environment_number("WORLD_SIZE", 1) == 1:
        from nmtkit.distributed.launch import launch
        from nmtkit.distributed.workers import check_processes

        load_recipe(recipe, overrides)
        check_processes(processes, device)
        sys.exit(launch(processes, sys.argv[1:]))
    console.set_up(quiet=quiet, rank=console.environment_number("RANK", 0))
    loaded = load_recipe(recipe, overrides)
    folder = run_folder(loaded.name, run_dir)

    if verify_resume:
        _verify_resume(loaded, folder, device, threads)
        return
    train_or_stop(loaded, folder, device=device, threads=threads, trackers=tracker or [])
    console.log.info("next: nmtkit average %s", folder)


def train_or_stop(
    recipe: "Recipe", run_dir: Path, *, device: str, threads: int | None, trackers: Sequence[str]
) -> None:
    """Trains, in this process alone or as one of several; exits 128 + its number when a signal stops the training."""
    with _telling_how_to_go_on():
        from nmtkit.distributed.workers import Workers
        from nmtkit.training.session import train

        with Workers.start(device, recipe.training.precision, threads, for_training=True) as workers:
            result = train(recipe, run_dir, workers, trackers)
    if result.signal is not None:
        console.log.info("saved; %s", again())
        sys.exit(128 + result.signal)


def _verify_resume(recipe: "Recipe", run_dir: Path, device: str, threads: int | None) -> None:
    with _telling_how_to_go_on():
        from nmtkit.distributed.workers import Workers
        from nmtkit.training.resume import verify_resume

        with Workers.start(device, recipe.training.precision, threads, for_training=True) as workers:
            first, last = verify_resume(recipe, run_dir, workers)
            if workers.is_main:
                print(f"identical: updates {first} to {last}")


@contextmanager
def _telling_how_to_go_on() -> Iterator[None]:
    """When a signal ends the block, one at the start or a second one, says what is kept and how to go on."""
    try:
        yield
    except SystemExit:
        console.log.info("stopped without saving again; %s", again())
        raise


def again() -> str:
    """Return the advice on how to resume."""
    return f"to resume, run: nmtkit {shlex.join(sys.argv[1:])}"
