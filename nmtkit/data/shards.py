"""Token ids on disk: written once by `prepare`, memory-mapped by any number of processes.

A folder holds, for each side, all ids in one row (`source.ids.bin`, uint16 or uint32 as the vocabulary needs) and where
each sentence begins (`source.offsets.bin`, int64, one more than there are pairs), besides the line each pair came from
(`lines.bin`, int64, from 1 through all corpora in turn). Lengths follow from the offsets without touching the ids.
Special symbols are not stored.
"""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from nmtkit.errors import DataError
from nmtkit.files import read_json, write_json

SIDES = ("source", "target")


class ShardWriter:
    """Appends pairs to a new folder of shards; the folder is complete once the `with` block has ended."""

    def __init__(self, folder: Path, vocab_sizes: tuple[int, int]) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._types = [np.dtype("<u2" if size <= 2**16 else "<u4") for size in vocab_sizes]
        self._ids: list[BinaryIO] = [(folder / f"{side}.ids.bin").open("wb") for side in SIDES]
        self._offsets: list[BinaryIO] = [(folder / f"{side}.offsets.bin").open("wb") for side in SIDES]
        self._lines = (folder / "lines.bin").open("wb")
        self._ends = [0, 0]
        self.num_pairs = 0
        for file in self._offsets:
            file.write(np.zeros(1, "<i8").tobytes())

    def __enter__(self) -> "ShardWriter":
        return self

    def add(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], lines: Sequence[int]) -> None:
        """Appends pairs of id lists, and the line that each came from."""
        for side in range(2):
            sentences = [pair[side] for pair in pairs]
            self._ids[side].write(np.fromiter((i for ids in sentences for i in ids), self._types[side]).tobytes())
            ends = self._ends[side] + np.cumsum([len(ids) for ids in sentences], dtype="<i8")
            self._offsets[side].write(ends.tobytes())
            self._ends[side] = int(ends[-1]) if len(ends) else self._ends[side]
        self._lines.write(np.asarray(lines, "<i8").tobytes())
        self.num_pairs += len(pairs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self._ids, *self._offsets, self._lines):
            file.close()
        if kind is None:
            description = {
                "pairs": self.num_pairs,
                "types": {side: self._types[index].str for index, side in enumerate(SIDES)},
                "tokens": {side: self._ends[index] for index, side in enumerate(SIDES)},
            }
            write_json(self._folder / "shards.json", description)


class PairData:
    """A folder of shards, memory-mapped.

    Attributes:
        source_lengths, target_lengths: tokens of each pair, one end symbol each counted, int64 [pairs].
        lines: the line each pair came from, int64 [pairs].
    """

    def __init__(self, folder: Path) -> None:
        """Raises DataError when the folder is missing, empty or not whole."""
        if not (folder / "shards.json").is_file():
            raise DataError(f"{folder}: no prepared data here; run `nmtkit prepare` first")
        description = read_json(folder / "shards.json")
        self.num_pairs: int = description["pairs"]
        self.folder = folder
        self._ids = []
        self._offsets = []
        for side in SIDES:
            count = description["tokens"][side]
            self._ids.append(_map(folder / f"{side}.ids.bin", description["types"][side], count))
            self._offsets.append(_map(folder / f"{side}.offsets.bin", "<i8", self.num_pairs + 1))
        self.lines = _map(folder / "lines.bin", "<i8", self.num_pairs)
        self.source_lengths, self.target_lengths = (np.diff(offsets) + 1 for offsets in self._offsets)

    def __len__(self) -> int:
        return self.num_pairs

    def of_epoch(self, epoch: int) -> "PairData":
        """The pairs of an epoch: always these."""
        return self

    def close(self, *, is_finished: bool = False) -> None:
        """Nothing is being prepared."""

    def ids(self, side: int, index: int) -> npt.NDArray[np.unsignedinteger]:
        """The ids of one sentence, without special symbols; side 0 is the source, 1 the target."""
        offsets = self._offsets[side]
        part: npt.NDArray[np.unsignedinteger] = self._ids[side][offsets[index] : offsets[index + 1]]
        return part

    def all_ids(self, side: int) -> npt.NDArray[np.unsignedinteger]:
        """The ids of all sentences in one row, memory-mapped."""
        return self._ids[side]

    def joined_ids(self, side: int, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray, npt.NDArray[np.int64]]:
        """The ids of several sentences in one row, in the order of ``indices``, and how many are of each sentence."""
        begins, ends = self._offsets[side][indices], self._offsets[side][indices + 1]
        lengths = (ends - begins).astype(np.int64)
        starts = np.cumsum(lengths) - lengths  # of each sentence in the result
        places = np.repeat(begins - starts, lengths) + np.arange(lengths.sum())
        return self._ids[side][places], lengths


def _map(path: Path, kind: str, count: int) -> npt.NDArray:
    expected = count * np.dtype(kind).itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        state = "missing" if found is None else f"{found} bytes instead of {expected}"
        raise DataError(f"{path}: {state}; remove {path.parent.parent} and run `nmtkit prepare` again")
    if count == 0:
        return np.zeros(0, kind)
    return np.memmap(path, dtype=kind, mode="r", shape=(count,))
