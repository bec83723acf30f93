"""The precision of a training: `auto` becomes float32 or bf16 once, when a run begins, and stays so in the run.

On a CPU a short trial of the model decides: float32 unless bf16 is at least 1.2 times as fast. Neither its instructions
nor the rate of its matrix products is decisive: casts of weights and activations cost time too, and without bf16
instructions a pass takes 18 to 50 times as long.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nmtkit.config.schema import Recipe
from nmtkit.console import amount, log
from nmtkit.data.batch import Batch, batch_of, label_batch
from nmtkit.distributed.cpu import has_bf16_instructions
from nmtkit.distributed.workers import ComputedPrecision, Workers
from nmtkit.text.vocabulary import SPECIAL_PIECES
from nmtkit.training.loop import run_micro_batch, update_work
from nmtkit.training.micro_batches import leaving_no_trace
from nmtkit.training.state import TrainingState

_TRIAL_PAIRS = (4, 30, 60)
_TRIAL_TOKENS = 32
"""Tokens of each sentence of a trial, end symbols counted."""
_ROUNDS = 3
"""Micro-batches per precision, in turn; the fastest counts. The first one warms up. Each has a pair fewer than the one
before, and source and target differ: in training hardly any number of tokens recurs, and for each new one oneDNN
generates code, more of it in bf16.
"""
_TRIAL_SECONDS = 3.0
"""Time after which a trial ends, but not before two rounds."""
_CLEARLY_FASTER, _HOPELESS = 1.2, 3.0
"""Ratio of bf16's rate to float32's from which it is chosen, and of float32's to bf16's from which a trial ends."""


def settle_precision(
    recipe: Recipe, state: TrainingState, saved: dict[str, Any] | None, workers: Workers
) -> tuple[Recipe, Workers]:
    """Replace `auto` by the run's precision, the same in all processes.

    That is the precision of its resume state, else what suits all devices: float32 unless each of them has bf16. A bf16
    stated by the recipe is kept, with a warning where float32 is faster.

    Args:
        saved: state.json of the state that the run continues from; None where it begins.
    """
    found = workers.gather([(has_bf16_instructions(), workers.precision)])
    stated, has_instructions = recipe.training.precision, all(has for has, _ in found)
    # Of different devices, some with bf16, float32 is what all can compute.
    if len({precision for _, precision in found}) > 1:
        workers = replace(workers, precision="float32")
    is_open = stated == "auto" and saved is None and has_instructions and not workers.is_settled
    # A bf16 is tried when a run begins with it, and later only on a processor without its instructions.
    is_doubtful = "bf16" in (stated, saved and saved["precision"]) and not (saved and has_instructions)
    is_small = state.model.config.has_actions  # and reads no ids, of which a trial is made
    if workers.device.type == "cpu" and (is_open or is_doubtful) and not is_small:
        chosen, _ = try_precision(state, workers, "auto" if is_open else "bf16")
        workers = replace(workers, precision=chosen) if is_open else workers
    return with_precision(recipe, saved, workers)


def with_precision(recipe: Recipe, saved: dict[str, Any] | None, workers: Workers) -> tuple[Recipe, Workers]:
    """Return the recipe with its precision in place of `auto`, and workers that compute in it."""
    if recipe.training.precision != "auto":
        return recipe, workers
    workers = replace(workers, precision=saved["precision"] if saved else workers.precision)
    training = recipe.training.model_copy(update={"precision": workers.precision})
    return recipe.model_copy(update={"training": training}), workers


def try_precision(
    state: TrainingState, workers: Workers, stated: str
) -> tuple[ComputedPrecision, dict[ComputedPrecision, float]]:
    """Return the precision to train in on this CPU, the same in all processes, and the rates found by a trial."""
    if stated not in ("auto", "bf16") or (stated == "auto" and not has_bf16_instructions()):
        return workers.precision, trial_rates(state, workers, (workers.precision,))
    rates = trial_rates(state, workers, ("float32", "bf16"))
    in_words = " and ".join(f"{amount(rate)}FLOP/s in {precision}" for precision, rate in rates.items())
    if stated == "auto":
        faster: ComputedPrecision = "bf16" if rates["bf16"] >= _CLEARLY_FASTER * rates["float32"] else "float32"
        # That of rank 0: near the limit, processes may measure differently.
        chosen: ComputedPrecision = workers.gather([faster])[0]
        log.info("precision: %s, chosen by a short trial of this model: %s", chosen, in_words)
        return chosen, rates
    if rates["bf16"] < rates["float32"] and workers.is_main:
        log.warning(
            "training.precision = bf16 is slower than float32 on this processor: a trial of this model reached %s; "
            'a new run with precision = "auto" chooses the faster one',
            in_words,
        )  # fmt: skip
    return "bf16", rates


def trial_rates(
    state: TrainingState, workers: Workers, precisions: Sequence[ComputedPrecision]
) -> dict[ComputedPrecision, float]:
    """Measure the FLOP/s of this process in each precision, in micro-batches of random ids.

    Those of 128 tokens come first; where bf16 is far slower in them, larger ones would only take time. Those of 1,920,
    about as many as in training, come last and only for models that are fast enough. Weights, gradients and random
    numbers are unchanged afterwards.
    """
    end = time.perf_counter() + _TRIAL_SECONDS
    config, vocab = state.model.config, state.model.output_embedding.size(0)
    smallest = min(len(table) for table in state.model.embeddings.values())
    is_one_row = config.is_joined and config.head == "none"  # of both sides, without the end symbol of the source
    length = _TRIAL_TOKENS
    if config.positions == "learned":  # others have no limit
        length = min(length, (config.max_positions + 1) // 2 if is_one_row else config.max_positions)
    for most_pairs in _TRIAL_PAIRS:
        rates = dict.fromkeys(precisions, 0.0)
        for num_pairs in range(most_pairs, most_pairs - _ROUNDS, -1):
            ids = np.random.default_rng(1).integers(len(SPECIAL_PIECES), smallest, (num_pairs, length - 1))
            batch: Batch = batch_of(list(ids[:, 1:]), list(ids))
            one, both = np.ones(num_pairs, np.int64), np.full(num_pairs, length)
            if config.head != "none":
                # label_batch finds the ends of sequences by this entry, so it may stand nowhere else.
                ids[ids == vocab - 1] -= 1
                ids[:, -1] = vocab - 1  # the last token of a sequence
                batch = label_batch(ids.ravel(), both - 1, vocab - 1, 0 * one)
            lengths = (np.maximum(both - 1, 1), both) if config.head == "none" else (both - 1, one)
            flops = update_work(config, state.training, state.vocab_sizes, lengths).flops
            for precision in precisions:
                in_precision = replace(workers, precision=precision)
                with leaving_no_trace(state, workers):
                    begun = time.perf_counter()
                    run_micro_batch(state, batch, ids.size, in_precision)
                    rates[precision] = max(rates[precision], flops / (time.perf_counter() - begun))
            is_hopeless = _HOPELESS * rates.get("bf16", math.inf) < max(rates.values())
            is_over = num_pairs < most_pairs and (is_hopeless or time.perf_counter() > end)
            if is_over:
                return rates
    return rates
