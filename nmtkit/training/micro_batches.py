"""How much a device takes at once, settled and tried before the first update; and what the plan of an epoch looks like.

settle_tokens_per_pass      the run's limit: the one it has had, else the recipe's, else what fits into memory
first_update_rate           the FLOP/s that a CPU reaches in the first update, for the prediction
heaviest_passes             the passes that need the most memory
summarise                   what updates, passes and padding come to, for the log
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from nmtkit.config.schema import TrainingConfig
from nmtkit.console import counted, log
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import EpochPlan, Indices, plan_of_epoch, share_update
from nmtkit.data.shards import PairData
from nmtkit.distributed.workers import Workers, is_out_of_memory
from nmtkit.model.flops import forward_flops
from nmtkit.training.epochs import TrainingPairs
from nmtkit.training.loop import (
    lower_limit,
    padded_tokens,
    pass_size,
    plain_loss,
    run_pass,
    too_large,
    training_factor,
)
from nmtkit.training.state import TrainingState

HEAD_ROOM = 0.1
"""Share of a device's memory that is left free: for fragments, for the optimiser's steps, for longer pairs."""
PROBED_TOKENS = (2048, 8192)
"""The limits at which memory is measured, to know it for all others: it grows with the tokens, from some foot on."""
ROUNDED_TO = 256
SAMPLED_UPDATES = 256
"""Updates that are cut into passes to know what passes are like: all those of millions of pairs would take seconds."""
HEAVY_UPDATES = 32
"""Updates, for each of three ways to be heavy, that are cut into passes to find the heaviest."""
TRIED_SECONDS = 2.0
"""Time after which the measurement of the first update's rate begins no further micro-batch."""


@dataclass(frozen=True)
class PlanSummary:
    """What the updates of an epoch come to.

    Attributes:
        num_updates: of the epoch.
        target_tokens, pairs: of an update, on average.
        passes: of an update on each device, on average.
        padding: share of all source and target tokens.
    """

    num_updates: int
    target_tokens: float
    pairs: float
    passes: float
    padding: float


def summarise(plan: EpochPlan, data: PairData, tokens_per_pass: int, num_processes: int) -> PlanSummary:
    """What a plan comes to; passes and padding are measured on updates spread evenly over it."""
    count = len(plan.updates)
    total = sum(int(data.target_lengths[pairs].sum()) for pairs in plan.updates)
    sample = [plan.updates[index] for index in np.unique(np.linspace(0, count - 1, SAMPLED_UPDATES).astype(int))]
    passes = [p for pairs in sample for share in _shares(pairs, data, tokens_per_pass, num_processes) for p in share]
    real = sum(int(data.source_lengths[pairs].sum() + data.target_lengths[pairs].sum()) for pairs in sample)
    return PlanSummary(
        num_updates=count,
        target_tokens=total / count,
        pairs=sum(len(pairs) for pairs in plan.updates) / count,
        passes=len(passes) / len(sample) / num_processes,
        padding=1 - real / sum(padded_tokens(data, passed) for passed in passes),
    )


