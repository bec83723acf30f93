"""The optimizer of a run: its learning rate, the weights it changes, and how one update of them is made or skipped."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.config.schema import TrainingConfig
from nmtkit.errors import NmtkitError
from nmtkit.model.transformer import Transformer

_FUSED = ("cpu", "cuda")
"""Devices on which one kernel makes the whole step, and skips it depending on a number on the device."""


def learning_rate(step: int, training: TrainingConfig, d_model: int) -> float:
    """Return the learning rate of update ``step``, the first being 1.

    noam: d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5). Source: equation 3.
    The others rise linearly to peak_learning_rate at warmup_steps; then inverse-sqrt falls with step^-0.5, cosine and
    linear fall to final_learning_rate at max_steps, constant stays.
    """
    warmup = training.warmup_steps
    if training.schedule == "noam":
        return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))
    peak = training.peak_learning_rate
    if step < warmup:
        return peak * step / warmup
    if training.schedule == "inverse-sqrt":
        # Without warm-up, the peak is at update 1.
        return peak * math.sqrt(max(warmup, 1) / step)
    if training.schedule == "constant":
        return peak
    assert training.max_steps is not None
    done = min(1.0, (step - warmup) / max(1, training.max_steps - warmup))
    share = 1 - done if training.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return training.final_learning_rate + (peak - training.final_learning_rate) * share


def freeze(model: Transformer, prefixes: Sequence[str]) -> None:
    """Exclude parameters from training: they get no gradient, and the optimizer does not hold them.

    Args:
        prefixes: beginnings of parameters' names up to a dot, such as "encoder", "decoder.0" or "embeddings".

    Raises:
        NmtkitError: no parameter is named so, or none is left to train.
    """
    frozen = dict.fromkeys(prefixes, 0)
    for name, parameter in model.named_parameters():
        for prefix in prefixes:
            if f"{name}.".startswith(f"{prefix}."):
                parameter.requires_grad_(False)
                frozen[prefix] += 1
    for prefix, count in frozen.items():
        if not count:
            names = [name.split(".") for name, _ in model.named_parameters()]
            parts = dict.fromkeys(".".join(words[:depth]) for words in names for depth in (1, 2))
            raise NmtkitError(f"training.freeze: the model has no part {prefix!r}; it has {', '.join(parts)}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise NmtkitError(f"training.freeze = {list(prefixes)} leaves no parameters to train; name fewer parts")


def new_optimizer(model: Transformer, training: TrainingConfig) -> torch.optim.Optimizer:
    """Return Adam over all parameters that are trained; the learning rate is set at each update.

    With weight_decay it is AdamW: each update also subtracts learning rate x weight_decay x weight from every matrix
    and embedding, but not from biases and the gains of norms.

    Source: section 5.3; Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_fused = trained[0].device.type in _FUSED
    if not training.weight_decay:
        return torch.optim.Adam(trained, lr=0.0, betas=training.adam_betas, eps=training.adam_epsilon, fused=is_fused)
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=0.0, betas=training.adam_betas, eps=training.adam_epsilon, fused=is_fused)


def step_if(is_good: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Make a step of the optimizer if a truth value on the device is true, without waiting for that value.

    Where no fused optimizer can skip a step by itself (MPS), it is waited for.
    """
    if optimizer.defaults["fused"]:
        # The attribute by which torch.amp.GradScaler makes a fused optimizer skip a step.
        optimizer.found_inf = (~is_good).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif bool(is_good):
        optimizer.step()
