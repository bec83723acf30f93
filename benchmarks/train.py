"""Training speed on a CPU: nmtkit's `train` command in turn with other toolkits, A B A B.

    python benchmarks/train.py --data DIR --config tiny --peer "onmt=bash onmt/train_tiny.sh" --rounds 2 --json out.json

DIR holds the corpus as pieces between blanks: train.bpe.en, train.bpe.de, val.bpe.en, val.bpe.de. A peer's command
trains the same model on the same text and prints `RESULT <name> <config> train_tgt_tok_per_s_median <number>`; where it
prints `train_tgt_tokens_per_update` too, the first peer's number becomes nmtkit's tokens_per_update.

A rate is non-padding target tokens a second, end symbols counted, by the clock of the whole loop: batches, forward,
backward, update and report. The first seconds are left out (20 for tiny, 10 for base), then the median is taken over
intervals of at least 10 seconds. Run it on an idle machine; compare only what ran in one call.

    python benchmarks/train.py --data DIR --config tiny --nll 500

trains nmtkit that many updates in float32 and in bf16 from one seed and prints both validation nlls instead.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIZES = {
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4},
    "base": {"encoder_layers": 6, "decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
}
PEAK_LEARNING_RATE = {"tiny": 0.003, "base": 0.0007}
WARM_UP_SECONDS = {"tiny": 20.0, "base": 10.0}
MEASURED_SECONDS = {"tiny": 60.0, "base": 90.0}
INTERVAL_SECONDS = 10.0


@dataclass(frozen=True)
class Rate:
    """Target tokens a second of one run: the median over its intervals, the least and the most."""

    median: float
    least: float
    most: float


def recipe(data: Path, config: str, tokens_per_update: int, attention_dropout: float) -> str:
    """A recipe with the sizes and settings that the peers are given."""
    sizes = "\n".join(f"{key} = {value}" for key, value in SIZES[config].items())
    pairs = {part: f'[{{ source = "{data / name}.bpe.en", target = "{data / name}.bpe.de" }}]' for part, name in
             (("train", "train"), ("valid", "val"))}  # fmt: skip
    return f"""[data]
source_language = "en"
target_language = "de"
train = {pairs["train"]}
valid = {pairs["valid"]}
text = "tokenized"
subwords = "none"
vocab_size = 8000

[cleaning]
max_tokens = 100

[model]
{sizes}
dropout = 0.1
attention_dropout = {attention_dropout}

[training]
seed = 42
tokens_per_update = {tokens_per_update}
schedule = "inverse-sqrt"
peak_learning_rate = {PEAK_LEARNING_RATE[config]}
warmup_steps = 100
label_smoothing = 0.1
validate_bleu = false
validate_every_steps = 1000000
checkpoint_every_steps = 1000000
report_every_steps = 1
max_steps = 1000000
"""


def nmtkit(arguments: list[str], threads: int | None = None) -> None:
    """Runs an nmtkit command; its messages go to a file that is shown when it fails."""
    environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    with tempfile.TemporaryFile() as log:
        code = subprocess.run([sys.executable, "-m", "nmtkit", *arguments], stderr=log, stdout=log, env=environment)
        if code.returncode:
            log.seek(0)
            sys.exit(f"nmtkit {' '.join(arguments)}: exit code {code.returncode}\n{log.read().decode()[-2000:]}")


def rate_of(metrics: Path, warm_up_seconds: float) -> Rate:
    """The rate that the reports of single updates add up to, warm-up left out."""
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    first = lines[0]["seconds"]
    begin = next(line for line in lines if line["seconds"] - first >= warm_up_seconds)
    rates = []
    for line in lines:
        seconds = line["seconds"] - begin["seconds"]
        if seconds >= INTERVAL_SECONDS:
            rates.append((line["target_tokens"] - begin["target_tokens"]) / seconds)
            begin = line
    return Rate(statistics.median(rates), min(rates), max(rates))


def measure_nmtkit(prepared: Path, arguments: argparse.Namespace, precision: str) -> Rate:
    """One run of `nmtkit train` on prepared data."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "data").symlink_to(prepared / "data")
        (run / "recipe.toml").write_bytes((prepared / "recipe.toml").read_bytes())
        seconds = WARM_UP_SECONDS[arguments.config] + (arguments.seconds or MEASURED_SECONDS[arguments.config])
        limit = f"training.max_minutes={(seconds + INTERVAL_SECONDS) / 60}"
        options = ["--run-dir", str(run), "--quiet", "--threads", str(arguments.threads), "--device", "cpu"]
        options += ["--set", limit, "--set", f"training.precision={precision}"]
        options += [part for override in arguments.set for part in ("--set", override)]
        nmtkit(["train", str(prepared / "recipe-for-training.toml"), *options], arguments.threads)
        return rate_of(run / "metrics.jsonl", WARM_UP_SECONDS[arguments.config])