def heaviest_passes(plan: EpochPlan, data: PairData, tokens_per_pass: int, num_processes: int) -> list[Indices]:
    """The passes of a plan, of whichever process, that need the most memory: the one with the most padded tokens, and
    the one with the most products of attention.

    Looked for among the updates with the longest sentences and those that fill their passes best.
    """
    sources = np.array([int(data.source_lengths[pairs].max()) for pairs in plan.updates])
    targets = np.array([int(data.target_lengths[pairs].max()) for pairs in plan.updates])
    counts = np.array([-(-len(pairs) // num_processes) for pairs in plan.updates])
    filled = np.minimum(counts * np.maximum(sources, targets), tokens_per_pass) * (sources + targets)
    filled = filled // np.maximum(sources, targets)
    chosen = set[int]()
    for weight in (sources, targets, filled):
        chosen.update(np.argsort(-weight, kind="stable")[:HEAVY_UPDATES].tolist())
    passes = [
        passed
        for index in sorted(chosen)
        for share in _shares(plan.updates[index], data, tokens_per_pass, num_processes)
        for passed in share
    ]
    tokens = max(passes, key=lambda passed: padded_tokens(data, passed))
    products = max(passes, key=lambda passed: _attention_products(data, passed))
    return [tokens] if tokens is products else [tokens, products]


def _shares(pairs: Indices, data: PairData, tokens_per_pass: int, num_processes: int) -> list[list[Indices]]:
    return share_update(pairs, data.source_lengths, data.target_lengths, tokens_per_pass, num_processes)


def _attention_products(data: PairData, pairs: Indices) -> int:
    source, target = int(data.source_lengths[pairs].max()), int(data.target_lengths[pairs].max())
    return len(pairs) * (source**2 + target**2 + source * target)


def settle_tokens_per_pass(
    state: TrainingState, training_pairs: TrainingPairs, training: TrainingConfig, workers: Workers
) -> None:
    """Settles by which limit passes are cut, tries the heaviest ones, and tells what the updates come to.

    The limit goes into the run's progress, and so into its saves, as it decides which dropout is drawn. Every process
    comes to the same. Weights, gradients and random numbers stay what they were.

    Raises:
        NmtkitError: the memory of a device is too small for a single pair.
    """
    place = state.progress
    data = training_pairs.of_epoch(place.epoch)
    plan = plan_of_epoch(data, training.tokens_per_update, training.seed, place.epoch, training.lengths_per_update)
    if not plan.updates:
        return
    if place.tokens_per_pass:
        limit, origin = place.tokens_per_pass, "kept from earlier in this run"
    elif training.tokens_per_pass:
        limit, origin = training.tokens_per_pass, "set in the recipe"
    elif workers.device.type == "cuda":
        limit, origin = _fit_to_memory(state, data, plan, training, workers), "fitted to the device's memory"
    else:
        limit, origin = workers.tokens_per_pass, "default for the device"
    while True:
        passes = heaviest_passes(plan, data, limit, workers.num_processes)
        if workers.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(workers.device)  # the peak to come is what the prediction reports
        failed = _try_passes(state, data, passes, training, workers)
        all_failed = [passed for passed in workers.gather([failed]) if passed is not None]
        if not all_failed:
            break
        alone = next((passed for passed in all_failed if len(passed) == 1), None)
        if alone is not None:
            raise too_large(data, int(alone[0]), workers)
        # From the least limit by which passes are cut as they are: a larger one would be lowered for nothing.
        limit = min(limit, max(pass_size(data, passed) for passed in passes))
        log.warning("out of memory with micro-batches of %s tokens; trying %s", f"{limit:,}", f"{lower_limit(limit):,}")
        limit, origin = lower_limit(limit), "lowered to fit the device's memory"
    place.tokens_per_pass = limit
    if workers.is_main:
        _tell(summarise(plan, data, limit, workers.num_processes), training, workers, f"{limit:,} tokens, {origin}")


def first_update_rate(
    state: TrainingState, training_pairs: TrainingPairs, training: TrainingConfig, workers: Workers
) -> float | None:
    """Measure the FLOP/s of this process, all at work at once, in the micro-batches of the first update.

    Weights, gradients and random numbers stay what they were. None: no micro-batch is this process's.
    """
    data = training_pairs.of_epoch(0)
    plan = plan_of_epoch(data, training.tokens_per_update, training.seed, 0, training.lengths_per_update)
    if not plan.updates:
        return None
    vocab, flops, begun = state.model.output_embedding.size(0), 0, time.perf_counter()
    for passed in _shares(plan.updates[0], data, state.progress.tokens_per_pass, workers.num_processes)[workers.rank]:
        _try_passes(state, data, [passed], training, workers)
        lengths = data.source_lengths[passed], data.target_lengths[passed]
        flops += training_factor(training) * forward_flops(state.model.config, vocab, *lengths).total
        if time.perf_counter() - begun > TRIED_SECONDS:
            break
    return flops / (time.perf_counter() - begun) if flops else None


def _tell(summary: PlanSummary, training: TrainingConfig, workers: Workers, limit: str) -> None:
    log.info(
        "updates average %s target tokens (at most %s) and %s, in %.1f micro-batches on %s "
        "(up to %s); %.1f %% of all tokens are padding; %s per epoch",
        f"{summary.target_tokens:,.0f}", f"{training.tokens_per_update:,}", counted(round(summary.pairs), "pair"),
        summary.passes, "one device" if workers.num_processes == 1 else f"each of {workers.num_processes} devices",
        limit, 100 * summary.padding, counted(summary.num_updates, "update"),
    )  # fmt: skip


def _try_passes(
    state: TrainingState, data: PairData, passes: list[Indices], training: TrainingConfig, workers: Workers
) -> Indices | None:
    """Forward and backward of passes, of which nothing is kept; returns the one that memory was too small for."""
    failed = None
    with leaving_no_trace(state, workers):
        for passed in passes:
            try:
                tokens = int(data.target_lengths[passed].sum())
                run_pass(state, make_batch(data, passed), tokens, training, workers, plain_loss(training))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                failed = passed
                break
    if failed is not None:
        workers.free_memory()
    return failed


@contextmanager
def leaving_no_trace(state: TrainingState, workers: Workers) -> Iterator[None]:
    """Lets passes be tried in training mode: random numbers, gradients and the mode are restored afterwards."""
    was_training = state.model.training
    state.model.train()
    with torch.random.fork_rng(devices=[workers.device] if workers.device.type == "cuda" else []):
        yield
    state.optimizer.zero_grad(set_to_none=True)
    state.model.train(was_training)


def _fit_to_memory(
    state: TrainingState, data: PairData, plan: EpochPlan, training: TrainingConfig, workers: Workers
) -> int:
    """The limit that fills a CUDA device but for some head-room, and is no more than an update needs; the least of all
    processes."""
    processes = workers.num_processes
    needed = max(
        -(-len(pairs) // processes) * int(max(data.source_lengths[pairs].max(), data.target_lengths[pairs].max()))
        for pairs in plan.updates
    )

    def measure(limit: int) -> tuple[int, int] | None:
        passes = heaviest_passes(plan, data, limit, processes)
        size = max(pass_size(data, passed) for passed in passes)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(workers.device)
        before = torch.cuda.memory_reserved(workers.device)
        if _try_passes(state, data, passes, training, workers) is not None:
            return None
        return size, torch.cuda.max_memory_reserved(workers.device) - before

    weights = sum(parameter.nbytes for parameter in state.parameters)
    to_come = (0 if state.optimizer.state else 2 * weights) + (weights if processes > 1 else 0)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(workers.device)
    limit = fit_limit(measure, int(free - HEAD_ROOM * total - to_come), needed)
    return int(min(workers.gather([limit])))


def fit_limit(measure: Callable[[int], tuple[int, int] | None], available: int, needed: int) -> int:
    """The largest limit whose passes are expected to fit, from a straight line through measurements.

    Args:
        measure: tries passes of a limit, and returns the padded tokens of the largest and the bytes it took; None when
            memory was too small.
        available: bytes.
        needed: the limit by which an update is one pass: more would change nothing.
    """
    points: list[tuple[int, int]] = []
    for limit in PROBED_TOKENS:
        point = measure(min(limit, needed))
        if point is None:
            return lower_limit(min(limit, needed)) if not points else points[-1][0]
        if not points or point[0] > points[-1][0]:
            points.append(point)
    fitting = [size for size, used in points if used <= available]
    if len(points) < 2:
        return needed if fitting else lower_limit(points[0][0])
    ((small, low), (large, high)) = next(pairwise(points))
    slope = max((high - low) / (large - small), 1.0)
    limit = int(large + (available - high) / slope) // ROUNDED_TO * ROUNDED_TO
    return min(needed, max(limit, ROUNDED_TO))
