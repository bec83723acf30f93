"""`nmtkit train`."""

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from nmtkit import console
from nmtkit.cli import options
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import Recipe

if TYPE_CHECKING:
    from nmtkit.distributed.workers import Workers


def command(
    recipe: options.Recipe,
    run_dir: options.RunDir = None,
    set_: options.Set = None,
    processes: Annotated[int, Option(min=1, help="Number of processes, one per device.")] = 1,
    init: Annotated[
        Path | None,
        Option(metavar="MODEL", help="Start from the weights of this model. Short for --set training.init=MODEL."),
    ] = None,
    verify_resume: Annotated[
        bool,
        Option(
            help="Only check resuming: repeat the updates between the last two resume states and compare bit for bit."
        ),
    ] = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    tracker: options.Tracker = None,
) -> None:
    """Train a model and write checkpoints. Run the same command again to resume.

    Ctrl-C or SIGTERM finishes the current update, saves, and exits with 130 or 143. A second signal stops at once. The
    number of processes does not change the updates: tokens_per_update is divided among the processes.

    Example: nmtkit train mine.toml --set training.seed=2 --run-dir runs/seed-2
    """
    if tracker:
        from nmtkit.distributed.workers import check_trackers

        check_trackers(tracker)
    overrides = list(set_ or [])
    if init is not None:  # in TOML, which knows no surrogate pairs and no DEL
        overrides.append("training.init=" + json.dumps(str(init), ensure_ascii=False).replace("\x7f", "\\u007f"))
    # Faults of the recipe are reported before any process is started.
    loaded = load_recipe(recipe, overrides)
    folder = options.run_folder(loaded.name, run_dir, recipe)
    # Under a launcher, this process is one of several already.
    if processes > 1 and console.environment_number("WORLD_SIZE", 1) == 1:
        options.launch_processes(processes, device)
    if not verify_resume:
        train_or_stop(loaded, folder, device=device, threads=threads, trackers=tracker or [])
        console.log.info("next: nmtkit average %s", shlex.quote(str(folder)))
        return
    with _workers(loaded, device, threads) as workers:
        from nmtkit.training import resume

        first, last = resume.verify_resume(loaded, folder, workers)
        if workers.is_main:
            print(f"identical: updates {first} to {last}")


def train_or_stop(recipe: Recipe, run_dir: Path, *, device: str, threads: int | None, trackers: Sequence[str]) -> None:
    """Train, as the only process or one of several; if a signal stops the training, exit with 128 + its number."""
    with _workers(recipe, device, threads) as workers:
        from nmtkit.training.session import train

        result = train(recipe, run_dir, workers, trackers)
    if result.signal is not None:
        console.log.info("saved; %s", options.resume_advice())
        sys.exit(128 + result.signal)


@contextmanager
def _workers(recipe: Recipe, device: str, threads: int | None) -> "Iterator[Workers]":
    """Start the workers of a training; log advice if a signal ends the block without saving."""
    with options.resumable("stopped at once, without another resume state"):
        from nmtkit.distributed.workers import Workers

        with Workers.start(device, recipe.training.precision, threads, for_training=True) as workers:
            yield workers
