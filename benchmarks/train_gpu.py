"""Training speed on a GPU: tokens a second, utilisation, memory, padding, and where the time goes, by one command:

    python benchmarks/train_gpu.py --output gpu.json

It trains the models of the recipes wmt14-en-de-base and -big with nmtkit's own loop (`nmtkit.training.loop`), on random
ids with sentence lengths like WMT14's, eager and with `training.compile`. Each measurement stands for itself: one that
fails is told and the others go on. The rate of plain `torch.mm` is taken in the same run, before and after.

- tokens/s: target tokens a second, end symbols counted, padding not, by the clock of the whole loop.
- MFU: FLOPs of the matrix products of forward and backward for the real tokens (`nmtkit.model.flops`: no padding,
  nothing recomputed), a second, over the rate of `torch.mm` at 8192 x 8192 x 8192.
- parts: device time by torch.profiler, over a few updates after the measured ones (on a CPU: time of the operators).
- idle: 1 - the device time that the profiled updates needed for a token x the tokens/s measured without the profiler.

Goals on one H200 in bf16: 40 % (base) and 55 % (big) of the `torch.mm` rate; 100,000 base updates in under an hour.
Whether they are met is told; the exit code is 0 either way. `--device cpu --models tiny` is a short try of the script.
"""

import argparse
import gc
import importlib.metadata
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device_time import device_time, part_of, synchronize

from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.recipe import load_recipe
from nmtkit.config.schema import TrainingConfig
from nmtkit.console import print_table, set_up
from nmtkit.data.batching import plan_of, shares_of
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.distributed.workers import Workers, choose_device, resolve_precision
from nmtkit.json_toml import write_json
from nmtkit.model.decoder_only import count_parameters
from nmtkit.training.loop import Update, train_updates
from nmtkit.training.loss import compile_cost
from nmtkit.training.state import TrainingState

VOCABULARY = {"tiny": 500, "base": 37_000, "big": 37_000}
TINY = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 4}
UPDATES_OF_A_RUN = {"tiny": 1000, "base": 100_000, "big": 300_000}
GOAL = {"base": 0.40, "big": 0.55}
GOAL_HOURS = {"base": 1.0}

# Lengths, end symbols not counted. The means are those of WMT14 (WMT16's copy) English-German with 32,000 joint merges:
# fairseq-preprocess tells 4,500,966 pairs with 132,886,171 English and 137,628,246 German tokens, end symbols counted.
# That the lengths are log-normal, their spread and how the two sides go together are assumptions.
SOURCE_MEAN, TARGET_MEAN = 132_886_171 / 4_500_966 - 1, 137_628_246 / 4_500_966 - 1
LOG_SPREAD, LOG_CORRELATION, LONGEST = 0.62, 0.95, 256

PROFILED_UPDATES = 4
SECONDS_FOR_A_RATE = {"cpu": 0.02, "cuda": 0.3}


def lengths(num_pairs: int, random: np.random.Generator) -> np.ndarray:
    """Source and target lengths, int64 [pairs, 2]: log-normal, correlated, 1 to LONGEST."""
    own = random.standard_normal((num_pairs, 2))
    own[:, 0] = LOG_CORRELATION * own[:, 1] + (1 - LOG_CORRELATION**2) ** 0.5 * own[:, 0]
    medians = np.log([SOURCE_MEAN, TARGET_MEAN]) - LOG_SPREAD**2 / 2
    return np.clip(np.rint(np.exp(medians + LOG_SPREAD * own)), 1, LONGEST).astype(np.int64)


def write_corpus(folder: Path, num_pairs: int, vocabulary: int) -> PairData:
    """Random pairs as `prepare` would write them; the same each time."""
    random = np.random.default_rng(1)
    pairs = [
        (random.integers(4, vocabulary, source).tolist(), random.integers(4, vocabulary, target).tolist())
        for source, target in lengths(num_pairs, random).tolist()
    ]
    with ShardWriter(folder, (vocabulary, vocabulary)) as writer:
        writer.add(pairs, range(1, num_pairs + 1))
    return PairData(folder)


