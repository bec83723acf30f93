"""`nmtkit run`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

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
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    tracker: TrackerOption = None,
    quiet: QuietOption = False,
) -> None:
    """All five steps in order: prepare, train, average, translate, score. Finished ones are skipped.

    Example: nmtkit run quickstart
    """
    from nmtkit import console
    from nmtkit.cli.cost import print_cost
    from nmtkit.cli.score_tables import print_scores
    from nmtkit.config import load_recipe

    console.set_up(quiet=quiet)
    loaded = load_recipe(recipe, set_ or [])
    folder = run_folder(loaded.name, run_dir)

    from nmtkit.evaluation.scoring import scores_as_json
    from nmtkit.pipeline import run

    try:
        result = run(loaded, folder, mirror=mirror, device=device, threads=threads, trackers=tracker or [])
    except SystemExit:  # by a signal, outside of training
        console.log.info("stopped; the same command goes on: nmtkit %s", shlex.join(sys.argv[1:]))
        raise
    if result.training.signal is not None:
        console.log.info("saved; the same command goes on: nmtkit %s", shlex.join(sys.argv[1:]))
        sys.exit(128 + result.training.signal)
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
