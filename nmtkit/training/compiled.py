"""`training.compile`: the model's layers through torch.compile, and what that costs."""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from nmtkit.console import duration, log
from nmtkit.data.batch import Batch
from nmtkit.model.transformer import Transformer

Loss = Callable[[Transformer, Batch, float], tuple[Tensor, Tensor]]
"""What `objective.batch_loss` is: sums of loss and nll of a batch."""

MAX_VARIANTS = 64
"""Compiled variants of one function that torch keeps before it goes on without compiling."""


class CompiledLoss:
    """A loss whose encoder and decoder layers run compiled; elsewhere, as in validation, the model stays as it is.

    Layers of a kind share their code. Sentences and lengths are symbols in it, so it is compiled anew only for what
    differs in kind: with and without padding, one sentence or several.
    """

    def __init__(self, loss: Loss, model: Transformer) -> None:
        torch._dynamo.config.recompile_limit = MAX_VARIANTS
        self._loss = loss
        self._layers = [*model.encoder, *model.decoder]
        self._calls = []
        for layer in self._layers:
            layer.compile(dynamic=True)
            self._calls.append(layer._compiled_call_impl)
            layer._compiled_call_impl = None
        self._clock = _clock()
        self._clock.listen()
        self._told = self._clock.times

    def __call__(self, model: Transformer, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        for layer, call in zip(self._layers, self._calls, strict=True):
            layer._compiled_call_impl = call
        try:
            return self._loss(model, batch, label_smoothing)
        finally:
            for layer in self._layers:
                layer._compiled_call_impl = None

    def tell(self, step: int) -> None:
        """Logs what was compiled since the last time, if anything was."""
        clock = self._clock
        if clock.times > self._told:
            log.info(
                "update %d: torch.compile compiled %d functions for new tensor shapes; %d so far, in %s",
                step, clock.times - self._told, clock.times, duration(clock.seconds),
            )  # fmt: skip
            self._told = clock.times


def compile_cost() -> tuple[int, float]:
    """Pieces of code that this process has had torch compile, and the seconds that this took; counted from the first
    call on, or from the first `CompiledLoss`."""
    clock = _clock()
    clock.listen()
    return clock.times, clock.seconds


class _Clock:
    """Counts what torch compiles in this process, and the time it takes."""

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0
        self._begun = 0.0

    def listen(self) -> None:
        """Has torch tell of what it compiles from now on, also after a reset of its compiler."""
        from torch._dynamo.callback import callback_handler, on_compile_end, on_compile_start

        if self._start not in callback_handler.start_callbacks:
            on_compile_start(self._start)
            on_compile_end(self._end)

    def _start(self, *_: object) -> None:  # newer versions of torch say what they compile
        self._begun = time.monotonic()

    def _end(self, *_: object) -> None:
        self.times += 1
        self.seconds += time.monotonic() - self._begun


@cache
def _clock() -> _Clock:
    return _Clock()