def rate_of_product(shape: tuple[int, int, int], device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of torch.mm of [rows, inner] with the transpose of [columns, inner], as a linear layer does it."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    right = torch.randn(columns, inner, device=device, dtype=dtype).t()
    product = torch.empty(rows, columns, device=device, dtype=dtype)
    best, repeats = 0.0, 1
    for _ in range(6):  # the first ones warm up and find the number of repeats
        synchronize(device)
        begun = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right, out=product)
        synchronize(device)
        seconds = time.perf_counter() - begun
        best = max(best, 2 * rows * inner * columns * repeats / seconds)
        repeats = max(repeats, min(1000, int(repeats * SECONDS_FOR_A_RATE.get(device.type, 0.3) / seconds)))
    return best


def product_shapes(models: list[str], tokens: int, on_cuda: bool) -> dict[str, tuple[int, int, int]]:
    """Square products, and those of the models for an update's tokens."""
    sizes = (2048, 4096, 8192, 16384) if on_cuda else (256, 512)
    shapes = {f"{size}^3": (size, size, size) for size in sizes}
    for name in models:
        config = model_of(name)
        width, inner, vocabulary = config.d_model, config.d_ff, VOCABULARY[name]
        shapes[f"{name} projection"] = (tokens, width, width)
        shapes[f"{name} feed-forward, inner"] = (tokens, width, inner)
        shapes[f"{name} feed-forward, outer"] = (tokens, inner, width)
        shapes[f"{name} logits"] = (tokens, width, vocabulary)
        shapes[f"{name} gradient of the table"] = (vocabulary, tokens, width)
    return shapes


def model_of(name: str) -> ModelConfig:
    """The sizes of a model: of its recipe, or tiny ones."""
    return ModelConfig.model_validate(TINY) if name == "tiny" else load_recipe(f"wmt14-en-de-{name}").model


def training_of(name: str, mode: str, options: argparse.Namespace) -> TrainingConfig:
    """The settings of a model's training: of its recipe, with the sizes asked for."""
    training = TrainingConfig() if name == "tiny" else load_recipe(f"wmt14-en-de-{name}").training
    return training.model_copy(
        update={
            "tokens_per_update": options.tokens_per_update,
            "tokens_per_pass": options.tokens_per_pass,
            "compile": mode == "compiled",
        }
    )


def measure(name: str, mode: str, workers: Workers, options: argparse.Namespace, data: PairData) -> dict[str, Any]:
    """Trains one model in one mode and returns what was measured."""
    training = training_of(name, mode, options)
    if workers.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(workers.device)
    state = TrainingState(model_of(name), training, (VOCABULARY[name],) * 2, workers.device)
    compiled_before = compile_cost() if mode == "compiled" else (0, 0.0)
    with closing(train_updates(state, data, workers)) as updates:
        begun = time.perf_counter()
        list(islice(updates, options.warmup))
        synchronize(workers.device)
        warmup_seconds = time.perf_counter() - begun
        compiled_warm = compile_cost() if mode == "compiled" else (0, 0.0)
        begun = time.perf_counter()
        measured = list(islice(updates, options.updates))
        synchronize(workers.device)
        seconds = time.perf_counter() - begun
        compiled_after = compile_cost() if mode == "compiled" else (0, 0.0)
        memory = memory_of(workers.device)
        parts = device_time(
            lambda: sum(update.target_tokens for update in islice(updates, PROFILED_UPDATES)), workers.device, part_of
        )
    result = {
        "model": name,
        "mode": mode,
        "parameters": count_parameters(model_of(name), VOCABULARY[name], VOCABULARY[name]),
        "seconds": seconds,
        "warmup_seconds": warmup_seconds,
        "compile_seconds": compiled_after[1] - compiled_before[1],
        "compiled_pieces": compiled_after[0] - compiled_before[0],
        "compiled_while_measured": compiled_after[0] - compiled_warm[0],
        **speed(measured, seconds),
        "passes_per_update": passes_per_update(data, training, workers),
        **memory,
        "parts": parts,
        "loss_of_a_token": measured[-1].loss / measured[-1].target_tokens,
    }
    result["idle"] = max(0.0, 1 - parts["device_seconds_per_token"] * result["target_tokens_per_second"])
    result["hours_for_run"] = result["seconds_per_update"] * UPDATES_OF_A_RUN[name] / 3600
    return result


