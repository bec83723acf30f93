"""Batches: positions of begin, end and padding; and batches made ahead by a thread, which ends with its iterator."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nmtkit.data.batch import batch_of, make_batch, pad, work_ahead
from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.text.vocabulary import BOS, EOS, PAD


def test_a_batch_has_end_on_the_source_begin_before_and_end_after_the_target_and_padding_on_the_right() -> None:
    batch = batch_of([[5, 6, 70_000], [8], []], [[9], [10, 65_536], []])
    assert batch.source.tolist() == [[5, 6, 70_000, EOS], [8, EOS, PAD, PAD], [EOS, PAD, PAD, PAD]]
    assert batch.target_in.tolist() == [[BOS, 9, PAD], [BOS, 10, 65_536], [BOS, PAD, PAD]]
    assert batch.target_out.tolist() == [[9, EOS, PAD], [10, 65_536, EOS], [EOS, PAD, PAD]]
    assert (batch.source_lengths.tolist(), batch.target_lengths.tolist()) == ([4, 2, 1], [2, 3, 1])
    assert {batch.source.dtype, batch.target_in.dtype, batch.target_out.dtype} == {torch.int64}


@pytest.mark.parametrize(
    ("sentences", "end", "rows"),
    [
        ([[4, 5], [6]], None, [[4, 5], [6, PAD]]),
        ([[4, 5], []], EOS, [[4, 5, EOS], [EOS, PAD, PAD]]),
        ([], EOS, []),
    ],
)
def test_sentences_are_padded_to_the_longest(
    sentences: list[list[int]], end: int | None, rows: list[list[int]]
) -> None:
    assert pad(sentences, end=end).tolist() == rows


def test_pairs_of_a_shard_stand_in_the_asked_order(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "train", (100, 100)) as writer:
        writer.add([([4, 5], [6]), ([7], [8, 9]), ([10], [11])], [1, 2, 3])
    batch = make_batch(PairData(tmp_path / "train"), [2, 0])
    assert batch.source.tolist() == [[10, EOS, PAD], [4, 5, EOS]]
    assert batch.target_out.tolist() == [[11, EOS], [6, EOS]]


def test_lengths_stay_on_the_cpu_when_a_batch_moves() -> None:
    moved = batch_of([[5]], [[9]]).to(torch.device("meta"))
    assert {moved.source.device.type, moved.target_in.device.type, moved.target_out.device.type} == {"meta"}
    assert (moved.source_lengths.tolist(), moved.target_lengths.tolist()) == ([2], [2])


def test_the_rows_of_real_target_tokens_are_known_where_there_is_padding() -> None:
    batch = batch_of([[5], [5], [5]], [[9], [], [7, 8]])
    assert batch.target_rows is not None
    assert batch.target_rows.tolist() == [0, 1, 3, 6, 7, 8]
    assert batch.target_out.flatten()[batch.target_rows].tolist() == [9, EOS, EOS, 7, 8, EOS]
    assert batch.to(torch.device("meta")).target_rows.device.type == "meta"
    assert batch_of([[5], [6, 7]], [[9], [8]]).target_rows is None


def threads() -> int:
    return sum(thread.name.startswith("nmtkit-ahead") for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_items_come_in_order_and_the_thread_ends(depth: int) -> None:
    assert list(work_ahead(iter(range(100)), depth)) == list(range(100))
    assert threads() == 0


def test_items_are_made_ahead_but_not_without_end() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    ahead = work_ahead(items(), 2)
    assert next(ahead) == 0
    until = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]  # one taken, two waiting, one in the thread's hand
    ahead.close()
    assert threads() == 0


def test_an_exception_is_raised_where_its_item_would_have_come() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    ahead = work_ahead(items(), 3)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="broken"):
        next(ahead)
    assert threads() == 0


def test_the_thread_ends_when_its_user_fails() -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in work_ahead(iter(range(1000)), 2):
            raise KeyboardInterrupt
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() == 0
