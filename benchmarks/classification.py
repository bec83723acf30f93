"""Fine-tunes a pre-trained model on labelled sentences, beside the same model from nothing, and compares them.

    python benchmarks/classification.py --work DIR --init RUN [--mirror DIR] [--tasks trec mr sst2 cola]
        [--seeds 1 2 3 4 5] [--arms nothing pre-trained no-auxiliary layers-0 ...] [--set SECTION.KEY=VALUE]

RUN is one of the recipe gpt-gutenberg. All arms have its subwords and the same settings. The scores are those of the
test sets (mr: a fixed tenth; cola: its development set), accuracy x 100, of cola Matthews' correlation x 100, of the
model after the last update: nothing is chosen. McNemar's test is on the predictions of all seeds together. Each run has
a folder in DIR; the same command continues after an interruption, and prints a table of all runs that it names.
"""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path

import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.console import print_table
from nmtkit.evaluation.significance import mcnemar
from nmtkit.pipeline import run as run_recipe
from nmtkit.run import Run

METRIC = {"cola": "matthews"}


def settings_of(arm: str, init: Path, seed: int) -> list[str]:
    """Return the settings of an arm."""
    settings = [f"data.tokenizer={init}", f"training.seed={seed}"]
    if arm != "nothing":
        settings.append(f"training.init={init}")
    if arm == "no-auxiliary":
        settings.append("training.source_loss=0")
    if arm.startswith("layers-"):
        settings.append(f"training.init_layers={arm.removeprefix('layers-')}")
    return settings


def train(work: Path, task: str, arm: str, seed: int, arguments: argparse.Namespace) -> Run:
    """Train and score a model, unless that is done."""
    folder, data = work / f"{task}-{arm}-{seed}", work / f"{task}-data"
    if not Run(folder).scores.is_file():
        recipe = load_recipe(task, [*settings_of(arm, arguments.init, seed), *arguments.set])
        if data.is_dir() and not folder.exists():
            shutil.copytree(data, folder)
        options = {"mirror": arguments.mirror, "device": "cpu", "threads": arguments.threads}
        run_recipe(recipe, folder, **options)
        if not data.is_dir():
            data.mkdir()
            shutil.copytree(folder / "data", data / "data")
            shutil.copy(folder / "recipe.toml", data)
        for unneeded in ("checkpoints", "resume", "prepare"):
            shutil.rmtree(folder / unneeded, ignore_errors=True)
    return Run(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--init", type=Path, required=True)
    parser.add_argument("--mirror", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["trec", "mr", "sst2", "cola"])
    parser.add_argument("--arms", nargs="+", default=["nothing", "pre-trained"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    arguments.init = arguments.init.resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows, gains = [], []
    for task in arguments.tasks:
        scores: dict[str, list[float]] = {}
        labels: dict[str, tuple[list[str], list[str]]] = {}
        for arm in arguments.arms:
            scores[arm], labels[arm] = [], ([], [])
            for seed in arguments.seeds:
                run = train(arguments.work, task, arm, seed, arguments)
                [(test, of_test)] = json.loads(run.scores.read_text(encoding="utf-8")).items()
                scores[arm].append(of_test[METRIC.get(task, "accuracy")]["score"])
                _, references, found = run.read_translated(test)
                labels[arm][0].extend(references)
                labels[arm][1].extend(found)
                print(f"{run.folder.name}: {scores[arm][-1]:.2f}", file=sys.stderr, flush=True)
            first = arguments.arms[0]
            row = [task, arm, f"{statistics.mean(scores[arm]):.2f}", f"{statistics.pstdev(scores[arm]):.2f}"]
            row.append(", ".join(f"{score:.1f}" for score in scores[arm]))
            if arm != first:
                difference = statistics.mean(scores[arm]) - statistics.mean(scores[first])
                p_value = mcnemar(labels[arm][0], labels[first][1], labels[arm][1])[2]
                row += [f"{difference:+.2f}", f"{p_value:.2g}"]
                gains.append((arm, difference))
            rows.append(row)
    columns = ["task", "start", "mean", "sd", "each seed", f"against {arguments.arms[0]}", "McNemar's p"]
    print_table("Scores of the test sets", columns, [[*row, "", ""][: len(columns)] for row in rows])
    for arm in arguments.arms[1:]:
        mean = statistics.mean(gain for of_arm, gain in gains if of_arm == arm)
        print(f"mean difference of {arm} over {len(arguments.tasks)} tasks: {mean:+.2f}")


if __name__ == "__main__":
    main()
