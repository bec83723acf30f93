"""Sums over the updates between two reports."""

from dataclasses import dataclass

import torch


@dataclass
class Meter:
    """What the updates since the last report add up to."""

    updates: int = 0
    loss: float = 0.0
    nll: float = 0.0
    gradient_norm: float = 0.0
    target_tokens: int = 0
    real_tokens: int = 0
    padded_tokens: int = 0
    seconds: float = 0.0

    def add(
        self,
        *,
        loss: float,
        nll: float,
        gradient_norm: float,
        target_tokens: int,
        real_tokens: int,
        padded_tokens: int,
        seconds: float,
    ) -> None:
        """Adds one update. ``loss`` and ``nll`` are sums over its target tokens."""
        self.updates += 1
        self.loss += loss
        self.nll += nll
        self.gradient_norm += gradient_norm
        self.target_tokens += target_tokens
        self.real_tokens += real_tokens
        self.padded_tokens += padded_tokens
        self.seconds += seconds


def memory_bytes(device: torch.device) -> int:
    """The most memory this process has used: on the device for CUDA, else resident in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
