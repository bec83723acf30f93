"""One batch of sentence pairs as padded tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from torch import Tensor

from nmtkit.data.shards import PairData
from nmtkit.text.tokenizer import BOS, EOS, PAD


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, padded on the right with PAD.

    Attributes:
        source: source ids, EOS at the end of each [batch, source].
        source_lengths: tokens of each source, EOS counted; stays on the CPU [batch].
        target_in: what the decoder sees: BOS, then the target [batch, target].
        target_out: what it has to predict: the target, then EOS [batch, target].
        target_lengths: tokens of each target, EOS counted; stays on the CPU [batch].
    """

    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, " batch"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, " batch"]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(
            self.source.to(device, non_blocking=True),
            self.source_lengths,
            self.target_in.to(device, non_blocking=True),
            self.target_out.to(device, non_blocking=True),
            self.target_lengths,
        )


def make_batch(data: PairData, pairs: Sequence[int] | npt.NDArray[np.int64]) -> Batch:
    """The batch of the pairs with those indices, in that order."""
    sources = [data.ids(0, int(index)) for index in pairs]
    targets = [data.ids(1, int(index)) for index in pairs]
    return batch_of(sources, targets)


def batch_of(sources: Sequence[Sequence[int] | npt.NDArray], targets: Sequence[Sequence[int] | npt.NDArray]) -> Batch:
    """The batch of pairs of ids without special symbols."""
    return Batch(
        source=pad(sources, end=EOS),
        source_lengths=torch.tensor([len(ids) + 1 for ids in sources]),
        target_in=pad(targets, begin=BOS),
        target_out=pad(targets, end=EOS),
        target_lengths=torch.tensor([len(ids) + 1 for ids in targets]),
    )


def pad(
    sentences: Sequence[Sequence[int] | npt.NDArray], *, begin: int | None = None, end: int | None = None
) -> Int[Tensor, "batch length"]:
    """Sentences as rows of one matrix, with a first or last symbol where asked, padded on the right."""
    front, back = (begin is not None), (end is not None)
    width = max((len(ids) for ids in sentences), default=0) + front + back
    rows = np.full((len(sentences), width), PAD, np.int64)
    for row, ids in zip(rows, sentences, strict=True):
        row[front : front + len(ids)] = ids
        if begin is not None:
            row[0] = begin
        if end is not None:
            row[front + len(ids)] = end
    return torch.from_numpy(rows)
