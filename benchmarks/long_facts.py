"""Trains models on the built-in corpus of long documents, and prints their nll beside the best attainable one.

    python benchmarks/long_facts.py --work DIR [--lengths 64 256 1024 4096] [--models T-DMCA T-ED T-D]
        [--extractors identity tf-idf cheating] [--seeds 1 2 3] [--first-updates 1000] [--updates 300] [--threads N]
        [--set SECTION.KEY=VALUE]

The recipe is `long-facts`. T-DMCA and T-D are 5 layers of a decoder (557,504 and 446,528 parameters), T-ED 2 layers of
encoder and 2 of decoder (434,464). Each model is trained with 1,024 tokens of the source first; the models for each
length go on from there. nll is that of the test set, in nats per target token with the end symbol; the last checkpoints
are averaged, and nothing is chosen. "attainable" is the entropy of the facts that are not among the first tokens,
exactly. Each run has a folder in DIR; the same command continues after an interruption, and prints a table of all runs
that it names, with the first training of each.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from nmtkit.corpora.facts import SPLITS, VALUES, fingerprint, generate
from nmtkit.json_toml import read_json, read_json_lines, write_json
from nmtkit.lines import write_lines
from nmtkit.run import Run
from nmtkit.text.extraction import Example, Method, rank

MODELS = {
    "T-DMCA": [],
    "T-D": ['model.self_attention=["full"]'],
    "T-ED": [
        "model.architecture=encoder-decoder",
        "training.source_loss=1",
        'model.self_attention=["full"]',
        "model.encoder_layers=2",
        "model.decoder_layers=2",
    ],
}
FIRST_LENGTH = 1024
CONTINUED = ["training.peak_learning_rate=0.001", "training.warmup_steps=50"]


def attainable_nll(pairs: Iterable[tuple[str, str]], length: int) -> float:
    """Return the lowest possible expected nll, in nats per target token with the end symbol.

    Args:
        pairs: source and target of examples, with the paragraphs in any order that does not depend on the values.
        length: tokens of the source that are read, in words and tabs.
    """
    unseen = tokens = 0
    for source, target in pairs:
        title = source.partition("\t")[0]
        read = " ".join(["", *source.replace("\t", " \t ").split(" ")[:length], ""])
        facts = target.split("\t")
        assert all(fact.startswith(f"{title}.") for fact in facts)
        unseen += sum(f" {fact} " not in read for fact in facts)
        tokens += len(target.replace("\t", " \t ").split(" ")) + 1
    return math.log(len(VALUES)) * unseen / tokens


def corpora(work: Path, extractor: Method) -> list[str]:
    """Return the settings of the corpora in the order of an extractor, after writing their files."""
    if extractor == "identity":
        return []
    settings = []
    for split in SPLITS:
        name = f"{extractor}.{split}.{fingerprint(split)[:8]}"
        source, target = (work / "corpora" / f"{name}.{side}" for side in ("source", "target"))
        if not target.is_file():
            source.parent.mkdir(parents=True, exist_ok=True)
            examples = [Example("", one.title, one.paragraphs, one.target, {}) for one in generate(split)]
            write_lines(source, ["\t".join((one.query, *rank(one, extractor))) for one in examples])
            write_lines(target, [one.target for one in examples])
        sides = f"source={json.dumps(str(source.resolve()))}, target={json.dumps(str(target.resolve()))}"
        settings.append(f'data.{split}=[{{{sides}, name="facts-{split}"}}]')
    return settings


def nmtkit(command: str, *arguments: str | Path, threads: int | None = None) -> None:
    called = [str(Path(sys.executable).with_name("nmtkit")), command, *map(str, arguments), "--quiet"]
    options = ["--threads", str(threads)] if threads else []
    subprocess.run([*called, *options], check=True, stdout=subprocess.DEVNULL)


def train(folder: Path, prepared: Path, settings: list[str], threads: int) -> None:
    """Train a model and average its last checkpoints, unless that is done."""
    run = Run(folder)
    stated = [part for setting in settings for part in ("--set", setting)]
    if not Run(prepared).is_prepared():
        nmtkit("prepare", "long-facts", "--run-dir", prepared, *stated)
        shutil.rmtree(Run(prepared).stages, ignore_errors=True)
    if not run.is_prepared():
        shutil.rmtree(run.data, ignore_errors=True)
        shutil.copytree(Run(prepared).data, run.data)
        nmtkit("prepare", "long-facts", "--run-dir", folder, *stated)
    if not run.averaged.is_dir():
        nmtkit("train", "long-facts", "--run-dir", folder, *stated, threads=threads)
        nmtkit("average", folder)


def train_model(arguments: argparse.Namespace, extractor: Method, model: str, seed: int, length: int | None) -> Path:
    """Train a model with 1,024 tokens of the source or, from there on, with another length; return the run."""
    work, updates = arguments.work, arguments.first_updates
    settings = [*corpora(work, extractor), *MODELS[model], f"training.seed={seed}", *arguments.set]
    further = f"-{hashlib.sha256(repr(arguments.set).encode()).hexdigest()[:8]}" if arguments.set else ""
    first = work / f"{extractor}-{model}-first-{updates}-{seed}{further}"
    if length is None:
        run = first
        settings.append(f"training.max_steps={updates}")
    else:
        run = work / f"{extractor}-{model}-{length}-{updates}+{arguments.updates}-{seed}{further}"
        settings += [f"training.max_steps={arguments.updates}", *CONTINUED]
        settings.append(f"training.init={json.dumps(str(first.resolve()))}")
    settings.append(f"data.max_source_tokens={length or FIRST_LENGTH}")
    train(run, work / f"data-{extractor}-{length or FIRST_LENGTH}{further}", settings, arguments.threads)
    return run


def measure(folder: Path, length: int) -> dict[str, float]:
    """Return the nll of a model that reads ``length`` tokens, the attainable one, and seconds per update."""
    from nmtkit.decoding.forced import ForcedDecoder

    run, result = Run(folder), folder / "long_facts.json"
    if result.is_file():
        return dict(read_json(result))
    pairs = list(zip(*run.test_text("facts-test").read(), strict=True))
    scores = ForcedDecoder.load(folder, precision="float32").score(pairs)
    last = read_json_lines(run.metrics)[-1]
    found = {
        "nll": -math.fsum(score.log_prob for score in scores) / sum(len(score.ids) for score in scores),
        "attainable": attainable_nll(pairs, length),
        "seconds": last["seconds"] / last["step"],
    }
    write_json(result, found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["T-DMCA"])
    parser.add_argument("--extractors", nargs="+", choices=("identity", "tf-idf", "cheating"), default=["identity"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--first-updates", type=int, default=1000, help="updates with 1,024 tokens")
    parser.add_argument("--updates", type=int, default=300, help="further updates of each length")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    rows = []
    for extractor in arguments.extractors:
        for model in arguments.models:
            for length in (None, *arguments.lengths):
                found = []
                for seed in arguments.seeds:
                    run = train_model(arguments, extractor, model, seed, length)
                    found.append(measure(run, length or FIRST_LENGTH))
                    print(f"{run.name}: {found[-1]}", file=sys.stderr, flush=True)
                nlls = [one["nll"] for one in found]
                each = ", ".join(f"{nll:.4f}" for nll in nlls)
                seconds = statistics.mean(one["seconds"] for one in found)
                read = f"{length:,}" if length else f"{FIRST_LENGTH:,}, first training"
                cells = [extractor, model, read, each, f"{statistics.mean(nlls):.4f}"]
                rows.append([*cells, f"{found[0]['attainable']:.4f}", f"{seconds:.2f}"])
    print("| extractor | model | tokens read | nll per seed | mean | attainable | s per update |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
