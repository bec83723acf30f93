"""The optimiser of a run: which weights it changes, and how one update of them is made or skipped."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmtkit.config.schema import TrainingConfig
from nmtkit.errors import NmtkitError
from nmtkit.model.transformer import Transformer

_FUSED = ("cpu", "cuda")
"""Devices on which one kernel makes the whole step, and skips it by itself when told so by a number on the device."""


def freeze(model: Transformer, prefixes: Sequence[str]) -> None:
    """Leaves the parameters of the named parts as they are: they get no gradient and the optimiser does not have them.

    Args:
        prefixes: beginnings of parameters' names up to a dot, such as "encoder", "decoder.0" or "embeddings".

    Raises:
        NmtkitError: no parameter is named so, or none is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for prefix in prefixes:
        if not any(_is_part(name, prefix) for name in names):
            raise NmtkitError(f"training.freeze: the model has no part {prefix!r}; it has {', '.join(_parts(names))}")
    for name, parameter in model.named_parameters():
        if any(_is_part(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise NmtkitError(f"training.freeze = {list(prefixes)} leaves no parameters to train; name fewer parts")


def _is_part(name: str, prefix: str) -> bool:
    return f"{name}.".startswith(f"{prefix}.")


def _parts(names: list[str]) -> list[str]:
    """The first two words of the names, each once, in their order; of the stacks also the first word alone."""
    parts: dict[str, None] = {}
    for name in names:
        first, second = name.split(".")[:2]
        parts[first] = None
        parts[f"{first}.{second}"] = None
    return list(parts)


def new_optimizer(model: Transformer, training: TrainingConfig) -> torch.optim.Optimizer:
    """Adam over all parameters that are trained; the learning rate is set anew at each update.

    With weight_decay it is AdamW: each update also takes learning rate x weight_decay x weight off every matrix and
    embedding; biases and the gains of norms are left alone.

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
    """Makes a step of the optimiser if a number on the device says so, without waiting for that number.

    Where no fused optimiser knows how to skip a step (MPS), the number is waited for.

    Args:
        is_good: a truth value without dimensions.
    """
    if optimizer.defaults["fused"]:
        optimizer.found_inf = (~is_good).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif bool(is_good):
        optimizer.step()