def measure_peer(command: str) -> dict[str, Any]:
    """The RESULT lines of one run of a peer."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    results = dict(re.findall(r"^RESULT \S+ \S+ (\S+) (.*)$", done.stdout, flags=re.MULTILINE))
    if "train_tgt_tok_per_s_median" not in results:
        sys.exit(f"{command}: no result\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return results


def prepare(folder: Path, arguments: argparse.Namespace, tokens_per_update: int) -> None:
    """Prepares the run that all measurements of nmtkit share."""
    path = folder / "recipe-for-training.toml"
    path.write_text(
        recipe(arguments.data.resolve(), arguments.config, tokens_per_update, arguments.attention_dropout), "utf-8"
    )
    nmtkit(["prepare", str(path), "--run-dir", str(folder), "--quiet"])


def compare(arguments: argparse.Namespace) -> None:
    """Runs all systems in turn, prints the rates and their ratios to the fastest peer."""
    peers = dict(peer.split("=", 1) for peer in arguments.peer)
    rates: dict[str, list[Rate]] = {name: [] for name in (*peers, *arguments.precision)}
    tokens_per_update = arguments.tokens_per_update
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(arguments.rounds):
            for peer, command in peers.items():
                results = measure_peer(command)
                least, _, most = results["train_tgt_tok_per_s_interval_min_max"].partition("..")
                rates[peer].append(Rate(float(results["train_tgt_tok_per_s_median"]), float(least), float(most)))
                tokens_per_update = tokens_per_update or int(results["train_tgt_tokens_per_update"])
                print(f"round {turn + 1}: {peer}: {rates[peer][-1]}", file=sys.stderr, flush=True)
            if not (folder / "data").is_dir():
                prepare(folder, arguments, tokens_per_update or 3500)
            for precision in arguments.precision:
                rates[precision].append(measure_nmtkit(folder, arguments, precision))
                print(f"round {turn + 1}: nmtkit {precision}: {rates[precision][-1]}", file=sys.stderr, flush=True)
    best = max((statistics.mean(rate.median for rate in rates[peer]) for peer in peers), default=None)
    report: dict[str, Any] = {"config": arguments.config, "threads": arguments.threads, "time": time.strftime("%F %T")}
    report |= {"tokens_per_update": tokens_per_update, "attention_dropout": arguments.attention_dropout, "systems": {}}
    print(
        f"| {arguments.config} | target tokens/s of each round | least..most | to the fastest peer |\n|---|---|---|---|"
    )
    for system, measured in rates.items():
        mean = statistics.mean(rate.median for rate in measured)
        label = system if system in peers else f"nmtkit {system}"
        report["systems"][label] = {
            "rounds": [rate.median for rate in measured],
            "least": min(rate.least for rate in measured),
            "most": max(rate.most for rate in measured),
            "ratio": mean / best if best else None,
        }
        rounds = " ".join(f"{rate.median:.0f}" for rate in measured)
        spread = f"{report['systems'][label]['least']:.0f}..{report['systems'][label]['most']:.0f}"
        print(f"| {label} | {rounds} | {spread} | {mean / best if best else float('nan'):.2f} |")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def compare_nll(arguments: argparse.Namespace) -> None:
    """Trains the same updates in each precision and prints the validation nll of each."""
    nlls = {}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), arguments, arguments.tokens_per_update or 3500)
        for precision in arguments.precision:
            run = Path(name) / precision
            run.mkdir()
            (run / "data").symlink_to(Path(name) / "data")
            (run / "recipe.toml").write_bytes((Path(name) / "recipe.toml").read_bytes())
            steps = [f"training.{key}={arguments.nll}" for key in ("max_steps", "validate_every_steps")]
            settings = [*steps, f"training.precision={precision}", *arguments.set]
            options = [part for setting in settings for part in ("--set", setting)]
            options += ["--run-dir", str(run), "--quiet", "--threads", str(arguments.threads), "--device", "cpu"]
            nmtkit(["train", f"{name}/recipe-for-training.toml", *options], arguments.threads)
            last = json.loads((run / "metrics.jsonl").read_text("utf-8").splitlines()[-1])
            nlls[precision] = last["valid_nll"]
            print(f"{arguments.config}, {precision}: valid nll {last['valid_nll']:.4f} after {arguments.nll} updates")
    first, *others = arguments.precision
    for other in others:
        print(f"{other} to {first}: {100 * (nlls[other] / nlls[first] - 1):+.2f} %")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the corpus in pieces")
    parser.add_argument("--config", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help="may be repeated")
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"], help="of nmtkit's runs")
    parser.add_argument("--attention-dropout", type=float, default=0.1, help="of nmtkit's runs, as the peers have it")
    parser.add_argument("--tokens-per-update", type=int, help="by default the first peer's, else 3,500")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="measured in each of nmtkit's runs (tiny: 60, base: 90)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="for nmtkit's runs")
    parser.add_argument("--nll", type=int, metavar="UPDATES", help="compare validation nll instead of speed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    if arguments.nll:
        compare_nll(arguments)
    else:
        compare(arguments)


if __name__ == "__main__":
    main()
