"""Prediction of what a training takes: operations, time, memory.

    recipe + lengths of the pairs + device -> predict -> RUN/prediction.json (by `train`, before its first update)

Operations follow from the plan of the updates, which is a pure function of the lengths: with prepared data they are
exact, but for corpora with weights and for subword sampling, where the first epoch stands for all. Time needs a share
of the device's rate that training reaches (MFU): on a CPU it is measured, else it is assumed, and the output says so.
Memory is measured by `train` in the passes that need most; without such a trial only what the weights need is known.
"""

from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmtkit.config.schema import ModelConfig, Recipe, TrainingConfig
from nmtkit.data.batching import EpochPlan, Indices, pairs_of_epoch, plan_epoch, share_update
from nmtkit.data.shards import PairData, Part
from nmtkit.distributed.workers import ComputedPrecision, Precision, tokens_per_pass_of
from nmtkit.errors import NmtkitError
from nmtkit.evaluation.cost import matmul_flops_per_second
from nmtkit.evaluation.devices import device_named, device_of, processor_name
from nmtkit.model.flops import Lengths, count_parameters, forward_flops, padding_flops
from nmtkit.training.loop import training_factor
from nmtkit.training.micro_batches import SAMPLED_UPDATES

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
"""Shares of a device's rate that a training is assumed to reach, validation and saving counted, and where from."""
REACHED = "measured: the rate of trial passes of this model on this device"
MEMORY_MEASURED = "measured with the largest micro-batches, including the optimizer's state"
MEMORY_OF_WEIGHTS = "at least; the memory of forward and backward is measured when training begins"

_ASSUMED_PAIRS = 200_000
_ASSUMED_MEANS = (132_886_171 / 4_500_966, 137_628_246 / 4_500_966)
_ASSUMED_LENGTHS = "assumed: like WMT14 English-German (29.5 and 30.6 tokens on average); run `prepare` for exact ones"
"""End symbols counted, of 32,000 joint merges, as fairseq-preprocess tells. That lengths are log-normal with a spread
of 0.62, and the sides correlated by 0.95, is assumed, as in benchmarks/train_gpu.py."""


@dataclass(frozen=True)
class PairLengths:
    """What is known of the training pairs.

    Attributes:
        source, target: tokens of each pair, end symbols counted.
        num_pairs: of an epoch; None where the lengths are a made-up sample.
        origin: where they are from.
        parts: the corpora with their weights; none: every pair once an epoch.
    """

    source: Lengths
    target: Lengths
    num_pairs: int | None
    origin: str
    parts: tuple[Part, ...] = ()

    @classmethod
    def of_data(cls, folder: Path, origin: str = "the prepared data") -> "PairLengths":
        """Those of RUN/data/train, or of what was drawn from it for an epoch."""
        data = PairData(folder)
        return cls(data.source_lengths, data.target_lengths, data.pairs_per_epoch, origin, tuple(data.parts))

    @classmethod
    def assumed(cls, longest: int) -> "PairLengths":
        """A sample that stands for a corpus not prepared yet, always the same."""
        random = np.random.default_rng(1)
        own = random.standard_normal((_ASSUMED_PAIRS, 2))
        own[:, 0] = 0.95 * own[:, 1] + (1 - 0.95**2) ** 0.5 * own[:, 0]
        drawn = np.exp(np.log(_ASSUMED_MEANS) - 0.62**2 / 2 + 0.62 * own)
        lengths = np.clip(np.rint(drawn), 2, longest or np.inf).astype(np.int64)
        return cls(lengths[:, 0], lengths[:, 1], None, _ASSUMED_LENGTHS)


