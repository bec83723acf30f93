"""Decoding speed on a CPU: nmtkit's `translate` command in turn with other toolkits, A B A B.

    python benchmarks/translate.py --data DIR --config tiny --batch 64 --peer "hf=bash hf/translate.sh tiny forced" \
        --rounds 2 --json out.json

DIR holds the text as pieces between blanks: train.bpe.en, train.bpe.de, val.bpe.en, val.bpe.de (for the vocabulary) and
test_2016_flickr.bpe.en. A peer's command translates the same lines and prints `RESULT <name> <config>
forced15_b<batch>_sent_per_s <number>` (at natural length: `b<batch>_sent_per_s`).

A rate is sentences a second without start-up and loading: the command is run on 1 line and on all, and the lines but
one are divided by the difference of the wall times. Start-up is the time of the 1 line. Forced: beam 4, and every
translation has exactly 15 pieces, so that weights do not matter (they are random) and systems are comparable. With
--model MODEL a trained model translates at natural length instead. Run it on an idle machine; compare only what ran in
one call.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import train as benchmark

FORCED_LENGTH = 15


def random_model(folder: Path, arguments: argparse.Namespace) -> Path:
    """A model folder of the sizes, with initial weights."""
    prepared = argparse.Namespace(**vars(arguments), attention_dropout=0.0)
    benchmark.prepare(folder, prepared, 1000)
    settings = ["--set", "training.max_steps=1", "--set", "training.report_every_steps=1", "--quiet"]
    benchmark.nmtkit(["train", str(folder / "recipe-for-training.toml"), "--run-dir", str(folder), *settings])
    return next((folder / "checkpoints").iterdir())


def seconds_for(model: Path, lines: list[str], arguments: argparse.Namespace, options: list[str]) -> float:
    """Wall time of the whole command on these lines."""
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "in", Path(name) / "out"
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = ["translate", str(model), "--input", str(source), "--output", str(output), "--quiet", *options]
        command += ["--device", "cpu", "--batch-size", str(arguments.batch)]
        command += ["--threads", str(arguments.threads)] if arguments.threads else []
        begun = time.perf_counter()
        benchmark.nmtkit(command, arguments.threads)
        elapsed = time.perf_counter() - begun
        assert output.read_bytes().count(b"\n") == len(lines)
        return elapsed


def measure_nmtkit(
    model: Path, lines: list[str], arguments: argparse.Namespace, options: list[str]
) -> dict[str, float]:
    """Start-up and rate of one round."""
    one = min(seconds_for(model, lines[:1], arguments, options) for _ in range(2))
    return {"startup": one, "rate": (len(lines) - 1) / (seconds_for(model, lines, arguments, options) - one)}


def measure_peer(command: str, metric: str) -> dict[str, float]:
    """Start-up and rate of one run of a peer."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ))
    results = dict(re.findall(r"^RESULT \S+ \S+ (\S+) (\S+)$", done.stdout, flags=re.MULTILINE))
    if f"{metric}_sent_per_s" not in results:
        sys.exit(f"{command}: no {metric}_sent_per_s\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    startup = results.get(f"{metric}_startup_1line_s", "nan")
    return {"startup": float(startup), "rate": float(results[f"{metric}_sent_per_s"])}


def main() -> None:
    """Reads the command line, measures in turn, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the corpus in pieces")
    parser.add_argument("--config", choices=sorted(benchmark.SIZES), default="tiny")
    parser.add_argument("--batch", type=int, default=64, help="sentences at once")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--model", type=Path, help="a trained model, for natural lengths")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="may be repeated")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="as --peer, but the ratios leave it out",
    )
    parser.add_argument("--options", action="append", default=[], metavar="NAME=OPTIONS", help="more runs of nmtkit")
    parser.add_argument("--threads", type=int, help="nmtkit's; by default those that it takes by itself")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    lines = (arguments.data / "test_2016_flickr.bpe.en").read_text(encoding="utf-8").split("\n")[: arguments.lines]
    metric = f"{'' if arguments.model else f'forced{FORCED_LENGTH}_'}b{arguments.batch}"
    forced = ["--beam", "4", "--min-length", str(FORCED_LENGTH), "--max-length", str(FORCED_LENGTH)]
    fixed = ["--beam", "4"] if arguments.model else [*forced, "--max-length-offset", "1000"]
    peers = dict(peer.split("=", 1) for peer in arguments.peer)
    others = peers | dict(reference.split("=", 1) for reference in arguments.reference)
    runs = {"nmtkit": "", **{f"nmtkit {name}": text for name, text in (one.split("=", 1) for one in arguments.options)}}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in (*others, *runs)}
    with tempfile.TemporaryDirectory() as name:
        model = arguments.model or random_model(Path(name), arguments)
        for turn in range(arguments.rounds):
            for peer, command in others.items():
                measured[peer].append(measure_peer(command, metric))
            for run, options in runs.items():
                measured[run].append(measure_nmtkit(model, lines, arguments, [*fixed, *options.split()]))
            latest = {system: rounds[-1] for system, rounds in measured.items()}
            print(f"round {turn + 1}: {latest}", file=sys.stderr, flush=True)
    best = max((statistics.mean(one["rate"] for one in measured[peer]) for peer in peers), default=float("nan"))
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
