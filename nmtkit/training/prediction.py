"""Prediction of a training's operations, time and memory.

    recipe + lengths of the pairs + device -> predict -> RUN/prediction.json (by `train`, before its first update)

Operations follow from the lengths: with prepared data they are exact, except for corpora with weights and for subword
sampling, where the first epoch stands for all. Time depends on the share of the device's rate that training reaches
(MFU): on a CPU it is measured, elsewhere assumed, as the output states. Memory is measured by `train` with the heaviest
micro-batches; without that only what the weights need is known.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nmtkit.config.corpus_entries import one_language
from nmtkit.config.schema import Recipe, TrainingConfig
from nmtkit.data.batching import micro_batches_of, plan_of
from nmtkit.data.shards import PairData, Part
from nmtkit.distributed.workers import ComputedPrecision, Precision, tokens_per_pass_of
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.cost import matmul_flops_per_second
from nmtkit.evaluation.devices import device_named, device_of, known_devices, processor_name
from nmtkit.model.decoder_only import build_model, count_parameters
from nmtkit.model.flops import Counters, Lengths, padding_flops
from nmtkit.tasks.known import task_of
from nmtkit.training.loop import training_factor, update_work
from nmtkit.training.micro_batches import SAMPLED_UPDATES
from nmtkit.training.optimizer import freeze

ASSUMED_MFU = {
    "gpu": (
        0.30,
        "assumed share of a GPU's rate; published runs of this model reached, by data sheets and counted operations, "
        "0.30 for NVIDIA's big one on 8 V100 in mixed precision (235,000 tokens/s), 0.28 and 0.37 for the paper's base "
        "and big models on 8 P100 (0.4 and 1.0 s per update)",
    ),
    "cpu": (
        0.23,
        "assumed share of measured matrix products; the tiny model of docs/results.md reached it with AVX-512, and "
        "0.07 with AMX",
    ),
}
"""Share of a device's rate that a training is assumed to reach, including validation and saving; and its source."""
REACHED = "measured: the rate of a short trial of this model on this device"

_ASSUMED_PAIRS = 200_000
_ASSUMED_MEANS = (132_886_171 / 4_500_966, 137_628_246 / 4_500_966)
_ASSUMED_LENGTHS = "assumed: like WMT14 English-German (29.5 and 30.6 tokens on average); run `prepare` for exact ones"
"""End symbols counted, with 32,000 joint merges, as fairseq-preprocess reports. A log-normal distribution of lengths
with a spread of 0.62, and a correlation of the sides of 0.95, is assumed, as in benchmarks/train_gpu.py."""


class AssumedPairs(PairData):
    """A sample of lengths that stands for a corpus not prepared yet, always the same.

    Attributes:
        source_lengths, target_lengths: tokens of each pair, end symbols counted.
        origin: their source, in words.
    """

    def __init__(self, source_lengths: Lengths, target_lengths: Lengths, origin: str) -> None:
        self.source_lengths, self.target_lengths, self.origin = source_lengths, target_lengths, origin
        self.parts = [Part(len(target_lengths), 1.0)]

    @classmethod
    def of_text(cls, longest: int, source_tokens: int | None = None, *, labels: bool = False) -> "AssumedPairs":
        """Return pairs of sentences.

        Args:
            longest: maximum length; 0: no limit.
            source_tokens: the length of all sources; None: as of sentences.
            labels: the targets are labels.
        """
        random = np.random.default_rng(1)
        own = random.standard_normal((_ASSUMED_PAIRS, 2))
        # Two normal variables with variance 1 and correlation 0.95.
        own[:, 0] = 0.95 * own[:, 1] + (1 - 0.95**2) ** 0.5 * own[:, 0]
        # The mean of a log-normal distribution is exp(mu + sigma^2 / 2), hence the subtraction.
        sampled = np.exp(np.log(_ASSUMED_MEANS) - 0.62**2 / 2 + 0.62 * own)
        # At least one token and the end symbol.
        sources, targets = np.clip(np.rint(sampled), 2, longest or np.inf).astype(np.int64).T
        if labels:
            origin = "assumed: as in WMT14, 29.5 tokens on average; run `prepare` for exact ones"
            return cls(sources, np.ones_like(targets), origin)
        if source_tokens is None:
            return cls(sources, targets, _ASSUMED_LENGTHS)
        origin = (
            f"assumed: {source_tokens:,} source tokens and, as in WMT14, 30.6 target tokens on average; run `prepare`"
        )
        return cls(np.full_like(sources, source_tokens + 1), targets, f"{origin} for exact ones")

    @classmethod
    def of_sequences(cls, length: int) -> "AssumedPairs":
        """Return the sequences of running text, which are equally long."""
        targets = np.full(_ASSUMED_PAIRS, length, np.int64)
        return cls(np.ones_like(targets), targets, "data.sequence_length")


