"""Measures generated corpora on Multi30k English-German: distillation into a small student, and back-translation.

    python benchmarks/generated_corpora.py distillation --work DIR --mirror DIR [--teachers 3] [--teacher RUN ...]
        [--seeds 1 2] [--updates 6000] [--threads N]
    python benchmarks/generated_corpora.py back-translation --work DIR --mirror DIR [--pairs 5000] [--seeds 1 2]
        [--updates 3000] [--threads N]

distillation: the teachers are `multi30k-en-de` with the seeds 1, 2, ..., or given runs. Their ensemble translates the
English side of the training text. Students have an eighth of the parameters of a teacher and learn from this output, or
from the plain data. Speed is that of translating test2016, without loading: torch with the beam of the recipe, and for
an int8 export CTranslate2 with greedy search.

back-translation: of the 29,000 pairs, evenly spaced ones are given; of the others only the German side, which a model
trained on the given pairs translates to English, one for each seed. The best checkpoint by validation counts.

Scores are sacreBLEU on test2016. The same command continues an interrupted measurement, and one with other seeds may
run beside it in the same folder.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry
from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator, Export
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.translator import Translator
from nmtkit.distributed.workers import Workers
from nmtkit.evaluation.metrics import score
from nmtkit.json_toml import read_json
from nmtkit.lines import write_lines
from nmtkit.model_folder import load_model
from nmtkit.run import Run, find_model

BASE, SET = "multi30k-en-de", "test2016"
STUDENT = """
[data]
train = [TRAIN]
valid = ["multi30k/val"]
test = ["multi30k/test2016"]
vocab_size = 1700

[model]
encoder_layers = 3
decoder_layers = 1
d_model = 64
d_ff = 256
dropout = 0.1

[training]
peak_learning_rate = 0.005
"""
FEW_PAIRS = """
[data]
source_language = "SOURCE"
target_language = "TARGET"
train = [TRAIN]
valid = ["multi30k/val"]
test = ["multi30k/test2016"]
vocab_size = 3000

[model]
dropout = 0.3

[training]
patience_validations = 8
validate_every_steps = 100
checkpoint_every_steps = 100
keep_last = 1
keep_best = 1
"""


def nmtkit(*arguments: object) -> None:
    command = [str(Path(sys.executable).with_name("nmtkit")), *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Measurement:
    """A folder for text, recipes and runs, and the settings of all trainings."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.work: Path = arguments.work
        self.threads: int = arguments.threads
        self.mirror: Path | None = arguments.mirror
        self._updates: int = arguments.updates
        self._set: list[str] = arguments.set
        self.work.mkdir(parents=True, exist_ok=True)

    def recipe(self, name: str, text: str, **values: str) -> str:
        """Write a recipe, and return its file."""
        for key, value in values.items():
            text = text.replace(key, value)
        write_lines(self.work / f"{name}.toml", [f'base = "{BASE}"', *text.split("\n")[1:-1]])
        return str(self.work / f"{name}.toml")

    def run(self, recipe: str, name: str, seed: int) -> Path:
        """Prepare and train a run, and translate and score the test set, unless that is done."""
        run = self.work / f"{name}-{seed}"
        if Run(run).scores.is_file():
            return run
        settings = [f"training.seed={seed}", f"training.max_steps={self._updates}", *self._set]
        options = ["--run-dir", run, *(part for setting in settings for part in ("--set", setting))]
        options += ["--threads", self.threads]
        mirror = ["--mirror", self.mirror] if self.mirror else []
        if load_recipe(recipe).training.patience_validations is None:
            nmtkit("run", recipe, *options, *mirror)
        else:  # without an average, the model is the best checkpoint
            nmtkit("prepare", recipe, *options, *mirror)
            nmtkit("train", recipe, *options)
            source, output = Run(run).test_text(SET).source, Run(run).translation(SET)
            output.parent.mkdir(exist_ok=True)
            nmtkit("translate", run, "--input", source, "--output", output, "--threads", self.threads)
            nmtkit("score", run)
        return run

    def sides(self) -> tuple[list[str], list[str]]:
        """Return the English and the German side of the training text."""
        corpus = open_entry(load_recipe(BASE).data, "multi30k/train", Downloader(self.mirror))
        return list(corpus.source.open()), list(corpus.target.open())


def show(name: str, runs: list[Path]) -> None:
    """Print the mean score of runs that differ in the seed, and each score."""
    scores = [float(read_json(Run(run).scores)[SET]["sacrebleu"]["score"]) for run in runs]
    print(f"| {name} | {statistics.mean(scores):.2f} | {', '.join(f'{one:.2f}' for one in scores)} |", flush=True)