def speed(measured: list[Update], seconds: float) -> dict[str, float]:
    """Rates over the measured updates."""
    target, real = sum(u.target_tokens for u in measured), sum(u.real_tokens for u in measured)
    return {
        "updates": len(measured),
        "seconds_per_update": seconds / len(measured),
        "median_seconds_inside_update": statistics.median(u.seconds for u in measured),
        "target_tokens_per_update": target / len(measured),
        "target_tokens_per_second": target / seconds,
        "flops_per_second": sum(u.flops for u in measured) / seconds,
        "padding": 1 - real / sum(u.padded_tokens for u in measured),
    }


def memory_of(device: torch.device) -> dict[str, int]:
    """The most device memory used by tensors, and taken from the device, in bytes; 0 on a CPU."""
    on_cuda = device.type == "cuda"
    return {
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if on_cuda else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(device) if on_cuda else 0,
    }


def passes_per_update(data: PairData, training: TrainingConfig, workers: Workers) -> float:
    """Mean over the first epoch's updates."""
    per_pass = training.tokens_per_pass or workers.tokens_per_pass
    updates = plan_of(data, training, 0).updates
    shares = (shares_of(data, pairs, per_pass, 1, workers.device.type) for pairs in updates)
    return statistics.mean(len(share) for [share] in shares)


