"""Sentences before a sentence, of the same document, as part of its sequence (`data.context`).

    source   sentence 1 <sep> sentence 2 <sep> sentence 3
    target   translation 3, or with context_sides = "both": translation 1 <sep> translation 2 <sep> translation 3

Blank lines separate documents. Source: Tiedemann and Scherrer 2017 (W17-4811).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
Ids = Sequence[int]


def preceding(items: Iterable[T], size: int, is_blank: Callable[[T], bool]) -> Iterator[tuple[T, tuple[T, ...]]]:
    """Yield each item with up to ``size`` items before it, as far as the last blank one; a blank item has none."""
    before: deque[T] = deque(maxlen=size)
    for item in items:
        if is_blank(item):
            before.clear()
            yield item, ()
        else:
            yield item, tuple(before)
            before.append(item)


def contexts(
    rows: Iterable[Sequence[Ids]], size: int, separators: Sequence[int], longest: Sequence[int | None]
) -> Iterator[list[list[int]]]:
    """Yield the context of each row as in `context_of`; a row with an empty side is a document boundary."""
    for row, before in preceding(rows, size, lambda row: not all(len(ids) for ids in row)):
        yield context_of(before, row, separators, longest)


def context_of(
    before: Sequence[Sequence[Ids]], row: Sequence[Ids], separators: Sequence[int], longest: Sequence[int | None]
) -> list[list[int]]:
    """Return the ids that go before a sentence, on each side: the sentences before, each with a separator after it.

    Where a side would be too long, the oldest sentences are left out on all sides; the sentence itself is never cut.

    Args:
        before: the sentences before, oldest first, each with the ids of its sides.
        row: the ids of the sentence on these sides.
        separators: id of the separator on each side.
        longest: maximum tokens of each side with its context; None: no limit.
    """
    lengths = [len(ids) for ids in row]
    first = len(before)
    for sentence in reversed(before):
        lengths = [length + len(ids) + 1 for length, ids in zip(lengths, sentence, strict=True)]
        if any(limit is not None and length > limit for length, limit in zip(lengths, longest, strict=True)):
            break
        first -= 1
    return [
        [token for sentence in islice(before, first, None) for token in (*sentence[side], separator)]
        for side, separator in enumerate(separators)
    ]