@dataclass(frozen=True)
class Hardware:
    """Devices of a training, one process each; rates and memory are those of one device.

    Attributes:
        kind: cpu or gpu.
        rate: FLOP/s of matrix products; mfu: the share of it that training is expected to reach.
        memory: bytes; None where unknown.
        sustained: FLOP/s for the paper's estimate of operations.
        processor: model name of this machine's processor, where that computes.
    """

    devices: int
    device: str
    kind: str
    precision: ComputedPrecision
    rate: float
    rate_source: str
    mfu: float
    mfu_source: str
    memory: float | None
    sustained: float
    processor: str | None = None

    @classmethod
    def here(
        cls, device: torch.device, precision: ComputedPrecision, devices: int, *, mfu: float | None = None,
        rate: float | None = None, reached: float | None = None,
    ) -> "Hardware":  # fmt: skip
        """Return this machine's device: by the table of GPUs, else by a measurement of matrix products.

        Args:
            mfu: stated by the user; rate: measured before; reached: FLOP/s that training was measured to reach.
        """
        on_gpu = device.type == "cuda"
        name = torch.cuda.get_device_name(device) if on_gpu else device.type
        kind = device_of(name) if on_gpu else None
        if kind is not None and precision in kind.rates:
            rate, source = kind.rates[precision], kind.source
        else:
            rate = rate or matmul_flops_per_second(device, precision)
            source = "measured: plain matrix products on this device"
        memory = float(torch.cuda.mem_get_info(device)[1]) if on_gpu else None
        of = "gpu" if on_gpu else "cpu"
        share = (reached / rate, REACHED) if reached and mfu is None else _mfu(mfu, of)
        # For a GPU that the paper does not list, its own rate takes the place of the sustained one.
        sustained = kind.paper_sustained if kind is not None and kind.paper_sustained else rate
        processor = None if on_gpu else processor_name()
        return cls(devices, name, of, precision, rate, source, *share, memory, sustained, processor)

    @classmethod
    def named(cls, name: str, wanted: Precision, devices: int, *, mfu: float | None = None) -> "Hardware":
        """Return a GPU of the table; auto is bf16 where the GPU has it, as in training.

        Raises:
            NmtkitError: there is no such GPU, or it has no rate for that precision.
        """
        kind = device_named(name)
        precision: ComputedPrecision = wanted if wanted != "auto" else "bf16" if "bf16" in kind.rates else "float32"
        if precision not in kind.rates:
            raise NmtkitError(
                f"--device-type {name}: the table has no rate for {precision} (only {', '.join(kind.rates)}); choose a "
                "precision with --set training.precision=..., or give the rate with --rate"
            )
        rate, source = kind.rates[precision], kind.source
        sustained = kind.paper_sustained or rate
        return cls(devices, kind.name, "gpu", precision, rate, source, *_mfu(mfu, "gpu"), kind.memory_bytes, sustained)

    @classmethod
    def stated(cls, name: str, wanted: Precision, devices: int, rate: float, *, mfu: float | None = None) -> "Hardware":
        """Return a device of a given rate: "cpu", or a GPU, on which auto is bf16; its other values are kept."""
        known = next((one for one in known_devices() if one.name == name), None)
        memory, sustained = (known.memory_bytes, known.paper_sustained or rate) if known else (None, rate)
        kind = "cpu" if name == "cpu" else "gpu"
        precision: ComputedPrecision = wanted if wanted != "auto" else "float32" if kind == "cpu" else "bf16"
        return cls(devices, name, kind, precision, rate, "stated with --rate", *_mfu(mfu, kind), memory, sustained)

    @property
    def speed(self) -> float:
        """FLOP/s of training on all devices."""
        return self.devices * self.rate * self.mfu


def _mfu(stated: float | None, kind: str) -> tuple[float, str]:
    return (stated, "stated with --mfu") if stated is not None else ASSUMED_MFU[kind]