def attempt(what: str, work: Callable[[], dict[str, Any]], *, keeps_compiled: bool = False) -> dict[str, Any]:
    """What a measurement returns; what went wrong, where it fails.

    Args:
        keeps_compiled: whether what was compiled stays for the next one.
    """
    try:
        return work()
    except Exception as error:  # every failure of one measurement is told, and the others go on
        traceback.print_exc()
        return {"error": f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    finally:
        gc.collect()
        if "torch._dynamo" in sys.modules and not keeps_compiled:
            torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def environment(device: torch.device, precision: str) -> dict[str, Any]:
    """Commit, hardware, versions and command."""
    root = Path(__file__).parent.parent
    hardware: dict[str, Any] = {"cpu": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        hardware |= {"gpu": properties.name, "memory_bytes": properties.total_memory}
        hardware |= {"processors": properties.multi_processor_count}
    return {
        "commit": _output_of("git", "-C", str(root), "rev-parse", "HEAD"),
        "changed_files": _output_of("git", "-C", str(root), "status", "--short").splitlines(),
        "command": " ".join(sys.argv),
        "precision": precision,
        "hardware": hardware,
        "versions": {"python": platform.python_version(), "cuda": torch.version.cuda, **_versions()},
    }


def _versions() -> dict[str, str]:
    installed = {}
    for name in ("torch", "triton", "numpy", "accelerate", "ctranslate2", "nmtkit"):
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed[name] = "not installed"
    return installed


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    options = parse()
    set_up()
    device = choose_device(options.device)
    workers = Workers(0, 1, device, resolve_precision(options.precision, device))
    dtype = torch.bfloat16 if workers.precision == "bf16" else torch.float32
    shapes = product_shapes(options.models, options.tokens_per_update, device.type == "cuda")
    report: dict[str, Any] = {**environment(device, workers.precision), "options": vars(options) | {"output": None}}

    def rates() -> dict[str, Any]:
        return {name: rate_of_product(shape, device, dtype) for name, shape in shapes.items()}

    report["products_before"] = attempt("torch.mm", rates)
    report["measurements"] = []
    mean_tokens = TARGET_MEAN + 1
    num_pairs = int(options.tokens_per_update * max(options.updates, 8) / mean_tokens)
    for vocabulary in {VOCABULARY[name] for name in options.models}:
        with tempfile.TemporaryDirectory() as folder:
            data = write_corpus(Path(folder) / "train", num_pairs, vocabulary)
            for name in [name for name in options.models if VOCABULARY[name] == vocabulary]:
                for mode in options.modes:
                    found = attempt(f"{name}, {mode}", lambda: measure(name, mode, workers, options, data))  # noqa: B023
                    report["measurements"].append({"model": name, "mode": mode, **found})
                    write_report(options.output, report)
    report["products_after"] = attempt("torch.mm", rates)
    report["goals"] = judge(report, "8192^3" if device.type == "cuda" else "512^3")
    write_report(options.output, report)
    show(report)


def judge(report: dict[str, Any], square: str) -> list[dict[str, Any]]:
    """Adds the utilisation to each measurement, and says of each goal whether it is met by the best of its model."""
    both = (report["products_before"], report["products_after"])
    report["products_per_second"] = rate = max((rates.get(square, 0.0) for rates in both), default=0.0)
    whole = [found for found in report["measurements"] if "error" not in found]
    for found in whole:
        found["mfu"] = found["flops_per_second"] / rate if rate else None
    goals = []
    for model, share in GOAL.items():
        reached = [found["mfu"] for found in whole if found["model"] == model and found["mfu"] is not None]
        goal = f"{model}: {share:.0%} of the rate of torch.mm"
        goals.append({"goal": goal, "reached": max(reached, default=None), "met": max(reached, default=0.0) >= share})
    for model, hours in GOAL_HOURS.items():
        taken = [found["hours_for_run"] for found in whole if found["model"] == model]
        goal = f"{model}: {UPDATES_OF_A_RUN[model]:,} updates in under {hours:g} h"
        goals.append({"goal": goal, "reached": min(taken, default=None), "met": bool(taken) and min(taken) < hours})
    return goals


def write_report(output: Path | None, report: dict[str, Any]) -> None:
    """Writes what is known so far, so that nothing measured is lost."""
    if output is not None:
        write_json(output, report)


def show(report: dict[str, Any]) -> None:
    """Prints the report as tables."""
    products = [
        (name, *(f"{report[when].get(name, 0.0) / 1e12:.2f}" for when in ("products_before", "products_after")))
        for name in {**report["products_before"], **report["products_after"]}
        if name != "error"
    ]
    print_table("torch.mm", ["product", "TFLOP/s before", "after"], products)
    columns = ["model", "mode", "tokens/s", "TFLOP/s", "MFU %", "ms/update", "idle %", "padding %", "passes", "GiB"]
    columns += ["compile s", "hours for run"]
    whole = [found for found in report["measurements"] if "error" not in found]
    print_table(f"training, {report['precision']}, {report['hardware'].get('gpu', 'CPU')}", columns, rows_of(whole))
    for found in whole:
        shares = [(part, f"{100 * share:.1f}") for part, share in found["parts"]["shares"].items()]
        print_table(f"{found['model']}, {found['mode']}: where the time goes", ["part", "% of device time"], shares)
    notes = [found["error"] for found in report["measurements"] if "error" in found]
    goals = [(goal["goal"], *outcome(goal)) for goal in report["goals"]]
    print_table("goals, stated for one H200 in bf16", ["goal", "reached", "met"], goals, notes=notes)


def outcome(goal: dict[str, Any]) -> tuple[str, str]:
    """What was reached of a goal, and whether that meets it; open where it was not measured."""
    if goal["reached"] is None:
        return "", "open"
    return f"{goal['reached']:.3f}", "yes" if goal["met"] else "no"


def rows_of(whole: list[dict[str, Any]]) -> list[list[str]]:
    """One row of the table for each measurement."""
    return [
        [
            found["model"], found["mode"], f"{found['target_tokens_per_second']:,.0f}",
            f"{found['flops_per_second'] / 1e12:.3f}", f"{100 * (found['mfu'] or 0.0):.1f}",
            f"{1000 * found['seconds_per_update']:.1f}", f"{100 * found['idle']:.0f}", f"{100 * found['padding']:.1f}",
            f"{found['passes_per_update']:.2f}", f"{found['peak_memory_bytes'] / 2**30:.1f}",
            f"{found['compile_seconds']:.0f}", f"{found['hours_for_run']:.2f}",
        ]
        for found in whole
    ]  # fmt: skip


def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """What reads a list of known names from the command line."""

    def split(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose of {', '.join(known)}")
        return chosen

    return split


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=names(("base", "big", "tiny")), default="base,big")
    parser.add_argument("--modes", type=names(("eager", "compiled")), default="eager,compiled")
    parser.add_argument("--updates", type=int, default=100, help="measured updates of each model and mode")
    parser.add_argument("--warmup", type=int, default=30, help="updates before them")
    parser.add_argument("--tokens-per-update", type=int, default=25_000)
    parser.add_argument("--tokens-per-pass", type=int, default=32_768, help="0: what nmtkit chooses for the device")
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--precision", choices=["auto", "bf16", "float32"], default="auto")
    parser.add_argument("--output", type=Path, help="a JSON file for all of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
