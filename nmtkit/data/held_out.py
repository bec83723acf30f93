"""Validation pairs taken out of the training text (`data.valid` as a number)."""

import hashlib
import heapq
from collections.abc import Collection, Sequence
from itertools import chain

from nmtkit.data.training_text import TrainingText
from nmtkit.errors import DataError
from nmtkit.text.normalization import normalize


def hold_out(
    text: TrainingText, wanted: int, steps: Sequence[str], tagged: Collection[int] = ()
) -> tuple[list[tuple[str, str]], int]:
    """Takes that many distinct pairs out of training, and every pair that shares a side with one.

    The pairs are those with the smallest hash, so the choice depends neither on order nor on what else is there.

    Args:
        steps: `data.normalize`; texts that are equal after it are the same text.
        tagged: numbers of the corpora with a tag, such as back-translated ones: no pair of theirs is held out.

    Returns:
        the pairs, raw, and how many others were taken out for a side that they share.

    Raises:
        DataError: there are fewer distinct pairs.
    """
    first_of: dict[bytes, int] = {}
    largest: list[tuple[int, bytes]] = []  # a heap of the smallest hashes, negated
    eligible = (block.pairs() for block in text.blocks() if block.corpus not in tagged)
    for number, source, target in chain.from_iterable(eligible):
        both = f"{normalize(source, steps)}\n{normalize(target, steps)}"
        key = hashlib.blake2b(both.encode(), digest_size=16).digest()
        if key in first_of:
            continue
        entry = (-int.from_bytes(key, "big"), key)
        if len(largest) < wanted:
            heapq.heappush(largest, entry)
        elif entry > largest[0]:
            del first_of[heapq.heapreplace(largest, entry)[1]]
        else:
            continue
        first_of[key] = number
    if len(largest) < wanted:
        raise DataError(
            f"data.valid = {wanted}: the training corpora hold only {len(largest)} different pairs "
            f"{'without a tag ' if tagged else ''}after cleaning"
        )
    chosen = set(first_of.values())
    held_out = [(source, target) for number, source, target in text.pairs() if number in chosen]
    sources, targets = ({normalize(pair[side], steps) for pair in held_out} for side in range(2))
    taken = 0
    for number, source, target in text.pairs():
        if normalize(source, steps) in sources or normalize(target, steps) in targets:
            text.leave_out(number)
            taken += 1
    return held_out, taken - len(chosen)
