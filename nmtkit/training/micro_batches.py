"""The size of micro-batches, settled and tested before the first update.

settle_tokens_per_pass      the run's limit: the one it has had, else the recipe's, else what fits into memory
first_update_rate           FLOP/s of the first update on a CPU, for the prediction
heaviest_micro_batches      the micro-batches of an epoch that need the most memory
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from nmtkit.config.schema import TrainingConfig
from nmtkit.console import counted, log
from nmtkit.data.batch import make_batch
from nmtkit.data.batching import EpochPlan, micro_batches_of, plan_of, row_lengths, shares_of
from nmtkit.data.shards import Indices, PairData
from nmtkit.distributed.cpu import noticing_other_load
from nmtkit.distributed.workers import Workers, is_out_of_memory
from nmtkit.training.epochs import TrainingPairs
from nmtkit.training.loop import (
    lower_limit,
    micro_batch_size,
    padded_tokens,
    real_tokens,
    run_micro_batch,
    step_optimizer,
    too_large,
    update_work,
)
from nmtkit.training.state import TrainingState

HEAD_ROOM = 0.1
"""Share of a device's memory that is left free: for fragments, for the optimizer's steps, for longer pairs."""
PROBED_TOKENS = (2048, 8192)
"""Limits at which memory is measured; it grows linearly with the tokens, from an offset on."""
ROUNDED_TO = 256
SAMPLED_UPDATES = 256
"""Updates that statistics of micro-batches are taken from: cutting all those of millions of pairs takes seconds."""
HEAVY_UPDATES = 32
"""Updates, for each of four criteria, among which the heaviest micro-batches are looked for."""
MANY_EPOCHS = 500
"""Epochs above which a training that nothing else ends is probably far too long."""
TRIED_SECONDS = 2.0
"""Time after which the measurement of the first update's rate begins no further micro-batch."""


