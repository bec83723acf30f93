"""Measures whether a decoder pre-trained on German text helps English-German translation on Multi30k.

    python benchmarks/transfer.py --work DIR --mirror DIR [--pairs 1000,5000,29000] [--seeds 2] [--updates 1500]
        [--text-updates 1500] [--text FILE] [--threads N] [--architectures encoder-decoder,decoder]

Models of the sizes of `multi30k-en-de-tiny` and `multi30k-en-de-decoder`, tokenised lower-cased text. The subwords, the
same in all trainings, are learned from all 29,000 pairs. The language model reads the German side of all 29,000 pairs
and of --text, also where the translation learns from fewer pairs; these are evenly spaced, the same for all seeds.
A translation ends after --updates, or when the BLEU of the validation set (greedy search) has not improved in 3
validations, 100 updates apart; its best checkpoint counts, with a beam of 5. By nll, that of a pre-trained model would
often be one before it reads its source: the nll is low at once, and soon grows. A language model counts by its nll. The
same command continues an interrupted measurement.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from nmtkit.config.recipe import load_recipe
from nmtkit.corpora.download import Downloader
from nmtkit.corpora.entries import open_entry
from nmtkit.evaluation.cost import read_metrics
from nmtkit.lines import write_lines
from nmtkit.run import Run

BASES = {"encoder-decoder": "multi30k-en-de-tiny", "decoder": "multi30k-en-de-decoder"}
TRAINING = """
[training]
tokens_per_update = 2000
peak_learning_rate = 0.003
warmup_steps = 300
patience_validations = 3
validate_every_steps = 100
checkpoint_every_steps = 100
keep_last = 1
keep_best = 1
"""
DECODING = """
[decoding]
average_last = 1
beam = 1
finished = "within"
"""
SET = "test2016"


def write_text(work: Path, mirror: Path | None, sizes: list[int], further: list[Path]) -> None:
    """Write the parts of Multi30k and the recipes into the folder."""
    data = load_recipe(BASES["encoder-decoder"]).data
    for part in ("train", "val"):
        corpus = open_entry(data, f"multi30k-tok/{part}", Downloader(mirror))
        sides = {"en": list(corpus.source.open()), "de": list(corpus.target.open())}
        for language, lines in sides.items():
            for size in sizes if part == "train" else [len(lines)]:
                chosen = [lines[index * len(lines) // size] for index in range(size)]
                write_lines(work / f"{part}-{size}.{language}", chosen)
        if part == "val":
            write_lines(work / "val.de", sides["de"])
        else:
            write_lines(work / "text.de", sides["de"])
    texts = ", ".join(f"{{ text = {json.dumps(str(path.resolve()))} }}" for path in [work / "text.de", *further])
    for architecture, base in BASES.items():
        for size in sizes:
            train = f'{{ source = "train-{size}.en", target = "train-{size}.de" }}'
            recipe = f'base = "{base}"\n[data]\ntrain = [{train}]\nvalid = ["multi30k-tok/val"]\n'
            recipe += f'test = ["multi30k-tok/{SET}"]\ntokenizer = "subwords"\n{TRAINING}'
            recipe += f'validate_bleu = true\nbest_metric = "bleu"\n{DECODING}'
            write_lines(work / f"{architecture}-{size}.toml", recipe.split("\n")[:-1])
        recipe = (
            f'base = "{base}"\n[data]\ntask = "language-model"\ntrain = [{texts}]\nvalid = [{{ text = "val.de" }}]\n'
        )
        recipe += f'normalize = ["blanks"]\nsequence_length = 64\ntokenizer = "subwords"\n{TRAINING}{DECODING}'
        recipe += '[model]\narchitecture = "decoder"\ndropout = 0.1\n'
        write_lines(work / f"{architecture}-text.toml", recipe.split("\n")[:-1])


def nmtkit(*arguments: object) -> None:
    command = [str(Path(sys.executable).with_name("nmtkit")), *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def train(recipe: Path, run: Path, settings: dict[str, object], common: list[object], threads: int) -> float:
    """Prepare and train a run; return the lowest validation nll per token."""
    stated = [part for key, value in settings.items() for part in ("--set", f"training.{key}={value}")]
    nmtkit("prepare", recipe, "--run-dir", run, *stated, *common)
    nmtkit("train", recipe, "--run-dir", run, *stated, "--threads", threads)
    return min(line["valid_nll"] for line in read_metrics(run) if "valid_nll" in line)


def bleu(run: Path, threads: int) -> float:
    """Return the tokenised lower-cased BLEU of the best checkpoint on the test set."""
    output = Run(run).translation(SET)
    output.parent.mkdir(exist_ok=True)
    text = ["--input", Run(run).test_text(SET).source, "--output", output]
    nmtkit("translate", run, *text, "--beam", 5, "--threads", threads)
    nmtkit("score", run)
    return float(json.loads((run / "scores.json").read_text(encoding="utf-8"))[SET]["bleu-tokenized-lc"]["score"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for text, recipes and runs")
    parser.add_argument("--mirror", type=Path, help="folder laid out as <host>/<path>")
    parser.add_argument("--pairs", default="1000,5000,29000", help="sizes of the training text")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=1500, help="most updates of a translation")
    parser.add_argument("--text-updates", type=int, default=1500, help="most updates of a language model")
    parser.add_argument("--text", type=Path, action="append", default=[], help="further German text, as Multi30k's")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--architectures", default=",".join(BASES))
    arguments = parser.parse_args()
    work, threads = arguments.work, arguments.threads
    sizes = [int(size) for size in arguments.pairs.split(",")]
    common: list[object] = ["--mirror", arguments.mirror] if arguments.mirror else []
    work.mkdir(parents=True, exist_ok=True)
    write_text(work, arguments.mirror, sizes, arguments.text)
    nmtkit("prepare", BASES["encoder-decoder"], "--run-dir", work / "subwords", *common)
    print("| architecture | pairs | pre-trained | lowest nll | BLEU | seeds |\n|---|---|---|---|---|---|", flush=True)
    for architecture in arguments.architectures.split(","):
        texts = {}
        for seed in range(1, arguments.seeds + 1):
            settings = {"seed": seed, "max_steps": arguments.text_updates}
            texts[seed] = work / f"runs-{architecture}-text-{seed}"
            nll = train(work / f"{architecture}-text.toml", texts[seed], settings, common, threads)
            print(f"{architecture}, language model {seed}: validation nll {nll:.3f}", file=sys.stderr, flush=True)
        for size in sizes:
            for is_pretrained in (False, True):
                found = []
                for seed in texts:
                    run = work / f"runs-{architecture}-{size}-{'with' if is_pretrained else 'without'}-{seed}"
                    settings = {"seed": seed, "max_steps": arguments.updates}
                    if is_pretrained:
                        settings["init"] = json.dumps(str(texts[seed].resolve()))
                    nll = train(work / f"{architecture}-{size}.toml", run, settings, common, threads)
                    found.append((nll, bleu(run, threads)))
                means = [statistics.mean(column) for column in zip(*found, strict=True)]
                single = ", ".join(f"{nll:.3f} / {score:.2f}" for nll, score in found)
                name = "yes" if is_pretrained else "no"
                print(
                    f"| {architecture} | {size:,} | {name} | {means[0]:.3f} | {means[1]:.2f} | {single} |", flush=True
                )


if __name__ == "__main__":
    main()
