"""Batches of sentence pairs as padded tensors, made ahead of time in a thread."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from nmtkit.data.shards import Indices, Lengths, PairData
from nmtkit.text.vocabulary import BOS, EOS, PAD

T = TypeVar("T")
B = TypeVar("B", bound="Batch")
Ids = Sequence[int] | npt.NDArray


@dataclass(frozen=True)
class Batch:
    """Sentence pairs, padded on the right with PAD.

    Attributes:
        source: source ids, with EOS at the end of each sentence [batch, source].
        source_lengths: tokens of each source with EOS; stays on the CPU [batch].
        target_in: input of the decoder: BOS, then the target [batch, target].
        target_out: output that the decoder has to predict: the target, then EOS [batch, target].
        target_lengths: tokens of each target with EOS; stays on the CPU [batch].
        target_rows: indices of the batch x target positions that hold a token; None: all.
    """

    source: Int[Tensor, "batch source"]
    source_lengths: Int[Tensor, " batch"]
    target_in: Int[Tensor, "batch target"]
    target_out: Int[Tensor, "batch target"]
    target_lengths: Int[Tensor, " batch"]
    target_rows: Int[Tensor, " tokens"] | None

    @property
    def num_targets(self) -> int:
        """Number of tokens, or labels, that the batch predicts."""
        return int(self.target_lengths.sum())

    def without_padding(self, values: Shaped[Tensor, "batch target *rest"]) -> Shaped[Tensor, "tokens *rest"]:
        """Return the values at the target tokens, in the order of the sentences."""
        values = values.flatten(0, 1)
        # By indices made with the batch: for a mask, the CPU would wait until the GPU has counted it.
        return values if self.target_rows is None else values.index_select(0, self.target_rows)

    def to(self: B, device: torch.device) -> B:
        """Return the batch on another device, but for lengths; from pinned memory copies do not block the host."""
        # The host reads lengths; on a GPU, each reading would wait for all work queued before it.
        moved = {name: part for name, part in self._tensors.items() if not name.endswith("_lengths")}
        return replace(self, **{name: part.to(device, non_blocking=True) for name, part in moved.items()})

    def pinned(self: B) -> B:
        """Return the batch in page-locked memory, from which CUDA devices copy while the host goes on."""
        return replace(self, **{name: part.pin_memory() for name, part in self._tensors.items()})

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Examples as rows of sequences. ``target_in`` are the tokens, ``target_out`` those after them.

    Attributes:
        target_rows: indices of the positions that a next token follows.
        last: position of the last token of each row [rows].
        example: index of the example of each row [rows].
        labels: index of the label of each example, or for choice of the right row of it; or the number [examples].
    """

    last: Int[Tensor, " rows"]
    example: Int[Tensor, " rows"]
    labels: Int[Tensor, " examples"] | Float[Tensor, " examples"]

    @property
    def num_targets(self) -> int:
        return len(self.labels)


def make_batch(data: PairData, pairs: Sequence[int] | Indices) -> Batch:
    """Return the batch of the pairs with the given indices, in that order."""
    chosen = np.asarray(pairs, np.int64)
    own: Batch | None = data.own_batch(chosen)
    return _batch(*data.joined_ids(0, chosen), *data.joined_ids(1, chosen)) if own is None else own


def batch_of(sources: Sequence[Ids], targets: Sequence[Ids]) -> Batch:
    """Return the batch of pairs of ids without special symbols."""
    return _batch(*_join(sources), *_join(targets))


def batch_of_texts(ids: npt.NDArray, lengths: Lengths) -> Batch:
    """Return the batch of sequences of running text, without begin and end symbols.

    Args:
        ids: of all sequences in one row, each with the token after it.
        lengths: their number in each.
    """
    rows, sizes = _pad(ids, lengths), torch.from_numpy(lengths - 1)
    real = np.arange(rows.size(1) - 1) < lengths[:, None] - 1
    return Batch(
        # These models have no source; one symbol, which they do not read, keeps the form of a batch.
        source=torch.full((len(lengths), 1), EOS),
        source_lengths=torch.ones_like(sizes),
        target_in=rows[:, :-1].contiguous(),
        target_out=rows[:, 1:].contiguous(),
        target_lengths=sizes,
        target_rows=rows_of(real),
    )


