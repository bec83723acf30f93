"""Decoding speed on a CPU: nmtkit's `translate` command in turn with other toolkits, A B A B.

    python benchmarks/set_up_peers.py --work DIR
    python benchmarks/translate.py --work DIR --config tiny --batch 64 --peers opennmt transformers sockeye \
        --reference ctranslate2 --rounds 2 --json out.json

Forced: beam 4, and every translation has exactly 15 pieces, so that weights do not matter (they are random) and systems
are comparable. benchmarks/peers/ has the settings of the others.

A rate is sentences a second without start-up and loading: the command is run on 1 line and on all, and the lines but
one are divided by the difference of the wall times. Start-up is the time of the 1 line. With --model MODEL a trained
model translates text at natural length instead; of the peers, transformers reads its weights. Run it on an idle
machine; compare only what ran in one call.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import train as benchmark
from peers.environments import PEERS, TRAINED, random_model, run_in
from peers.rules import FORCED_LENGTH, TEST, measure_translation


def random_nmtkit_model(folder: Path, arguments: argparse.Namespace) -> Path:
    """A model folder of the sizes, with initial weights."""
    prepared = argparse.Namespace(**vars(arguments), attention_dropout=0.0)
    benchmark.prepare(folder, prepared, 1000)
    settings = ["--set", "training.max_steps=1", "--set", "training.report_every_steps=1", "--quiet"]
    benchmark.nmtkit(["train", str(folder / "recipe-for-training.toml"), "--run-dir", str(folder), *settings])
    return next((folder / "checkpoints").iterdir())


def measure_nmtkit(
    model: Path, lines: list[str], arguments: argparse.Namespace, options: list[str]
) -> dict[str, float]:
    """Start-up and rate of one round."""

    def translate(source: Path, output: Path) -> None:
        command = ["translate", str(model), "--input", str(source), "--output", str(output), "--quiet", *options]
        command += ["--device", "cpu", "--batch-size", str(arguments.batch)]
        command += ["--threads", str(arguments.threads)] if arguments.threads else []
        benchmark.nmtkit(command, arguments.threads)

    return measure_translation(translate, lines)


def measure_peer(run: str, model: Path, lines: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    """Start-up and rate of one round of a peer, which may be given as <peer>:<threads>."""
    peer, threads = peer_and_threads(run, arguments)

    def translate(source: Path, output: Path) -> None:
        length = 0 if arguments.model else FORCED_LENGTH
        command = PEERS[peer].translate(model, source, output, arguments.batch, length)
        run_in(peer, arguments.work, command, threads, source.parent)

    return measure_translation(translate, lines)


def peer_and_threads(run: str, arguments: argparse.Namespace) -> tuple[str, int]:
    """The peer of <peer> or <peer>:<threads>, and its threads: by default as many as nmtkit has."""
    peer, _, threads = run.partition(":")
    return peer, int(threads or arguments.threads or len(os.sched_getaffinity(0)))


def model_of(run: str, nmtkit_model: Path, folder: Path, arguments: argparse.Namespace) -> Path:
    """The model that a peer translates with: random weights, or nmtkit's."""
    peer, threads = peer_and_threads(run, arguments)
    if peer in TRAINED and not arguments.model:
        return random_model(peer, arguments.work, arguments.config, threads)
    if not (folder / peer).exists():
        PEERS[peer].convert(nmtkit_model, folder / peer)
    return folder / peer


def main() -> None:
    """Reads the command line, measures in turn, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="the folder of set_up_peers.py")
    parser.add_argument("--config", choices=sorted(benchmark.SIZES), default="tiny")
    parser.add_argument("--batch", type=int, default=64, help="sentences at once")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--model", type=Path, help="a trained model, for natural lengths")
    parser.add_argument("--input", type=Path, metavar="FILE", help="text for --model, by default test2016 as published")
    parser.add_argument("--peers", nargs="+", default=[], metavar="PEER[:THREADS]", help=f"of {', '.join(PEERS)}")
    parser.add_argument(
        "--reference", nargs="+", default=[], metavar="PEER[:THREADS]", help="as --peers, but the ratios leave it out"
    )
    parser.add_argument("--options", action="append", default=[], metavar="NAME=OPTIONS", help="more runs of nmtkit")
    parser.add_argument(
        "--threads", type=int, help="of all; by default all cores, for nmtkit those that it takes by itself"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    others = [*arguments.peers, *arguments.reference]
    for run in others:
        if peer_and_threads(run, arguments)[0] not in (["transformers"] if arguments.model else PEERS):
            parser.error(f"{run}: not a peer" + (" that reads nmtkit's weights" if arguments.model else ""))
    text = arguments.work / "text"
    source = (arguments.input or text / f"{TEST}.en") if arguments.model else text / f"{TEST}.bpe.en"
    lines = source.read_text(encoding="utf-8").split("\n")[:-1][: arguments.lines]
    metric = f"{'' if arguments.model else f'forced{FORCED_LENGTH}_'}b{arguments.batch}"
    forced = ["--beam", "4", "--min-length", str(FORCED_LENGTH), "--max-length", str(FORCED_LENGTH)]
    fixed = ["--beam", "4"] if arguments.model else [*forced, "--max-length-offset", "1000"]
    runs = {"nmtkit": "", **{f"nmtkit {name}": text for name, text in (one.split("=", 1) for one in arguments.options)}}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in (*others, *runs)}
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or random_nmtkit_model(Path(name), arguments)
        models = {run: model_of(run, model, Path(name) / "converted", arguments) for run in others}
        for turn in range(arguments.rounds):
            for run in others:
                measured[run].append(measure_peer(run, models[run], lines, arguments))
            for run, options in runs.items():
                measured[run].append(measure_nmtkit(model, lines, arguments, [*fixed, *options.split()]))
            latest = {system: rounds[-1] for system, rounds in measured.items()}
            print(f"round {turn + 1}: {latest}", file=sys.stderr, flush=True)
    best = max(
        (statistics.mean(one["rate"] for one in measured[peer]) for peer in arguments.peers), default=float("nan")
    )
    report: dict[str, Any] = {"config": arguments.config, "metric": metric, "lines": len(lines), "systems": {}}
    print(f"| {arguments.config}, {metric} | sentences/s of each round | one line, s | to the fastest peer |")
    print("|---|---|---|---|")
    for system, rounds in measured.items():
        rates = [one["rate"] for one in rounds]
        startup = statistics.median(one["startup"] for one in rounds)
        ratio = statistics.mean(rates) / best
        report["systems"][system] = {"rounds": rates, "startup_seconds": startup, "ratio": ratio}
        print(f"| {system} | {' '.join(f'{rate:.1f}' for rate in rates)} | {startup:.1f} | {ratio:.2f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
