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

Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, padded on the right with PAD.

    Attributes:
        source: source ids, EOS at the end of each [batch, source].
        source_lengths: tokens of each source, EOS counted; stays on the CPU [batch].
        target_in: what the decoder sees: BOS, then the target [batch, target].
        target_out: what it has to predict: the target, then EOS [batch, target].
        target_lengths: tokens of each target, EOS counted; stays on the CPU [batch].
        target_rows: which of the batch x target positions hold a token; None: all.
    """

    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, " batch"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, " batch"]
    target_rows: Int[Tensor, " tokens"] | None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device; from pinned memory the copies do not wait for the device."""
        return Batch(
            self.source.to(device, non_blocking=True),
            self.source_lengths,
            self.target_in.to(device, non_blocking=True),
            self.target_out.to(device, non_blocking=True),
            self.target_lengths,
            None if self.target_rows is None else self.target_rows.to(device, non_blocking=True),
        )

    def pinned(self) -> "Batch":
        """The same batch in page-locked memory, from which CUDA devices copy while the host goes on."""
        return Batch(
            self.source.pin_memory(),
            self.source_lengths.pin_memory(),
            self.target_in.pin_memory(),
            self.target_out.pin_memory(),
            self.target_lengths,
            None if self.target_rows is None else self.target_rows.pin_memory(),
        )


def make_batch(data: PairData, pairs: Sequence[int] | npt.NDArray[np.int64]) -> Batch:
    """The batch of the pairs with those indices, in that order."""
    chosen = np.asarray(pairs, np.int64)
    return _batch(*data.joined_ids(0, chosen), *data.joined_ids(1, chosen))


def batch_of(sources: Sequence[Sequence[int] | npt.NDArray], targets: Sequence[Sequence[int] | npt.NDArray]) -> Batch:
    """The batch of pairs of ids without special symbols."""
    return _batch(*_join(sources), *_join(targets))


def _batch(sources: npt.NDArray, source_lengths: Lengths, targets: npt.NDArray, target_lengths: Lengths) -> Batch:
    real = np.arange(target_lengths.max(initial=0) + 1) < target_lengths[:, None] + 1  # [batch, target]
    return Batch(
        source=_pad(sources, source_lengths, end=EOS),
        source_lengths=torch.from_numpy(source_lengths + 1),
        target_in=_pad(targets, target_lengths, begin=BOS),
        target_out=_pad(targets, target_lengths, end=EOS),
        target_lengths=torch.from_numpy(target_lengths + 1),
        target_rows=None if real.all() else torch.from_numpy(real.ravel().nonzero()[0]),
    )


def pad(
    sentences: Sequence[Sequence[int] | npt.NDArray], *, begin: int | None = None, end: int | None = None
) -> Int[Tensor, "batch length"]:
    """Sentences as rows of one matrix, with a first or last symbol where asked, padded on the right."""
    return _pad(*_join(sentences), begin=begin, end=end)


def _join(sentences: Sequence[Sequence[int] | npt.NDArray]) -> tuple[npt.NDArray, Lengths]:
    """All ids in one row, and how many are of each sentence."""
    lengths = np.array([len(ids) for ids in sentences], np.int64)
    parts = [np.asarray(ids, np.int64) for ids in sentences]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64), lengths


def _pad(
    ids: npt.NDArray, lengths: Lengths, *, begin: int | None = None, end: int | None = None
) -> Int[Tensor, "batch length"]:
    """`pad` for sentences that stand in one row, without a loop over them."""
    front = int(begin is not None)
    width = int(lengths.max(initial=0)) + front + (end is not None)
    rows = np.full((len(lengths), width), PAD, np.int64)
    columns = np.arange(width - front)
    rows[:, front:][columns < lengths[:, None]] = ids
    if begin is not None:
        rows[:, 0] = begin
    if end is not None:
        rows[np.arange(len(lengths)), lengths + front] = end
    return torch.from_numpy(rows)