def predict(
    recipe: Recipe, data: PairData, vocab_sizes: tuple[int, int], hardware: Hardware, tokens_per_pass: int = 0,
    tried_bytes: int | None = None, origin: str = "the prepared data",
) -> dict[str, Any]:  # fmt: skip
    """Predict a training from the beginning to its limits, in the form of RUN/prediction.json.

    Patience is not predicted: with it the training may end sooner.

    Args:
        tokens_per_pass: the limit of micro-batches where it is settled; 0: the recipe's, else the default.
        tried_bytes: memory that the heaviest micro-batches have taken on one device, where they were tried.
        origin: the source of the lengths, in words, where they are not assumed.

    Raises:
        NmtkitError: the number of updates cannot be known without prepared data, or no pair fits into an update.
    """
    training, is_prepared = recipe.training, not isinstance(data, AssumedPairs)
    plan = plan_of(data, training, 0)
    plan.check(training.tokens_per_update)
    per_epoch = len(plan.updates)

    def work(updates: list[Any]) -> Counters:
        pairs = np.concatenate(updates)
        counters = update_work(recipe.model, training, vocab_sizes, data.sequence_lengths(pairs))
        counters.target_tokens = int(data.target_lengths[pairs].sum())
        return counters

    epoch_work = work(plan.updates)
    updates, limit = _num_updates(training, is_prepared, per_epoch, epoch_work.flops / per_epoch / hardware.speed)
    if is_prepared:
        epochs, rest = divmod(updates, per_epoch)
        total = Counters(**{name: value * epochs for name, value in epoch_work.counters().items()})
        if rest:
            last = plan_of(data, training, epochs)
            total += work(last.updates[:rest])
    else:  # of a sample, its mean
        scale = updates / per_epoch
        total = Counters(**{name: round(value * scale) for name, value in epoch_work.counters().items()})
    per_micro_batch = tokens_per_pass or training.tokens_per_pass or tokens_per_pass_of(hardware.kind)
    # A sample has far too much padding: the larger the corpus, the more alike the lengths in a micro-batch.
    padding = None
    if is_prepared:
        chosen = plan.sample(max(8, SAMPLED_UPDATES // hardware.devices))
        sample = micro_batches_of(data, chosen, per_micro_batch, hardware.devices, hardware.kind)
        added = padding_flops(recipe.model, [data.sequence_lengths(pairs) for pairs in sample])
        padding = round(total.flops * (training_factor(training) * added / work(sample).flops))
    weights = 4 * count_parameters(recipe.model, *vocab_sizes)
    trained = weights
    if training.freeze:
        with torch.device("meta"):  # which takes no memory
            freeze(model := build_model(recipe.model, *vocab_sizes), training.freeze)
        trained = 4 * sum(each.numel() for each in model.parameters() if each.requires_grad)
    first_update_bytes = (3 if hardware.devices > 1 else 2) * trained  # Adam's moments, and the exchange of gradients
    weight_bytes = (2 if training.ema_decay else 1) * weights + trained  # weights, moving average and gradients
    return {
        "updates": updates,
        "limit": limit,
        "epochs": updates / per_epoch if is_prepared else None,
        "source_language": one_language(recipe.data.source_languages),
        "target_language": one_language(recipe.data.target_languages),
        "unit": task_of(recipe.data).unit,
        "lengths": data.origin if isinstance(data, AssumedPairs) else origin,
        "parameters": weights // 4,
        **total.counters(),
        "flops_padding": padding,
        "flops_paper_estimate": total.flops / hardware.speed * hardware.devices * hardware.sustained,
        "devices": hardware.devices,
        "device": hardware.device,
        "processor": hardware.processor,
        "precision": hardware.precision,
        "rate": hardware.rate,
        "rate_source": hardware.rate_source,
        "mfu": hardware.mfu,
        "mfu_source": hardware.mfu_source,
        "seconds": total.flops / hardware.speed,
        "tokens_per_pass": per_micro_batch,
        "memory_bytes": (weight_bytes if tried_bytes is None else tried_bytes) + first_update_bytes,
        "memory_source": "at least; the memory of forward and backward is measured when training begins"
        if tried_bytes is None
        else "measured with the largest micro-batches, including the optimizer's state",
        "device_memory_bytes": hardware.memory,
    }


def _num_updates(
    training: TrainingConfig, is_prepared: bool, per_epoch: int, seconds_per_update: float
) -> tuple[int, str]:
    """Return the updates until the nearest limit, and that limit."""
    limits: dict[str, float] = {}
    if training.max_steps is not None:
        limits[f"max_steps = {training.max_steps}"] = training.max_steps
    if training.max_epochs is not None and is_prepared:
        limits[f"max_epochs = {training.max_epochs}"] = training.max_epochs * per_epoch
    if training.max_minutes is not None:
        limits[f"max_minutes = {training.max_minutes:g}"] = max(1.0, 60 * training.max_minutes // seconds_per_update)
    if not limits:
        raise NmtkitError(
            f"max_epochs = {training.max_epochs} gives no number of updates until the data are prepared: run "
            "`nmtkit prepare` first, or give --set training.max_steps=N"
        )
    limit = min(limits, key=lambda name: limits[name])
    return int(limits[limit]), limit
