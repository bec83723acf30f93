"""Training speed on a CPU: nmtkit's `train` command in turn with other toolkits, A B A B.

    python benchmarks/set_up_peers.py --work DIR opennmt transformers
    python benchmarks/train.py --work DIR --config tiny --peers opennmt transformers --rounds 2 --json out.json

All train the same sizes on the same pieces with the same number of threads; benchmarks/peers/ has their settings. The
mean number of target tokens in an update of the first peer becomes nmtkit's tokens_per_update.

A rate is non-padding target tokens a second, end symbols counted, by the clock of the whole loop: batches, forward,
backward, update and report. The first seconds are left out (20 for tiny, 10 for base), then the median is taken over
intervals of at least 10 seconds. Run it on an idle machine; compare only what ran in one call.

    python benchmarks/train.py --work DIR --config tiny --nll 500

trains nmtkit that many updates in float32 and in bf16 from one seed and prints both validation nlls instead.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from peers.environments import TRAINED, execute, measure_training
from peers.rules import INTERVAL_SECONDS, MAX_TOKENS, SIZES, WARM_UP_UPDATES, Rate, rate_of


def recipe(text: Path, config: str, tokens_per_update: int, attention_dropout: float) -> str:
    """A recipe with the sizes and settings that the peers are given."""
    size = SIZES[config]
    pairs = {part: f'[{{ source = "{text / name}.bpe.en", target = "{text / name}.bpe.de" }}]' for part, name in
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
max_tokens = {MAX_TOKENS}

[model]
encoder_layers = {size.layers}
decoder_layers = {size.layers}
d_model = {size.d_model}
d_ff = {size.d_ff}
num_heads = {size.heads}
dropout = 0.1
attention_dropout = {attention_dropout}

[training]
seed = 42
tokens_per_update = {tokens_per_update}
schedule = "inverse-sqrt"
peak_learning_rate = {size.peak_learning_rate}
warmup_steps = {WARM_UP_UPDATES}
label_smoothing = 0.1
validate_bleu = false
validate_every_steps = 1000000
checkpoint_every_steps = 1000000
report_every_steps = 1
max_steps = 1000000
"""


def nmtkit(arguments: list[str], threads: int | None = None) -> None:
    """Runs an nmtkit command; its messages are shown when it fails."""
    execute([sys.executable, "-m", "nmtkit", *arguments], {"OMP_NUM_THREADS": str(threads)} if threads else {})


def measure_nmtkit(prepared: Path, arguments: argparse.Namespace, precision: str) -> Rate:
    """One run of `nmtkit train` on prepared data."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        run.mkdir()
        (run / "data").symlink_to(prepared / "data")
        (run / "recipe.toml").write_bytes((prepared / "recipe.toml").read_bytes())
        size = SIZES[arguments.config]
        seconds = size.warm_up + (arguments.seconds or size.measured)
        limit = f"training.max_minutes={(seconds + INTERVAL_SECONDS) / 60}"
        options = ["--run-dir", str(run), "--quiet", "--threads", str(arguments.threads), "--device", "cpu"]
        options += ["--set", limit, "--set", f"training.precision={precision}"]
        options += [part for override in arguments.set for part in ("--set", override)]
        nmtkit(["train", str(prepared / "recipe-for-training.toml"), *options], arguments.threads)
        reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
        return rate_of([(report["seconds"], report["target_tokens"]) for report in reports], size.warm_up)


def prepare(folder: Path, arguments: argparse.Namespace, tokens_per_update: int) -> None:
    """Prepares the run that all measurements of nmtkit share."""
    path = folder / "recipe-for-training.toml"
    text = arguments.work.resolve() / "text"
    path.write_text(recipe(text, arguments.config, tokens_per_update, arguments.attention_dropout), "utf-8")
    nmtkit(["prepare", str(path), "--run-dir", str(folder), "--quiet"])


def compare(arguments: argparse.Namespace) -> None:
    """Runs all systems in turn, prints the rates and their ratios to the fastest peer."""
    peers = arguments.peers
    rates: dict[str, list[Rate]] = {name: [] for name in (*peers, *arguments.precision)}
    tokens_per_update = arguments.tokens_per_update
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(arguments.rounds):
            for peer in peers:
                rate, of_update = measure_training(
                    peer, arguments.work, arguments.config, arguments.threads, arguments.seconds
                )
                rates[peer].append(rate)
                tokens_per_update = tokens_per_update or of_update
                print(f"round {turn + 1}: {peer}: {rate}, {of_update} tokens per update", file=sys.stderr, flush=True)
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
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="the folder of set_up_peers.py")
    parser.add_argument("--config", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--peers", nargs="+", choices=TRAINED, default=[], help="run in turn with nmtkit")
    parser.add_argument("--precision", nargs="+", default=["float32", "bf16"], help="of nmtkit's runs")
    parser.add_argument("--attention-dropout", type=float, default=0.1, help="of nmtkit's runs, as the peers have it")
    parser.add_argument("--tokens-per-update", type=int, help="by default the first peer's, else 3,500")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="measured in each run (tiny: 60, base: 90)")
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
