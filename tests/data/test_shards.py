"""Shards: ids come back as they were written, and a damaged file is named."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmtkit.data.shards import PairData, ShardWriter
from nmtkit.errors import DataError
from tests.conftest import message_of

PAIRS = [([4, 5, 6], [7]), ([], [8, 9]), ([10], [])]

sentences = st.lists(st.integers(0, 65_535), max_size=8)


def write(folder: Path, pairs: list[tuple[list[int], list[int]]], sizes: tuple[int, int] = (100, 100)) -> PairData:
    with ShardWriter(folder, sizes) as writer:
        writer.add(pairs, range(1, len(pairs) + 1))
    return PairData(folder)


def content(data: PairData) -> list[tuple[list[int], list[int]]]:
    return [(data.ids(0, index).tolist(), data.ids(1, index).tolist()) for index in range(len(data))]


@settings(deadline=None, max_examples=50)
@given(chunks=st.lists(st.lists(st.tuples(sentences, sentences), max_size=6), max_size=4))
def test_ids_written_in_any_number_of_chunks_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[tuple[list[int], list[int]]]]
) -> None:
    folder = tmp_path_factory.mktemp("shards") / "train"
    numbers = iter(range(10, 1000, 7))
    lines = [[next(numbers) for _ in chunk] for chunk in chunks]
    with ShardWriter(folder, (65_536, 65_536)) as writer:
        for chunk, chunk_lines in zip(chunks, lines, strict=True):
            writer.add(chunk, chunk_lines)
    data = PairData(folder)
    assert content(data) == [pair for chunk in chunks for pair in chunk]
    assert data.lines.tolist() == [line for chunk in lines for line in chunk]
    assert len(data) == writer.num_pairs == sum(len(chunk) for chunk in chunks)


@pytest.mark.parametrize(
    ("sizes", "width"), [((65_536, 65_537), (2, 4)), ((65_537, 65_536), (4, 2)), ((100, 100), (2, 2))]
)
def test_ids_take_two_bytes_where_the_vocabulary_allows_and_four_where_not(
    tmp_path: Path, sizes: tuple[int, int], width: tuple[int, int]
) -> None:
    largest = [([sizes[0] - 1, 4], [sizes[1] - 1, 5, 6])]
    data = write(tmp_path / "train", largest, sizes)
    assert content(data) == largest
    assert (data.ids(0, 0).dtype.itemsize, data.ids(1, 0).dtype.itemsize) == width
    assert (tmp_path / "train" / "source.ids.bin").stat().st_size == 2 * width[0]
    assert (tmp_path / "train" / "target.ids.bin").stat().st_size == 3 * width[1]


def test_ids_and_lines_are_memory_mapped(tmp_path: Path) -> None:
    data = write(tmp_path / "train", PAIRS)
    assert isinstance(data.ids(0, 0), np.memmap)
    assert isinstance(data.lines, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.ids(0, 0)[0] = 1


def test_lengths_count_one_end_symbol_and_need_no_ids(tmp_path: Path) -> None:
    write(tmp_path / "train", PAIRS)
    path = tmp_path / "train" / "source.ids.bin"
    path.write_bytes(b"\xff" * path.stat().st_size)
    data = PairData(tmp_path / "train")
    assert data.source_lengths.tolist() == [4, 1, 2]
    assert data.target_lengths.tolist() == [2, 3, 1]
    assert (data.source_lengths.dtype, data.target_lengths.dtype) == (np.int64, np.int64)


def test_no_pairs_make_an_empty_shard(tmp_path: Path) -> None:
    data = write(tmp_path / "train", [])
    assert (len(data), data.source_lengths.tolist(), data.lines.tolist()) == (0, [], [])


FILES = [
    *(f"{side}.{kind}.bin" for side in ("source", "target") for kind in ("ids", "offsets", "lengths")),
    "lines.bin",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "too long"])
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str, damage: str) -> None:
    write(tmp_path / "train", PAIRS)
    path = tmp_path / "train" / name
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"truncated": whole[:-1], "empty": b"", "too long": whole + b"\0"}[damage])
    message = message_of(lambda: PairData(tmp_path / "train"), DataError, "nmtkit prepare")
    assert str(path) in message


WHOLE = {
    "format": "nmtkit shards 2", "pairs": 3, "types": {"source": "<u2", "target": "<u2"},
    "tokens": {"source": 4, "target": 3}, "corpora": [{"pairs": 3, "weight": 1.0}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("description", "fault"),
    [
        (json.dumps(WHOLE)[:-5], "not valid JSON"),
        ([1, 2], "not of nmtkit; "),
        ({"name": "corpus", "pairs": 3}, "not of nmtkit; "),
        (
            {"format": "nmtkit shards 9"},
            "of the format 'nmtkit shards 9', which this version does not read; ",
        ),
        ({**WHOLE, "pairs": "3"}, "damaged; "),
        ({**WHOLE, "pairs": -1}, "damaged; "),
        ({**WHOLE, "types": {"source": "<f4", "target": "<u2"}}, "damaged; "),
        ({**WHOLE, "types": {"source": "|O", "target": "<u2"}}, "damaged; "),
        ({**WHOLE, "tokens": {"source": 4}}, "damaged; "),
        ({**WHOLE, "corpora": [{"pairs": 2, "weight": 1.0}]}, "damaged; "),
        ({**WHOLE, "corpora": [{"pairs": 3}]}, "damaged; "),
    ],
)
def test_a_description_that_is_foreign_or_makes_no_sense_is_refused(
    tmp_path: Path, description: Any, fault: str
) -> None:
    write(tmp_path / "train", PAIRS)
    path = tmp_path / "train" / "shards.json"
    assert json.loads(path.read_text()) == WHOLE
    path.write_text(description if isinstance(description, str) else json.dumps(description))
    message = message_of(lambda: PairData(tmp_path / "train"), DataError)
    assert message.startswith(f"{path}: {fault}")


def test_files_of_different_shards_are_not_taken_for_one(tmp_path: Path) -> None:
    write(tmp_path / "train", PAIRS)
    name = "source.offsets.bin"
    (tmp_path / "train" / name).write_bytes(
        np.array([0, 1, 2, 3], "<i8").tobytes()  # 3 tokens, where source.ids.bin has 4
    )
    with pytest.raises(DataError, match=r"source\.offsets\.bin: does not belong to source\.ids\.bin"):
        PairData(tmp_path / "train")


def test_sentences_that_end_before_they_begin_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "train", PAIRS)
    path = tmp_path / "train" / "target.offsets.bin"
    offsets = np.fromfile(path, "<i8")
    offsets[1] = -(2**62)
    offsets.tofile(path)
    data = PairData(tmp_path / "train")
    with pytest.raises(DataError, match=r"target\.offsets\.bin: damaged; remove .* and run `nmtkit prepare` again"):
        data.joined_ids(1, np.arange(len(PAIRS)))
    assert data.joined_ids(0, np.arange(len(PAIRS)))[1].tolist() == [len(source) for source, _ in PAIRS]


def test_opening_reads_neither_ids_nor_lengths_into_memory(tmp_path: Path) -> None:
    write(tmp_path / "train", PAIRS * 100_000)
    tracemalloc.start()
    data = PairData(tmp_path / "train")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == 300_000
    assert peak < 1_000_000


def test_a_shard_whose_writing_was_interrupted_is_no_shard(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "train", (100, 100)) as writer:
        writer.add(PAIRS, [1, 2, 3])
        raise KeyboardInterrupt
    for name in ("train", "missing"):
        message_of(lambda name=name: PairData(tmp_path / name), DataError, f"{name}: there is no prepared data here")
