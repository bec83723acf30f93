"""Interface between search and model: log-probabilities of the next token, and selection of hypotheses."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.joined_step_decoder import JoinedStepDecoder
from nmtkit.model.step_decoder import StepDecoder


@runtime_checkable
class Stepper(Protocol):
    """Next-token distributions of hypotheses, from a model, an ensemble, or a table of numbers in a test."""

    def step(self, last_ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        """Return log-probabilities of the next token after ``last_ids`` and those before; callers may modify them."""

    def attention(self) -> Float[Tensor, "rows source"]:
        """Return the attention of the last step to the source: weights that add up to 1, and are 0 on padding."""

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Replace row i by row ``rows.flatten()[i]``; each row of the matrix ``rows`` belongs to one sentence."""


def promoted(values: Tensor) -> Tensor:
    """Return values in float32, or float64 if they are."""
    return values if values.dtype == torch.float64 else values.float()


class ModelStepper:
    """One or more models with the same vocabulary; the probabilities of several are averaged."""

    def __init__(
        self,
        decoders: Sequence[StepDecoder | JoinedStepDecoder],
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        *,
        keep_attention: bool = False,
    ) -> None:
        """Encode the source, given as padded ids with the end symbol; each sentence has one hypothesis at first.

        Args:
            source_lengths: lengths with the end symbol, on the CPU.
            keep_attention: required for `attention`.
        """
        self._decoders = decoders
        self._states: list[Any] = [decoder.start(source, source_lengths) for decoder in decoders]
        self._keep_attention = keep_attention

    def step(self, last_ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        log_probs = []
        for decoder, state in zip(self._decoders, self._states, strict=True):
            logits = decoder.step(last_ids, state, keep_attention=self._keep_attention)
            # bfloat16 has two to three digits, too few for a softmax over a vocabulary.
            log_probs.append(torch.log_softmax(promoted(logits), dim=-1))
        if len(log_probs) == 1:
            return log_probs[0]
        # The mean of the probabilities; as logarithms, small ones do not underflow.
        return torch.logsumexp(torch.stack(log_probs), dim=0) - math.log(len(log_probs))

    def attention(self) -> Float[Tensor, "rows source"]:
        """Return the mean over the heads of the last decoder layer and over the models."""
        return torch.stack([promoted(state.attention) for state in self._states]).mean(0)

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        for state in self._states:
            state.select(rows)
