"""What beam search sees of a model: log-probabilities of the next token, and keeping or dropping hypotheses.

One model, an ensemble, or a table of numbers in a test can stand behind it.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.model.transformer import Transformer


@runtime_checkable
class Stepper(Protocol):
    """The next-token distribution of every hypothesis."""

    def step(self, last_ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities of the token after ``last_ids``, given all earlier ones; the caller may overwrite them."""
        ...

    def attention(self) -> Float[Tensor, "rows source"]:
        """Where the last step looked in the source: weights that add up to 1, none on padding."""
        ...

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        """Row i becomes what row ``rows.flatten()[i]`` was; each line of ``rows`` is of one sentence."""
        ...


class ModelStepper:
    """One or more models with the same vocabulary; the probabilities of several are averaged."""

    def __init__(
        self,
        models: Sequence[Transformer],
        source: Int[Tensor, "batch source"],
        source_lengths: Int[Tensor, " batch"],
        *,
        keep_attention: bool = False,
    ) -> None:
        """Encodes the source; one hypothesis a sentence at first.

        Args:
            source: ids with the end symbol, padded.
            source_lengths: their tokens, on the CPU.
            keep_attention: whether `attention` will be asked for.
        """
        self._models = models
        self._caches = [model.start_decoding(*model.encode(source, source_lengths)) for model in models]
        for cache in self._caches:
            cache.layers[-1].keeps_weights = keep_attention

    def step(self, last_ids: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab"]:
        log_probs = []
        for model, cache in zip(self._models, self._caches, strict=True):
            logits = model.logits(model.decode(last_ids[:, None], cache))[:, -1]  # [rows, vocab]
            log_probs.append(torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1))
        if len(log_probs) == 1:
            return log_probs[0]
        return torch.logsumexp(torch.stack(log_probs), dim=0) - math.log(len(log_probs))

    def attention(self) -> Float[Tensor, "rows source"]:
        """Of the last decoder layer, the mean of its heads; the mean of several models."""
        weights = [cache.layers[-1].source_weights for cache in self._caches]
        return torch.stack([of_model for of_model in weights if of_model is not None]).mean(0)

    def select(self, rows: Int[Tensor, "sentences beam"]) -> None:
        for cache in self._caches:
            cache.select(rows)