def heaviest_micro_batches(plan: EpochPlan, data: PairData, tokens_per_pass: int, workers: Workers) -> list[Indices]:
    """Return the micro-batches of any process with the most padded tokens and with the largest attention matrices.

    They are looked for among the updates with the longest sentences and those that fill their micro-batches best.
    """
    lengths = (data.sequence_lengths(pairs) for pairs in plan.updates)
    sizes, sources, targets = np.array([(len(source), source.max(), target.max()) for source, target in lengths]).T
    largest = np.array([int(data.source_lengths[pairs].max()) for pairs in plan.updates])
    counts = -(-sizes // workers.num_processes)  # of the largest share
    rows = row_lengths(sources, targets, is_joined=data.is_joined)
    # Tokens of both sides in a micro-batch as large as the limit allows.
    filled = np.minimum(counts * rows, tokens_per_pass) * (sources + targets) // rows
    chosen = set[int]()
    for weight in (sources, targets, filled, largest):
        chosen.update(np.argsort(-weight, kind="stable")[:HEAVY_UPDATES].tolist())
    updates = [plan.updates[index] for index in sorted(chosen)]
    candidates = micro_batches_of(data, updates, tokens_per_pass, workers.num_processes, workers.device.type)

    def attention(pairs: Indices) -> int:
        source, target = data.padded_lengths(pairs)
        return int((source**2 + target**2 + source * target).sum())

    most_tokens = max(candidates, key=lambda pairs: padded_tokens(data, pairs))
    most_attention = max(candidates, key=attention)
    return [most_tokens] if most_tokens is most_attention else [most_tokens, most_attention]


def settle_tokens_per_pass(state: TrainingState, training_pairs: TrainingPairs, workers: Workers) -> None:
    """Settle the limit of micro-batches, test the heaviest ones, and log the average update.

    The limit becomes part of the run's progress, and so of its resume states, since dropout depends on it. It is the
    same in every process. Weights, gradients and random numbers are unchanged afterwards.

    Raises:
        NmtkitError: the memory of a device is too small for a single pair.
    """
    progress, training = state.progress, state.training
    data = training_pairs.of_epoch(progress.epoch)
    plan = plan_of(data, training, progress.epoch)
    if not plan.updates:
        return
    if progress.tokens_per_pass:
        limit, origin = progress.tokens_per_pass, "kept from earlier in this run"
    elif training.tokens_per_pass:
        limit, origin = training.tokens_per_pass, "set in the recipe"
    elif workers.device.type == "cuda":
        limit, origin = _fit_to_memory(state, data, plan, workers), "fitted to the device's memory"
    else:
        limit, origin = workers.tokens_per_pass, "default for the device"
    while True:
        heaviest = heaviest_micro_batches(plan, data, limit, workers)
        if workers.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(workers.device)  # the prediction reports the peak from here on
        failed = _try(state, data, heaviest, workers)
        all_failed = [pairs for pairs in workers.gather([failed]) if pairs is not None]
        if not all_failed:
            break
        single = next((pairs for pairs in all_failed if len(pairs) == 1), None)
        if single is not None:
            raise too_large(data, int(single[0]), workers)
        # From the least limit that gives these micro-batches: lowering a larger one might not change them.
        limit = min(limit, max(micro_batch_size(data, pairs) for pairs in heaviest))
        log.warning("out of memory with micro-batches of %s tokens; trying %s", f"{limit:,}", f"{lower_limit(limit):,}")
        limit, origin = lower_limit(limit), "lowered to fit the device's memory"
    progress.tokens_per_pass = limit
    if workers.is_main:
        _report_plan(plan, data, training, workers, limit, origin)


def _report_plan(
    plan: EpochPlan, data: PairData, training: TrainingConfig, workers: Workers, limit: int, origin: str
) -> None:
    """Log the average update of a plan; micro-batches and padding are measured on updates spread evenly over it."""
    count, processes = len(plan.updates), workers.num_processes
    tokens = sum(int(data.target_lengths[pairs].sum()) for pairs in plan.updates)
    sample = plan.sample(SAMPLED_UPDATES)
    micro_batches = micro_batches_of(data, sample, limit, processes, workers.device.type)
    real = sum(real_tokens(data, pairs) for pairs in sample)
    padding = 1 - real / sum(padded_tokens(data, pairs) for pairs in micro_batches)
    examples = counted(round(sum(len(pairs) for pairs in plan.updates) / count), data.noun)
    if data.unit:
        most = "" if training.sequences_per_update else f" (at most {training.tokens_per_update:,})"
        examples = f"{tokens / count:,.0f} {data.unit}{most} and {examples}"
    log.info(
        "updates average %s, in %.1f micro-batches on %s "
        "(up to %s tokens, %s); %.1f %% of all tokens are padding; %s per epoch",
        examples, len(micro_batches) / len(sample) / processes,
        "one device" if processes == 1 else f"each of {processes} devices",
        f"{limit:,}", origin, 100 * padding, counted(count, "update"),
    )  # fmt: skip
    others = training.max_epochs, training.max_minutes, training.patience_epochs, training.patience_validations
    if not any(others) and training.max_steps is not None and training.max_steps > MANY_EPOCHS * count:
        log.warning(
            "training.max_steps = %d is %s, and a model may know the training data by heart long before; lower it, or "
            "set training.patience_epochs, which needs data.valid",
            training.max_steps, counted(training.max_steps // count, "epoch"),
        )  # fmt: skip


def first_update_rate(state: TrainingState, training_pairs: TrainingPairs, workers: Workers) -> float | None:
    """Measure the FLOP/s of this process in the first update, while all processes are busy with it.

    Its micro-batches are timed for about TRIED_SECONDS, and the rest by their rate; the exchange of gradients and the
    step of the optimizer are made on a copy. Weights, gradients and random numbers are unchanged afterwards.

    Returns:
        None where this process has no micro-batch.
    """
    data = training_pairs.of_epoch(0)
    plan = plan_of(data, state.training, 0)
    if not plan.updates:
        return None
    all_flops, tried_flops, tried_seconds = 0, 0, 0.0
    limit, processes = state.progress.tokens_per_pass, workers.num_processes
    shares = shares_of(data, plan.updates[0], limit, processes, workers.device.type)
    with noticing_other_load():
        for pairs in shares[workers.rank]:
            lengths = data.sequence_lengths(pairs)
            flops = update_work(state.model.config, state.training, state.vocab_sizes, lengths).flops
            all_flops += flops
            if tried_seconds <= TRIED_SECONDS:
                begun = time.perf_counter()
                _try(state, data, [pairs], workers)
                tried_seconds += time.perf_counter() - begun
                tried_flops += flops
    trial = copy.deepcopy(state)
    for parameter in trial.trained_parameters:
        parameter.grad = torch.zeros_like(parameter)
    step_seconds = 0.0
    for _ in range(2):  # the first one allocates the optimizer's state
        begun = time.perf_counter()
        workers.sum_gradients(trial.trained_parameters)
        step_optimizer(trial, torch.zeros((), device=workers.device), 0.0, workers)
        step_seconds = time.perf_counter() - begun
    return all_flops / (tried_seconds * all_flops / tried_flops + step_seconds) if tried_flops else None


def _try(state: TrainingState, data: PairData, micro_batches: list[Indices], workers: Workers) -> Indices | None:
    """Run forward and backward and discard the results; return the micro-batch for which memory was too small."""
    failed = None
    with leaving_no_trace(state, workers):
        for pairs in micro_batches:
            try:
                run_micro_batch(state, make_batch(data, pairs), int(data.target_lengths[pairs].sum()), workers)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                failed = pairs
                break
    if failed is not None:
        torch.cuda.empty_cache()
    return failed


@contextmanager
def leaving_no_trace(state: TrainingState, workers: Workers) -> Iterator[None]:
    """Set training mode while the block runs; afterwards restore it, random numbers, and the absence of gradients."""
    was_training = state.model.training
    state.model.train()
    # Of this device only: by default, the states of all GPUs would be copied.
    with torch.random.fork_rng(devices=[workers.device] if workers.device.type == "cuda" else []):
        yield
    state.optimizer.zero_grad(set_to_none=True)
    state.model.train(was_training)


def _fit_to_memory(state: TrainingState, data: PairData, plan: EpochPlan, workers: Workers) -> int:
    """Return the limit that fills a CUDA device except for some head-room, the least of all processes.

    It is not larger than an update needs.
    """
    processes = workers.num_processes
    needed = max(
        -(-micro_batch_size(data, pairs) * -(-len(pairs) // processes) // len(pairs)) for pairs in plan.updates
    )

    def measure(limit: int) -> tuple[int, int] | None:
        heaviest = heaviest_micro_batches(plan, data, limit, workers)
        size = max(micro_batch_size(data, pairs) for pairs in heaviest)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(workers.device)
        before = torch.cuda.memory_reserved(workers.device)
        if _try(state, data, heaviest, workers) is not None:
            return None
        # Reserved and not allocated: fragments of the allocator take memory of the device, too.
        return size, torch.cuda.max_memory_reserved(workers.device) - before

    weights = state.weight_bytes
    # Two moments of Adam, and the flat tensor in which gradients are exchanged.
    to_come = (0 if state.optimizer.state else 2 * weights) + (weights if processes > 1 else 0)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(workers.device)
    limit = fit_limit(measure, int(free - HEAD_ROOM * total - to_come), needed)
    return int(min(workers.gather([limit])))


def fit_limit(measure: Callable[[int], tuple[int, int] | None], available: int, needed: int) -> int:
    """Return the largest limit whose micro-batches are expected to fit, from a straight line through measurements.

    Args:
        measure: returns the size of the largest micro-batch of a limit and the bytes it took; None: memory ran out.
        available: bytes.
        needed: the limit with which an update is one micro-batch: more would change nothing.
    """
    points: list[tuple[int, int]] = []
    for limit in PROBED_TOKENS:
        point = measure(min(limit, needed))
        if point is None:
            return lower_limit(min(limit, needed)) if not points else points[-1][0]
        # In small data, both limits may give the same micro-batches.
        if not points or point[0] > points[-1][0]:
            points.append(point)
    if len(points) < 2:
        return needed if points[0][1] <= available else lower_limit(points[0][0])
    (small, low), (large, high) = points
    # The reserved memory may stay the same, as the allocator takes large blocks: then the slope is 0.
    slope = max((high - low) / (large - small), 1.0)
    limit = int(large + (available - high) / slope) // ROUNDED_TO * ROUNDED_TO
    return min(needed, max(limit, ROUNDED_TO))