@dataclass(frozen=True)
class Hardware:
    """What a training shall run on.

    Attributes:
        devices: how many, one process each.
        device: their name; kind: cpu or gpu.
        rate: FLOP/s of matrix products of one in that precision, and rate_source where it is from.
        mfu: share of it that training is expected to reach, and mfu_source where it is from.
        memory: bytes of one; None where it is not known.
        sustained: FLOP/s of one that the paper's estimate of operations goes by.
        processor: model name of this machine's processor, where that is what computes.
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
        """This machine's device: by the table of GPUs, else by a measurement of matrix products.

        Args:
            mfu: what to assume in place of `ASSUMED_MFU`.
            rate: what was measured already.
            reached: FLOP/s that training was measured to reach on one device, if it was.
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
        sustained = kind.paper_sustained if kind is not None and kind.paper_sustained else rate
        processor = None if on_gpu else processor_name()
        return cls(devices, name, of, precision, rate, source, *share, memory, sustained, processor)

    @classmethod
    def named(cls, name: str, wanted: Precision, devices: int, *, mfu: float | None = None) -> "Hardware":
        """A GPU of the table.

        Args:
            wanted: precision of the recipe; auto is bf16 where the GPU has it, as in training.

        Raises:
            NmtkitError: there is no such GPU, or it has no rate for that precision.
        """
        kind = device_named(name)
        auto: ComputedPrecision = "bf16" if "bf16" in kind.rates else "float32"
        precision = auto if wanted == "auto" else wanted
        if precision not in kind.rates:
            known = ", ".join(kind.rates)
            raise NmtkitError(
                f"--device-type {name}: the table has no rate for {precision} (only {known}); choose a precision with "
                "--set training.precision=..., or give the rate with --rate"
            )
        rate, source = kind.rates[precision], kind.source
        sustained = kind.paper_sustained or rate
        return cls(devices, kind.name, "gpu", precision, rate, source, *_mfu(mfu, "gpu"), kind.memory_bytes, sustained)

    @classmethod
    def stated(cls, name: str, wanted: Precision, devices: int, rate: float, *, mfu: float | None = None) -> "Hardware":
        """A device whose rate somebody states: "cpu", or a GPU, on which auto is bf16."""
        kind = "cpu" if name == "cpu" else "gpu"
        precision: ComputedPrecision = wanted if wanted != "auto" else "float32" if kind == "cpu" else "bf16"
        return cls(devices, name, kind, precision, rate, "stated with --rate", *_mfu(mfu, kind), None, rate)


def _mfu(stated: float | None, kind: str) -> tuple[float, str]:
    return (stated, "stated with --mfu") if stated is not None else ASSUMED_MFU[kind]


