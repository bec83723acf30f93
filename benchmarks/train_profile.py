"""Where the time of training goes, and what its matrix products alone would take.

    python benchmarks/train_profile.py --work DIR --config base --precision float32

DIR and the sizes are those of benchmarks/train.py. Prints, for some updates after a warm-up: the rate; the share of the
time in matrix products, attention's small products, the loss over the vocabulary, dropout, the optimiser, other
element-wise work and Python; the share of padding; and the floor: every matrix product of those updates timed by itself
with plain `torch.mm` on tensors of the same sizes, as torch computes them by default and as nmtkit has them computed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
import train as benchmark

from nmtkit.config.recipe import load_recipe
from nmtkit.data.shards import PairData
from nmtkit.distributed.workers import Workers
from nmtkit.model.dropout import Dropout
from nmtkit.training import loop
from nmtkit.training import loss as objective
from nmtkit.training.state import TrainingState

Sizes = tuple[int, int, int]

PARTS = {
    "matrix products": ("aten::mm", "aten::addmm"),
    "attention's products": ("aten::bmm", "aten::baddbmm"),
    "optimiser": ("aten::_fused_adam_", "aten::linalg_vector_norm", "aten::_foreach_mul_", "aten::_foreach_norm"),
    "softmax of attention": ("aten::_softmax", "aten::_softmax_backward_data"),
    "layer norm": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "casts and copies": ("aten::copy_", "aten::_to_copy", "aten::to"),
}


class _Products(TorchDispatchMode):
    """Counts the plain matrix products by their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Sizes] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm"):
            left, right = args[-2:]
            self.counts[(left.size(0), left.size(1), right.size(1))] += 1
        return func(*args, **(kwargs or {}))


def floor_seconds(counts: Counter[Sizes], dtype: torch.dtype) -> float:
    """Seconds that those products take by themselves, each kind timed as the median of five."""
    total = 0.0
    for (rows, inner, columns), count in counts.items():
        left, right = torch.randn(rows, inner, dtype=dtype), torch.randn(inner, columns, dtype=dtype)
        torch.mm(left, right)
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            torch.mm(left, right)
            times.append(time.perf_counter() - begun)
        total += count * statistics.median(times)
    return total


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, with its time under that name in the profile."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return recorded


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--config", choices=sorted(benchmark.SIZES), default="tiny")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
    parser.add_argument("--attention-dropout", type=float, default=0.1)
    parser.add_argument("--tokens-per-update", type=int, default=3600)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--updates", type=int, default=20)
    arguments = parser.parse_args()
    default_products = torch.get_float32_matmul_precision()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        benchmark.prepare(folder, arguments, arguments.tokens_per_update)
        recipe = load_recipe(str(folder / "recipe-for-training.toml"))
        workers = Workers.start("cpu", arguments.precision, arguments.threads)
        state = TrainingState(recipe.model, recipe.training, (8000, 8000), workers.device)
        updates = loop.train_updates(state, PairData(folder / "data" / "train"), workers)
        for _ in range(3):
            next(updates)
        plain = [next(updates) for _ in range(arguments.updates)]
        with _Products() as products:
            counted = [next(updates) for _ in range(arguments.updates)]
        objective.smoothed_loss = named(objective.smoothed_loss, "loss over the vocabulary")
        Dropout.forward = named(Dropout.forward, "dropout")
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            profiled = [next(updates) for _ in range(arguments.updates)]

    def rate(done: list[loop.Update]) -> float:
        return sum(update.target_tokens for update in done) / sum(update.seconds for update in done)

    tokens = sum(update.target_tokens for update in plain)
    padding = 1 - sum(u.real_tokens for u in plain) / sum(u.padded_tokens for u in plain)
    flops = sum(u.flops for u in plain) / sum(u.seconds for u in plain)
    print(f"{arguments.config}, {arguments.precision}, {arguments.threads} threads, {len(plain)} updates:")
    print(f"  {rate(plain):,.0f} target tokens/s, {flops / 1e9:.0f} GFLOP/s of real tokens, padding {padding:.1%}")
    events = {event.key: event for event in recorded.key_averages()}
    total = sum(update.seconds for update in profiled)
    print(f"  under the profiler {rate(profiled):,.0f} target tokens/s; shares of that time:")
    shares = {
        part: sum(events[key].self_cpu_time_total for key in keys if key in events) for part, keys in PARTS.items()
    }
    shares["loss over the vocabulary, forward, with its products"] = events["loss over the vocabulary"].cpu_time_total
    shares["dropout, forward"] = events["dropout"].cpu_time_total
    operators = sum(event.self_cpu_time_total for key, event in events.items() if key.startswith("aten::"))
    for part, microseconds in shares.items():
        print(f"    {part}: {microseconds / 1e6 / total:.1%}")
    print(f"    all operators {operators / 1e6 / total:.1%}; the rest is Python and autograd")
    dtype = torch.float32 if arguments.precision == "float32" else torch.bfloat16
    of_counted = sum(update.target_tokens for update in counted)
    ours = floor_seconds(products.counts, dtype) * tokens / of_counted
    torch.set_float32_matmul_precision(default_products)
    default = floor_seconds(products.counts, dtype) * tokens / of_counted
    seconds = sum(update.seconds for update in plain)
    print(f"  floor, the same products alone: {ours / seconds:.1%} of the time ({tokens / ours:,.0f} target tokens/s)")
    print(f"  with torch's default library: {default / seconds:.1%} of it ({tokens / default:,.0f} target tokens/s)")


if __name__ == "__main__":
    main()