def distillation(measurement: Measurement, arguments: argparse.Namespace) -> None:
    teachers = arguments.teacher or [
        measurement.run(BASE, "teacher", seed) for seed in range(1, arguments.teachers + 1)
    ]
    write_lines(measurement.work / "train.en", measurement.sides()[0])
    models = ", ".join(f'"{teacher.resolve()}"' for teacher in teachers)
    entries = {
        "plain": '"multi30k/train"',
        "distilled": f'{{ generate = "train.en", model = [{models}], as = "target" }}',
    }
    print("| model | sacreBLEU | seeds |\n|---|---|---|", flush=True)
    show("teacher", teachers)
    students = {}
    for name, entry in entries.items():
        recipe = measurement.recipe(name, STUDENT, TRAIN=entry)
        students[name] = [measurement.run(recipe, name, seed) for seed in arguments.seeds]
        show(f"student, {name}", students[name])
    workers = Workers.start("cpu", "float32", measurement.threads, for_decoding=True)
    print("\n| model | parameters | engine | sacreBLEU | sentences per second |\n|---|---|---|---|---|", flush=True)
    for name, run in {"teacher": teachers[0], "student, distilled": students["distilled"][0]}.items():
        export = measurement.work / f"{run.name}-int8"
        if not export.is_dir():
            nmtkit("export", run, "--format", "ctranslate2", "--quantization", "int8", "--output", export)
        engines: dict[str, Engine] = {
            "torch": Translator.load([run], workers.device),
            "CTranslate2, int8, greedy": CTranslate2Translator.load(
                Export.read(export), {"beam": 1}, "cpu", measurement.threads
            ),
        }
        size = sum(parameter.numel() for parameter in load_model(find_model(run)).model.parameters())
        for engine, found in ((engine, speed(translator, run)) for engine, translator in engines.items()):
            print(f"| {name} | {size:,} | {engine} | {found[0]:.2f} | {found[1]:.0f} |", flush=True)


def speed(engine: Engine, run: Path) -> tuple[float, float]:
    """Return sacreBLEU and sentences per second of an engine on the test set, the best of three times."""
    sources, references = Run(run).test_text(SET).read()
    seconds = []
    for _ in range(3):
        begun = time.monotonic()
        translations = engine.translate(sources)
        seconds.append(time.monotonic() - begun)
    found = score(translations, references, target_language="de", text="plain", metrics=["sacrebleu"])
    return found["sacrebleu"].score, len(sources) / min(seconds)


def back_translation(measurement: Measurement, arguments: argparse.Namespace) -> None:
    sides = dict(zip(("en", "de"), measurement.sides(), strict=True))
    total = len(sides["en"])
    given = {index * total // arguments.pairs for index in range(arguments.pairs)}
    for language, lines in sides.items():
        write_lines(measurement.work / f"given.{language}", [lines[index] for index in sorted(given)])
    others = [line for index, line in enumerate(sides["de"]) if index not in given]
    write_lines(measurement.work / "others.de", others)
    pair = '{ source = "given.SOURCE", target = "given.TARGET" }'
    print("| training text | sacreBLEU | seeds |\n|---|---|---|", flush=True)
    recipe = measurement.recipe("given", FEW_PAIRS, TRAIN=pair, SOURCE="en", TARGET="de")
    show(f"{arguments.pairs:,} pairs", [measurement.run(recipe, "given", seed) for seed in arguments.seeds])
    runs = []
    for seed in arguments.seeds:
        reverse = measurement.recipe("reverse", FEW_PAIRS, TRAIN=pair, SOURCE="de", TARGET="en")
        model = measurement.run(reverse, "reverse", seed).resolve()
        generated = f'{{ generate = "others.de", model = "{model}", as = "source", prefix = "<bt>", beam = 5 }}'
        recipe = measurement.recipe(f"back-{seed}", FEW_PAIRS, TRAIN=f"{pair}, {generated}", SOURCE="en", TARGET="de")
        runs.append(measurement.run(recipe, "back", seed))
    show(f"{arguments.pairs:,} pairs, {len(others):,} German sentences back-translated", runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, updates in (("distillation", 6000), ("back-translation", 3000)):
        command = commands.add_parser(name)
        command.add_argument("--work", type=Path, required=True, help="folder for text, recipes and runs")
        command.add_argument("--mirror", type=Path, help="folder laid out as <host>/<path>")
        command.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
        command.add_argument("--updates", type=int, default=updates, help="updates of each training, at most")
        command.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
        command.add_argument("--set", action="append", default=[], help="further setting of all trainings")
        if name == "distillation":
            command.add_argument("--teachers", type=int, default=3, help="number of teachers to train")
            command.add_argument("--teacher", type=Path, action="append", help="a trained run; repeat for an ensemble")
        else:
            command.add_argument("--pairs", type=int, default=5000)
    arguments = parser.parse_args()
    measure = distillation if arguments.command == "distillation" else back_translation
    measure(Measurement(arguments), arguments)


if __name__ == "__main__":
    main()