def label_batch(ids: npt.NDArray, sizes: Lengths, extract_id: int, labels: npt.NDArray) -> LabelBatch:
    """Return the batch of examples whose ids stand in one row.

    Args:
        sizes: tokens of each example.
        extract_id: id of the last token of a sequence.
    """
    ends = np.flatnonzero(ids == extract_id)
    lengths = np.diff(ends, prepend=-1)
    rows = _pad(ids, lengths)
    following = torch.nn.functional.pad(rows[:, 1:], (0, 1), value=PAD)
    has_next = np.arange(rows.size(1)) < lengths[:, None] - 1
    return LabelBatch(
        source=torch.full((len(lengths), 1), EOS),
        source_lengths=torch.ones(len(lengths), dtype=torch.int64),
        target_in=rows,
        target_out=following,
        target_lengths=torch.from_numpy(lengths),
        target_rows=torch.from_numpy(np.flatnonzero(has_next)),
        last=torch.from_numpy(lengths - 1),
        example=torch.from_numpy(np.searchsorted(np.cumsum(sizes), ends, side="right")),
        labels=torch.from_numpy(labels),
    )


def batch_of_sequences(sequences: Sequence[Ids], extract_id: int) -> LabelBatch:
    """Return the batch of examples with unknown labels, from the ids of each (`Tokenizer.sequences`)."""
    return label_batch(*_join(sequences), extract_id, np.zeros(len(sequences), np.int64))


def _batch(sources: npt.NDArray, source_lengths: Lengths, targets: npt.NDArray, target_lengths: Lengths) -> Batch:
    real = np.arange(target_lengths.max(initial=0) + 1) < target_lengths[:, None] + 1  # [batch, target]
    return Batch(
        source=_pad(sources, source_lengths, end=EOS),
        source_lengths=torch.from_numpy(source_lengths + 1),
        target_in=_pad(targets, target_lengths, begin=BOS),
        target_out=_pad(targets, target_lengths, end=EOS),
        target_lengths=torch.from_numpy(target_lengths + 1),
        target_rows=rows_of(real),
    )


def rows_of(real: Bool[npt.NDArray, "batch target"]) -> Int[Tensor, " tokens"] | None:
    """Return the `target_rows` of a batch whose tokens are where ``real`` is True."""
    # Found here and not on a GPU, where the host would wait for the number of tokens.
    return None if real.all() else torch.from_numpy(np.flatnonzero(real))


def pad(sentences: Sequence[Ids], *, end: int | None = None) -> Int[Tensor, "batch length"]:
    """Return sentences as the rows of one matrix, with an optional last symbol, padded on the right."""
    return _pad(*_join(sentences), end=end)


def _join(sentences: Sequence[Ids]) -> tuple[npt.NDArray, Lengths]:
    """Return the ids of all sentences in one row, and the length of each sentence."""
    lengths = np.array([len(ids) for ids in sentences], np.int64)
    rows = [np.asarray(ids, np.int64) for ids in sentences]
    return np.concatenate(rows) if rows else np.zeros(0, np.int64), lengths


def _pad(
    ids: npt.NDArray, lengths: Lengths, *, begin: int | None = None, end: int | None = None
) -> Int[Tensor, "batch length"]:
    """Return sentences given in one row as the rows of a padded matrix, without a loop over them."""
    front = int(begin is not None)
    width = int(lengths.max(initial=0)) + front + (end is not None)
    rows = np.full((len(lengths), width), PAD, np.int64)
    columns = np.arange(width - front)
    # A mask is filled row by row, the order in which the ids stand.
    rows[:, front:][columns < lengths[:, None]] = ids
    if begin is not None:
        rows[:, 0] = begin
    if end is not None:
        rows[np.arange(len(lengths)), lengths + front] = end
    return torch.from_numpy(rows)


def work_ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yield the items in order, while one thread makes up to ``depth`` items ahead.

    An exception of ``items`` is raised where its item would have come. The thread ends with this iterator, whether it
    is exhausted, closed, or left by an exception.
    """
    # Not StopIteration, which would become a RuntimeError inside of this generator (PEP 479).
    end = object()
    thread = ThreadPoolExecutor(1, "nmtkit-ahead")
    try:
        # One item more than may wait, as one is being made.
        pending = deque(thread.submit(next, items, end) for _ in range(depth + 1))
        while (item := pending.popleft().result()) is not end:
            pending.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        thread.shutdown(cancel_futures=True)
