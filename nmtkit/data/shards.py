"""Token ids on disk: written once by `prepare`, memory-mapped by any number of processes.

A folder holds, for each side, all ids in one row (`source.ids.bin`, uint16 or uint32 as the vocabulary needs), where
each sentence begins (`source.offsets.bin`, int64, one more than there are pairs) and how long it is
(`source.lengths.bin`, int64, the end symbol counted), besides the line each pair came from (`lines.bin`, int64, from 1
through all corpora in turn). Special symbols are not stored. `shards.json` says what belongs in these files, and of
which corpora, with which weights, the pairs are. Their checksums stand in the manifest of RUN/data.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from nmtkit.config.schema import read_lengths
from nmtkit.errors import DataError
from nmtkit.files import read_json, write_json

_MANIFEST = {
    "fingerprint": str, "tokenizer_sha256?": str, "pairs": {str: int}, "cleaning": {str: int}, "rules?": {str: int},
    "files": {str: str}, "vocab_sizes?": {str: int}, "train_tokens?": {str: int}, "seconds?": float,
    "corpora": [{"name": str, "role": str, "pairs": int, "sha256?": str,
                 "files": [{"path": str, "url?": str, "bytes": int, "sha256": str}]}],
    "versions?": {str: str}, "bleu_tokenizer?": str, "training_lengths?": read_lengths,
}  # fmt: skip
_COUNTS = ("tokens", "words", "unknown", "vocabulary", "entries_used", "entries_frequent", "most_frequent_half")
_CUT = {
    **dict.fromkeys(_COUNTS, int), "tokens_per_word": float, "characters_per_token": float, "lengths": {str: int},
}  # fmt: skip
_REPORT = {
    "rules": {str: {"count": int, "lines": [object], "action": str}}, "places": {str: [[object]]},
    "pairs": {"read": int, "kept?": int}, "left_out": {str: int}, "corpora": [{"name": str, "role": str}],
    "words": {str: {str: int}}, "subwords?": {str: {str: _CUT}},
}  # fmt: skip
SIDES = ("source", "target")
FORMAT = "nmtkit shards 2"
_TYPES = ("<u2", "<u4")


@dataclass(frozen=True)
class Part:
    """Pairs that follow each other, of one corpus.

    Attributes:
        pairs: how many.
        weight: how often an epoch sees each of them.
    """

    pairs: int
    weight: float


def id_type(vocab_size: int) -> np.dtype[Any]:
    """How ids of a vocabulary are stored."""
    return np.dtype(_TYPES[0] if vocab_size <= 2**16 else _TYPES[1])


class ShardWriter:
    """Appends pairs to a new folder of shards; the folder is complete once the `with` block has ended."""

    def __init__(self, folder: Path, vocab_sizes: tuple[int, int], weights: Sequence[float] = (1.0,)) -> None:
        """Args:
        weights: of each corpus, how often an epoch sees its pairs.
        """
        folder.mkdir(parents=True)
        self._folder = folder
        self._types = [id_type(size) for size in vocab_sizes]
        self._ids = [self._open(f"{side}.ids.bin") for side in SIDES]
        self._offsets = [self._open(f"{side}.offsets.bin") for side in SIDES]
        self._lengths = [self._open(f"{side}.lengths.bin") for side in SIDES]
        self._lines = self._open("lines.bin")
        self._ends = [0, 0]
        self._weights = weights
        self._pairs_of = [0] * len(weights)
        for file in self._offsets:
            file.write(np.zeros(1, "<i8").tobytes())

    def _open(self, name: str) -> BinaryIO:
        return (self._folder / name).open("wb")

    def __enter__(self) -> "ShardWriter":
        return self

    @property
    def num_pairs(self) -> int:
        """Pairs written so far."""
        return sum(self._pairs_of)

    def add(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], lines: Sequence[int], corpus: int = 0) -> None:
        """Appends pairs of id lists of one corpus, and the line that each came from; see `add_rows`."""
        assert not any(self._pairs_of[corpus + 1 :])
        for side in range(2):
            sentences = [pair[side] for pair in pairs]
            ids = np.fromiter(chain.from_iterable(sentences), self._types[side])
            self._add_side(side, ids, np.asarray([len(sentence) for sentence in sentences], "<i8"))
        self._lines.write(np.asarray(lines, "<i8").tobytes())
        self._pairs_of[corpus] += len(pairs)

    def add_rows(
        self,
        ids: tuple[npt.NDArray, npt.NDArray],
        lengths: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
        lines: npt.NDArray[np.int64],
        corpus: int,
    ) -> None:
        """Appends pairs of one corpus, which come in the order of the corpora.

        Args:
            ids: of all sentences in one row, for each side.
            lengths: tokens of each sentence, for each side, [pairs].
            lines: the line that each pair came from, [pairs].
            corpus: its number, from 0.
        """
        assert not any(self._pairs_of[corpus + 1 :])
        for side in range(2):
            self._add_side(side, ids[side].astype(self._types[side], copy=False), lengths[side].astype("<i8"))
        self._lines.write(lines.astype("<i8").tobytes())
        self._pairs_of[corpus] += len(lines)

    def _add_side(self, side: int, ids: npt.NDArray, lengths: npt.NDArray) -> None:
        self._ids[side].write(ids.tobytes())
        self._offsets[side].write((self._ends[side] + np.cumsum(lengths, dtype="<i8")).tobytes())
        self._lengths[side].write((lengths + 1).tobytes())
        self._ends[side] += len(ids)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self._ids, *self._offsets, *self._lengths, self._lines):
            file.close()
        if kind is None:
            parts = [Part(*part) for part in zip(self._pairs_of, self._weights, strict=True)]
            description = {
                "format": FORMAT,
                "pairs": self.num_pairs,
                "types": {side: self._types[index].str for index, side in enumerate(SIDES)},
                "tokens": {side: self._ends[index] for index, side in enumerate(SIDES)},
                "corpora": [asdict(part) for part in parts],
            }
            write_json(self._folder / "shards.json", description)


def read_manifest(data: Path) -> dict[str, Any]:
    """Reads RUN/data/manifest.json; raises DataError where it is missing or damaged."""
    return read_json(data / "manifest.json", _MANIFEST)


def read_report(data: Path) -> dict[str, Any]:
    """Reads RUN/data/report.json; raises DataError where it is missing or damaged."""
    return read_json(data / "report.json", _REPORT)


class PairData:
    """A folder of shards, memory-mapped: opening it reads next to nothing, and all processes share the memory.

    Attributes:
        source_lengths, target_lengths: tokens of each pair, one end symbol each counted, int64 [pairs].
        lines: the line each pair came from, int64 [pairs].
        parts: the corpora that the pairs are of, in their order.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DataError when the folder is missing, empty, not whole or not of nmtkit."""
        if not (folder / "shards.json").is_file():
            raise DataError(f"{folder}: there is no prepared data here; run `nmtkit prepare` first")
        description = read_json(folder / "shards.json")
        _check_description(folder / "shards.json", description)
        self.num_pairs: int = description["pairs"]
        self.folder = folder
        self.parts = [Part(**part) for part in description["corpora"]]
        self._ids = []
        self._offsets = []
        lengths = []
        for side in SIDES:
            count = description["tokens"][side]
            self._ids.append(_map(folder / f"{side}.ids.bin", description["types"][side], count))
            offsets = _map(folder / f"{side}.offsets.bin", "<i8", self.num_pairs + 1)
            if offsets[0] != 0 or offsets[-1] != count:
                raise _damaged(folder / f"{side}.offsets.bin", f"does not belong to {side}.ids.bin")
            self._offsets.append(offsets)
            lengths.append(_map(folder / f"{side}.lengths.bin", "<i8", self.num_pairs))
        self.source_lengths, self.target_lengths = (np.asarray(side) for side in lengths)
        self.lines = _map(folder / "lines.bin", "<i8", self.num_pairs)

    def __len__(self) -> int:
        return self.num_pairs

    @property
    def pairs_per_epoch(self) -> int:
        """Pairs that an epoch sees, each as often as the weight of its corpus says."""
        return round(sum(part.pairs * part.weight for part in self.parts))

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

    def joined_ids(self, side: int, indices: npt.NDArray[np.int64]) -> tuple[npt.NDArray, npt.NDArray[np.int64]]:
        """The ids of several sentences in one row, in the order of ``indices``, and how many are of each sentence."""
        begins, ends = self._offsets[side][indices], self._offsets[side][indices + 1]
        lengths = (ends - begins).astype(np.int64)
        starts = np.cumsum(lengths) - lengths  # of each sentence in the result
        places = np.repeat(begins - starts, lengths) + np.arange(lengths.sum())
        return self._ids[side][places], lengths


def _check_description(path: Path, description: Any) -> None:
    """Raises DataError unless shards.json is one of nmtkit, of a format that is known here."""
    named = description.get("format") if isinstance(description, dict) else None
    if named != FORMAT:
        what = f"of the format {named!r}, which this version does not read" if named else "not of nmtkit"
        raise _damaged(path, what)
    try:
        numbers = [description["pairs"], *(description["tokens"][side] for side in SIDES)]
        parts = [Part(**part) for part in description["corpora"]]
        is_whole = (
            all(type(number) is int and number >= 0 for number in numbers)
            and all(description["types"][side] in _TYPES for side in SIDES)
            and all(type(part.weight) in (int, float) and 0 < part.weight <= 1000 for part in parts)
            and sum(part.pairs for part in parts) == description["pairs"]
        )
    except (KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise _damaged(path, "damaged")


def _map(path: Path, kind: str, count: int) -> npt.NDArray:
    expected = count * np.dtype(kind).itemsize
    found = path.stat().st_size if path.is_file() else None
    if found != expected:
        raise _damaged(path, "missing" if found is None else f"{found} bytes instead of {expected}")
    if count == 0:
        return np.zeros(0, kind)
    return np.memmap(path, dtype=kind, mode="r", shape=(count,))


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path}: {what}; remove {path.parent.parent} and run `nmtkit prepare` again")