def predict(
    recipe: Recipe, lengths: PairLengths, vocab_sizes: tuple[int, int], hardware: Hardware, tokens_per_pass: int = 0,
    tried_bytes: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What a training from the beginning to its limits will take, in the form of RUN/prediction.json.

    Patience is not foreseen: with it the training may end sooner.

    Args:
        tokens_per_pass: the limit of passes where it is settled; 0: the recipe's, else what suits the kind of device.
        tried_bytes: memory that the passes which need most have taken on one device, where they were tried.

    Raises:
        NmtkitError: the number of updates cannot be known without prepared data, or no pair fits into an update.
    """
    training, model = recipe.training, recipe.model
    plan = _plan(lengths, training, 0)
    plan.check(training.tokens_per_update)
    factor = training_factor(training)
    of_epoch = _work(model, vocab_sizes[1], lengths, np.concatenate(plan.updates))
    seconds_per_update = factor * sum(of_epoch[:3]) / len(plan.updates) / _speed(hardware)
    updates, limit = _num_updates(training, lengths, len(plan.updates), seconds_per_update)
    encoder, decoder, output, attention, target_tokens = _all_work(
        recipe, vocab_sizes[1], lengths, plan, of_epoch, updates
    )
    suited = tokens_per_pass_of("cpu" if hardware.kind == "cpu" else "cuda")
    per_pass = tokens_per_pass or training.tokens_per_pass or suited
    padding = None  # of a sample it would be far too much: the larger the corpus, the more alike a pass's lengths
    if lengths.num_pairs is not None:
        padding = _share_of_padding(model, vocab_sizes[1], lengths, plan, per_pass, hardware.devices)
    parameters = count_parameters(model, *vocab_sizes)
    # The first update allocates the two moments of Adam and, with several devices, a flat copy of the gradients; what
    # was measured has the weights, their gradients and the moving average in it already.
    float32_copies = 2 + (hardware.devices > 1)
    if tried_bytes is None:
        float32_copies += 2 + (training.ema_decay > 0)
    flops = factor * (encoder + decoder + output)
    return {
        "updates": updates,
        "limit": limit,
        "epochs": updates / len(plan.updates) if lengths.num_pairs is not None else None,
        "source_language": recipe.data.source_language,
        "target_language": recipe.data.target_language,
        "lengths": lengths.origin,
        "parameters": parameters,
        "target_tokens": target_tokens,
        "flops": flops,
        "flops_encoder": factor * encoder,
        "flops_decoder": factor * decoder,
        "flops_output": factor * output,
        "flops_attention": factor * attention,
        "flops_padding": None if padding is None else round(flops * padding),
        "flops_paper_estimate": flops / _speed(hardware) * hardware.devices * hardware.sustained,
        "devices": hardware.devices,
        "device": hardware.device,
        "processor": hardware.processor,
        "precision": hardware.precision,
        "rate": hardware.rate,
        "rate_source": hardware.rate_source,
        "mfu": hardware.mfu,
        "mfu_source": hardware.mfu_source,
        "seconds": flops / _speed(hardware),
        "tokens_per_pass": per_pass,
        "memory_bytes": (tried_bytes or 0) + 4 * parameters * float32_copies,
        "memory_source": MEMORY_OF_WEIGHTS if tried_bytes is None else MEMORY_MEASURED,
        "device_memory_bytes": hardware.memory,
    }


def _speed(hardware: Hardware) -> float:
    return hardware.devices * hardware.rate * hardware.mfu


def _plan(lengths: PairLengths, training: TrainingConfig, epoch: int) -> EpochPlan:
    return plan_epoch(
        lengths.source, lengths.target, training.tokens_per_update, training.seed, epoch, training.lengths_per_update,
        pairs_of_epoch(lengths.parts, training.seed, epoch),
    )  # fmt: skip


def _work(model: ModelConfig, vocab: int, lengths: PairLengths, pairs: Indices) -> list[int]:
    """Operations of a forward pass over pairs: of encoder, decoder, output and attention; and their target tokens."""
    source, target = lengths.source[pairs], lengths.target[pairs]
    return [*astuple(forward_flops(model, vocab, source, target)), int(target.sum())]


def _num_updates(
    training: TrainingConfig, lengths: PairLengths, in_epoch: int, seconds_per_update: float
) -> tuple[int, str]:
    """The updates until the nearest limit, and that limit."""
    limits: dict[str, float] = {}
    if training.max_steps is not None:
        limits[f"max_steps = {training.max_steps}"] = training.max_steps
    if training.max_epochs is not None and lengths.num_pairs is not None:
        limits[f"max_epochs = {training.max_epochs}"] = training.max_epochs * in_epoch
    if training.max_minutes is not None:
        limits[f"max_minutes = {training.max_minutes:g}"] = max(1.0, 60 * training.max_minutes // seconds_per_update)
    if not limits:
        raise NmtkitError(
            f"max_epochs = {training.max_epochs} gives no number of updates until the data are prepared: run "
            "`nmtkit prepare` first, or give --set training.max_steps=N"
        )
    limit = min(limits, key=lambda name: limits[name])
    return int(limits[limit]), limit


def _all_work(
    recipe: Recipe, vocab: int, lengths: PairLengths, plan: EpochPlan, of_epoch: list[int], updates: int
) -> list[int]:
    """The work of all updates: whole epochs, and what is begun of the last one; of a sample, its mean."""
    in_epoch = len(plan.updates)
    if lengths.num_pairs is None:
        return [round(value * (updates / in_epoch)) for value in of_epoch]
    epochs, rest = divmod(updates, in_epoch)
    work = [value * epochs for value in of_epoch]
    if rest:
        last = plan if epochs == 0 else _plan(lengths, recipe.training, epochs)
        begun = _work(recipe.model, vocab, lengths, np.concatenate(last.updates[:rest]))
        work = [whole + part for whole, part in zip(work, begun, strict=True)]
    return work


def _share_of_padding(
    model: ModelConfig, vocab: int, lengths: PairLengths, plan: EpochPlan, per_pass: int, devices: int
) -> float:
    """That of updates spread evenly over the epoch, of fewer updates where each has passes on many devices."""
    count = max(8, SAMPLED_UPDATES // devices)
    chosen = np.unique(np.linspace(0, len(plan.updates) - 1, count).astype(int))
    passes = [
        passed
        for index in chosen
        for share in share_update(plan.updates[index], lengths.source, lengths.target, per_pass, devices)
        for passed in share
    ]
    real = sum(_work(model, vocab, lengths, np.concatenate(passes))[:3])
    return padding_flops(model, lengths.source, lengths.target, passes) / real
