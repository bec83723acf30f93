"""Grouping of sentence pairs into updates, a pure function of (lengths, weights, tokens per update, seed, epoch).

    pairs_of_epoch  choose the pairs of an epoch by the weights of their corpora
    plan_of         cut an epoch into updates of pairs of one or a few lengths, in random order
    shares_of       deal the pairs of an update to the processes, and cut them into micro-batches that fit a device

Every process computes the same plan, so the data position of a run is a number of sentence pairs and survives a change
of the number of processes. Lengths count the end symbol.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from nmtkit.config.schema import TrainingConfig
from nmtkit.data.shards import Indices, Lengths, PairData, Part
from nmtkit.errors import DataError

MAX_PADDING_SHARE = 0.2
"""Maximum share of padding in a micro-batch of different lengths. A lower share gives more micro-batches: on Multi30k
with two lengths per update and two processes, 2.3 micro-batches each with 6 % of padding, not 1.7 with 20 %."""
_CORPUS_STREAM = 2**32
"""Second value of the seeds that shuffle corpora; other seeds have an epoch there, which is smaller."""


@dataclass(frozen=True)
class EpochPlan:
    """The updates of one epoch."""

    updates: list[Indices]  # for each update the indices of its pairs, by target length
    too_long: Indices  # pairs that alone exceed the budget and are in no update

    def check(self, tokens_per_update: int) -> None:
        """Raise DataError if there is no update."""
        if not self.updates and len(self.too_long):
            raise DataError(f"every training sequence is longer than tokens_per_update = {tokens_per_update}; raise it")
        if not self.updates:
            raise DataError("the weights of data.train leave less than one training pair per epoch; raise them")

    def sample(self, count: int) -> list[Indices]:
        """Return at most ``count`` updates, spread evenly over the epoch."""
        return [self.updates[index] for index in np.unique(np.linspace(0, len(self.updates) - 1, count).astype(int))]


def pairs_of_epoch(parts: Sequence[Part], seed: int, epoch: int) -> Indices:
    """Return the indices of the pairs of an epoch, repeated as often as they occur in it.

    The pairs of a corpus are shuffled once for the run. Each epoch takes the next weight x pairs of them, cyclically.
    So the numbers of times that two pairs of a corpus have been seen differ by at most one at any time, and with a
    weight of 0.5, two successive epochs see the two halves. Where epochs differ by a sequence (`Part.cycle`), the one
    that an epoch lacks is left out.
    """
    if all(part.weight == 1 for part in parts):
        return np.arange(sum(part.pairs for part in parts))
    chosen = []
    first = 0
    for number, part in enumerate(parts):
        # Counted from epoch 0, so that fractions of pairs add up over epochs without being rounded in each.
        cycle = part.cycle or part.pairs
        begin, end = (int(passed * part.weight * cycle) for passed in (epoch, epoch + 1))
        if part.pairs:
            row = np.random.default_rng([seed, _CORPUS_STREAM, number]).permutation(cycle)
            taken = row[np.arange(begin, end) % cycle]
            chosen.append(first + taken[taken < part.pairs])
        first += part.pairs
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


@lru_cache(maxsize=1)
def plan_of(data: PairData, training: TrainingConfig, epoch: int) -> EpochPlan:
    """Cut an epoch into updates of at most ``tokens_per_update`` target tokens, padding not counted.

    Pairs are shuffled, then sorted by target and source length, so that pairs of equal length are grouped differently
    in every epoch. They are cut into groups of 1 / ``lengths_per_update`` of an update's tokens. The groups are
    shuffled, and ``lengths_per_update`` successive groups form an update. Every pair of the epoch is in exactly one
    update. With ``sequences_per_update``, pairs are counted in place of tokens. An epoch, except the first, to which
    weights leave no pair that fits has all pairs that fit. The last plan is cached, as large corpora take seconds.
    """
    source_lengths, target_lengths = data.source_lengths, data.target_lengths
    sizes, budget = target_lengths, training.tokens_per_update
    if training.sequences_per_update:
        sizes, budget = np.ones_like(target_lengths), training.sequences_per_update
    order = pairs_of_epoch(data.parts, training.seed, epoch)
    if (epoch or len(order)) and not (sizes[order] <= budget).any():
        order = np.concatenate([order, np.flatnonzero(sizes <= budget)])
    random = np.random.default_rng([training.seed, epoch])
    order = order[random.permutation(len(order))]
    # lexsort sorts by the last key first, and keeps the shuffled order of pairs with equal lengths. Integers of 16 bits
    # are sorted four times as fast.
    keys = [each[order].astype(np.min_scalar_type(each.max(initial=0))) for each in (source_lengths, target_lengths)]
    order = order[np.lexsort(keys)]
    fits = sizes[order] <= budget
    too_long, order = order[~fits], order[fits]
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    groups: list[tuple[int, int]] = []
    start = 0
    while start < len(order):
        stop = int(np.searchsorted(ends, ends[start] + budget // training.lengths_per_update, side="right")) - 1
        groups.append((start, max(stop, start + 1)))  # a pair beyond its share is a group of its own
        start = groups[-1][1]
    updates: list[list[tuple[int, int]]] = []
    room = 0
    for start, stop in (groups[index] for index in random.permutation(len(groups))):
        tokens = int(ends[stop] - ends[start])
        if not updates or len(updates[-1]) == training.lengths_per_update or tokens > room:
            updates.append([])
            room = budget
        updates[-1].append((start, stop))
        room -= tokens
    by_target = [np.concatenate([order[start:stop] for start, stop in sorted(update)]) for update in updates]
    # unique, as an epoch with weights may have a pair several times.
    return EpochPlan(by_target, np.unique(too_long))


def shares_of(data: PairData, pairs: Indices, limit: int, num_processes: int, device_type: str) -> list[list[Indices]]:
    """Deal an update's pairs to the processes, and cut each share into micro-batches.

    The pairs are dealt in turn, by the length of their longer side, so shares differ by at most one pair and have
    similar lengths. A micro-batch has at most ``limit`` source or target tokens with padding, or tokens of both where
    they are joined, but always at least one pair; it ends where pairs of a very different length begin.

    Returns:
        For each process the pairs of each of its micro-batches.
    """
    longest = row_lengths(data.source_lengths[pairs], data.target_lengths[pairs], is_joined=data.is_joined)
    order = np.argsort(longest, kind="stable")  # by the target alone, sources would go up and down
    pairs, longest = pairs[order], longest[order]
    shares = []
    for rank in range(num_processes):
        share = pairs[rank::num_processes]
        cuts = cut_by_padded_tokens(
            longest[rank::num_processes], limit,
            padding_worth=padding_worth_of(device_type), rows=None if data.rows is None else data.rows[share],
        )  # fmt: skip
        shares.append([share[start:stop] for start, stop in cuts])
    return shares


def micro_batches_of(
    data: PairData, updates: Sequence[Indices], limit: int, num_processes: int, device_type: str
) -> list[Indices]:
    """Return the micro-batches of some updates, those of all processes in one list."""
    shares = (share for pairs in updates for share in shares_of(data, pairs, limit, num_processes, device_type))
    return [pairs for share in shares for pairs in share]


def padding_worth_of(device_type: str) -> int:
    """Return the padding tokens above which a micro-batch may be cut to avoid them, on a device of this type.

    On a GPU, the 1,500 or so launches of a pass of the base model take as long as thousands of tokens. The number is an
    estimate: with 4,096 instead of 256, an update of 25,000 tokens like those of WMT14 has 3.3 micro-batches instead of
    5.3, and 16 % more tokens with padding.
    """
    return 256 if device_type == "cpu" else 4096


def row_lengths(source_lengths: Lengths, target_lengths: Lengths, *, is_joined: bool) -> Lengths:
    """Return the number of positions of each pair: of its longer side, or of both sides if they are joined.

    A source that is joined to its target has no end symbol.
    """
    return source_lengths - 1 + target_lengths if is_joined else np.maximum(source_lengths, target_lengths)


def cut_by_padded_tokens(
    lengths: Sequence[int] | Lengths,
    max_tokens: int,
    *,
    padding_worth: int | None = None,
    rows: Sequence[int] | Lengths | None = None,
) -> list[tuple[int, int]]:
    """Cut a sequence of sentences into runs of at most ``max_tokens`` tokens with padding, and at least one sentence.

    With ``padding_worth``, a run also ends before a sentence that would raise its padding over both this number and
    MAX_PADDING_SHARE.

    Args:
        lengths: tokens of each sentence; with ``rows``, of all its sequences with padding.
        rows: number of sequences of each; None: one.

    Returns:
        The first index and the end of each run.
    """
    runs: list[tuple[int, int]] = []
    start, count, longest, real = 0, 0, 0, 0
    numbers = [1] * len(lengths) if rows is None else rows
    for stop, (length, number) in enumerate(zip(map(int, lengths), map(int, numbers), strict=True)):
        count, longest, real = count + number, max(longest, length // number), real + length
        padded = longest * count
        wasteful = padding_worth is not None and padded - real > max(MAX_PADDING_SHARE * padded, padding_worth)
        if stop > start and (padded > max_tokens or wasteful):
            runs.append((start, stop))
            start, count, longest, real = stop, number, length // number, length
    if len(lengths):
        runs.append((start, len(lengths)))
    return runs
