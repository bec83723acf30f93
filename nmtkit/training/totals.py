"""What updates add up to: between two reports, and lately."""

from dataclasses import dataclass, fields

import torch

from nmtkit.training.loop import Update

_HALF_LIFE_SECONDS = 5.0


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
    flops: int = 0
    seconds: float = 0.0

    def add(self, update: Update) -> None:
        """Adds one update."""
        self.updates += 1
        for name in (field.name for field in fields(self) if field.name != "updates"):
            setattr(self, name, getattr(self, name) + getattr(update, name))


@dataclass(frozen=True)
class Recent:
    """Means over the latest updates: what was five seconds of training ago counts half.

    Attributes:
        weighted: sums of loss, nll, target tokens, real tokens, padded tokens, FLOPs and seconds, so weighted.
    """

    weighted: tuple[float, ...] = (0.0,) * 7

    def after(self, update: Update) -> "Recent":
        """With one more update."""
        kept = 0.5 ** (update.seconds / _HALF_LIFE_SECONDS)
        new = (
            update.loss, update.nll, update.target_tokens, update.real_tokens, update.padded_tokens, update.flops,
            update.seconds,
        )  # fmt: skip
        return Recent(tuple(kept * before + more for before, more in zip(self.weighted, new, strict=True)))

    @property
    def loss(self) -> float:
        """Of a target token, in nats."""
        return self.weighted[0] / self.weighted[2]

    @property
    def nll(self) -> float:
        """Of a target token, in nats, without label smoothing."""
        return self.weighted[1] / self.weighted[2]

    @property
    def padding(self) -> float:
        """Share of all source and target positions."""
        return 1 - self.weighted[3] / self.weighted[4]

    @property
    def target_tokens_per_second(self) -> float:
        """Padding not counted."""
        return self.weighted[2] / self.weighted[6]

    @property
    def flops_per_second(self) -> float:
        """Of matrix products for real tokens."""
        return self.weighted[5] / self.weighted[6]


def memory_bytes(device: torch.device) -> int:
    """The most memory this process has used: on the device for CUDA, else resident in main memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
