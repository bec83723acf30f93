"""Token ids on disk: written once by `prepare`, memory-mapped by any number of processes.

    source.ids.bin      all ids in one row, uint16 or uint32 as the vocabulary needs; no special symbols
    source.offsets.bin  where each sentence begins, int64, one more than there are pairs
    source.lengths.bin  tokens of each sentence, the end symbol counted, int64
    target.*.bin        the same for the target
    lines.bin           the line that each pair came from, from 1 through all corpora in turn, int64
    shards.json         sizes and types of these files; pairs and weight of each corpus

Their checksums are in the manifest of RUN/data.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmtkit.config.decoding_schema import read_lengths
from nmtkit.data.stages import fingerprint_of
from nmtkit.errors import DataError
from nmtkit.json_toml import read_json, write_json
from nmtkit.text.vocabulary import SIDES

_MANIFEST = {
    "fingerprint": str, "tokenizer_sha256?": str, "base_tokenizer_sha256?": str, "pairs": {str: int},
    "cleaning": {str: int}, "rules?": {str: int}, "files": {str: str}, "vocab_sizes?": {str: int},
    "train_tokens?": {str: int}, "seconds?": float,
    "corpora": [{"name": str, "role": str, "pairs": int, "sha256?": str,
                 "generated?": {"as": str, "model_sha256": [str], "counts": {str: int}},
                 "files": [{"path": str, "url?": str, "bytes": int, "sha256": str}]}],
    "versions?": {str: str}, "settings?": {str: {str: object}}, "bleu_tokenizer?": str,
    "training_lengths?": read_lengths, "valid_directions?": [[object]],
}  # fmt: skip
_COUNTS = ("tokens", "words", "unknown", "vocabulary", "entries_used", "entries_frequent", "most_frequent_half")
_SUBWORDS = {
    **dict.fromkeys(_COUNTS, int), "tokens_per_word": float, "characters_per_token": float, "lengths": {str: int},
}  # fmt: skip
_REPORT = {
    "rules": {str: {"count": int, "lines": [object], "action": str}}, "places": {str: [[object]]},
    "pairs": {"read": int, "kept?": int}, "left_out": {str: int},
    "corpora": [{"name": str, "role": str, "generated?": {str: int}}],
    "words": {str: {str: int}}, "subwords?": {str: {str: _SUBWORDS}},
}  # fmt: skip
Indices = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int64]

FORMAT = "nmtkit shards 2"
_TYPES = ("<u2", "<u4")


@dataclass(frozen=True)
class Part:
    """Consecutive pairs of one corpus."""

    pairs: int  # number of pairs
    weight: float  # number of times that an epoch sees each of them
    cycle: int = 0  # the largest number of pairs in any epoch, where epochs differ; 0: they have the same pairs


def id_type(vocab_size: int) -> np.dtype[Any]:
    """Return the type in which the ids of a vocabulary of this size are stored."""
    return np.dtype(_TYPES[0] if vocab_size <= 2**16 else _TYPES[1])


def tempered(weights: Sequence[float], sizes: Sequence[int], temperature: float) -> list[float]:
    """Return weights of corpora whose shares of an epoch are proportional to (weight x size)^(1 / T).

    The epoch keeps its size. Source: Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in the
    Wild", section 4.2, with corpora in place of languages.
    """
    weighted = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    if temperature == 1 or not any(weighted):
        return list(weights)
    scaled = [size ** (1 / temperature) for size in weighted]
    factor = math.fsum(weighted) / math.fsum(scaled)  # the same on every Python
    new = zip(weights, sizes, scaled, strict=True)
    return [factor * share / size if size else weight for weight, size, share in new]


class ShardWriter:
    """Writer of a new folder of shards, which is complete once the `with` block has ended."""

    def __init__(
        self,
        folder: Path,
        vocab_sizes: tuple[int, int],
        weights: Sequence[float] = (1.0,),
        temperature: float = 1.0,
        *,
        is_running_text: bool = False,
    ) -> None:
        """Args:
        weights: number of times that an epoch sees the pairs of each corpus.
        temperature: changes these numbers by the sizes of the corpora, see `tempered`.
        is_running_text: their sizes are target tokens and not pairs, as the text is cut into sequences of tokens.
        """
        folder.mkdir(parents=True)
        self._folder = folder
        self._types = [id_type(size) for size in vocab_sizes]
        names = [f"{side}.{kind}" for side in SIDES for kind in ("ids", "offsets", "lengths")]
        self._files = {name: (folder / f"{name}.bin").open("wb") for name in (*names, "lines")}
        self._ends = [0, 0]
        self.weights, self._temperature = list(weights), temperature
        self._pairs_of, self._tokens_of = [0] * len(weights), [0] * len(weights)
        self._sizes = self._tokens_of if is_running_text else self._pairs_of
        for side in SIDES:
            self._files[f"{side}.offsets"].write(np.zeros(1, "<i8").tobytes())

    def __enter__(self) -> "ShardWriter":
        return self

    @property
    def num_pairs(self) -> int:
        """Pairs written so far."""
        return sum(self._pairs_of)

    def add(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], lines: Sequence[int], corpus: int = 0) -> None:
        """Append pairs of id lists of one corpus, and the line that each came from; see `add_rows`."""
        sides = [[pair[side] for pair in pairs] for side in range(2)]
        ids = [np.fromiter(chain.from_iterable(side), "<u4") for side in sides]
        lengths = [np.fromiter(map(len, side), "<i8") for side in sides]
        self.add_rows(ids, lengths, np.asarray(lines, "<i8"), corpus)

    def add_rows(
        self,
        ids: Sequence[npt.NDArray],
        lengths: Sequence[Lengths],
        lines: Indices,
        corpus: int,
    ) -> None:
        """Append pairs of one corpus; corpora come in order.

        Args:
            ids: ids of all sentences in one row, for each side.
            lengths: tokens of each sentence, for each side, [pairs].
            lines: the line that each pair came from, [pairs].
            corpus: index of the corpus.
        """
        assert not any(self._pairs_of[corpus + 1 :])
        for index, side in enumerate(SIDES):
            counts = lengths[index].astype("<i8", copy=False)
            self._files[f"{side}.ids"].write(ids[index].astype(self._types[index], copy=False).tobytes())
            self._files[f"{side}.offsets"].write((self._ends[index] + np.cumsum(counts, dtype="<i8")).tobytes())
            self._files[f"{side}.lengths"].write((counts + 1).tobytes())
            self._ends[index] += len(ids[index])
        self._files["lines"].write(lines.astype("<i8", copy=False).tobytes())
        self._pairs_of[corpus] += len(lines)
        self._tokens_of[corpus] += len(ids[1])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for file in self._files.values():
            file.close()
        if kind is None:
            self.weights = tempered(self.weights, self._sizes, self._temperature)
            corpora = zip(self._pairs_of, self.weights, strict=True)
            description = {
                "format": FORMAT,
                "pairs": self.num_pairs,
                "types": {side: self._types[index].str for index, side in enumerate(SIDES)},
                "tokens": dict(zip(SIDES, self._ends, strict=True)),
                "corpora": [{"pairs": pairs, "weight": weight} for pairs, weight in corpora],
            }
            write_json(self._folder / "shards.json", description)


def read_manifest(data: Path) -> dict[str, Any]:
    """Read RUN/data/manifest.json; raise DataError if it is missing or damaged."""
    return read_json(data / "manifest.json", _MANIFEST)


def sha256_of_ids(manifest: dict[str, Any]) -> str:
    """Return a checksum of the training pairs as ids, and of the tokenizer that gave them."""
    decisive = {name: sha for name, sha in manifest["files"].items() if name.startswith(("train/", "tokenizer/"))}
    return fingerprint_of(decisive)


def read_report(data: Path) -> dict[str, Any]:
    """Read RUN/data/report.json; raise DataError if it is missing or damaged."""
    return read_json(data / "report.json", _REPORT)


class PairData:
    """A folder of shards, memory-mapped: opening it reads almost nothing, and all processes share the memory.

    Attributes:
        source_lengths, target_lengths: tokens of each sentence with its end symbol, int64 [pairs].
        lines: the line each pair came from, int64 [pairs].
        parts: the corpora that the pairs are of, in their order.
        is_joined: a model reads both sides of a pair as one sequence.
    """

    def __init__(self, folder: Path, *, is_joined: bool = False) -> None:
        """Raise:
        DataError: the folder is missing or damaged, or was not written by nmtkit.
        """
        self.is_joined = is_joined
        path = folder / "shards.json"
        if not path.is_file():
            raise DataError(f"{folder}: there is no prepared data here; run `nmtkit prepare` first")
        description = read_json(path)
        self.parts = _parts(path, description)
        self.folder = folder
        num_pairs: int = description["pairs"]
        self._ids: list[npt.NDArray] = []
        self._offsets: list[npt.NDArray] = []
        for side in SIDES:
            count = description["tokens"][side]
            self._ids.append(_map(folder / f"{side}.ids.bin", description["types"][side], count))
            self._offsets.append(_map(folder / f"{side}.offsets.bin", "<i8", num_pairs + 1))
            if self._offsets[-1][0] != 0 or self._offsets[-1][-1] != count:
                raise _damaged(folder / f"{side}.offsets.bin", f"does not belong to {side}.ids.bin")
        # Plain arrays of the same bytes: slices of a memmap are memmaps again, which take longer to make.
        self.source_lengths, self.target_lengths = (
            np.asarray(_map(folder / f"{side}.lengths.bin", "<i8", num_pairs)) for side in SIDES
        )
        self.lines = _map(folder / "lines.bin", "<i8", num_pairs)

    def __len__(self) -> int:
        return len(self.target_lengths)

    @property
    def pairs_per_epoch(self) -> int:
        """Number of pairs per epoch, with the weights of the corpora."""
        return round(sum(part.pairs * part.weight for part in self.parts))

    def of_epoch(self, epoch: int) -> "PairData":
        """Return the pairs of an epoch, which are the same in every epoch."""
        return self

    def close(self, *, is_finished: bool = False) -> None:
        """Do nothing; data that are sampled anew for each epoch stop their sampling here."""

    rows: Lengths | None = None
    """Number of sequences that a model computes for each pair; None: one."""
    noun, unit = "pair", "target tokens"
    """What the data consist of, and what the loss is a mean over; for messages. No unit: each is one."""

    def own_batch(self, chosen: Indices) -> Any:
        """Return a batch of another form than that of pairs; None for pairs."""
        return None

    def sequence_lengths(self, indices: Indices) -> tuple[Lengths, Lengths]:
        """Return the lengths of source and target of all sequences that a model computes for some pairs."""
        return self.source_lengths[indices], self.target_lengths[indices]

    def padded_lengths(self, indices: Indices) -> tuple[Lengths, Lengths]:
        """Return the same lengths in one batch, with padding."""
        source, target = self.sequence_lengths(indices)
        return np.full_like(source, source.max()), np.full_like(target, target.max())

    @property
    def target_tokens(self) -> npt.NDArray[np.unsignedinteger]:
        """The ids of all targets in one row, without special symbols."""
        return self._ids[1]

    def ids(self, side: int, index: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the ids of one sentence, without special symbols; side 0 is the source, 1 the target."""
        begin, end = self._offsets[side][index : index + 2]
        return self._ids[side][begin:end]

    def joined_ids(self, side: int, indices: Indices) -> tuple[npt.NDArray, Lengths]:
        """Return the ids of several sentences in one row, in the order of ``indices``, and the length of each."""
        begins, ends = self._offsets[side][indices], self._offsets[side][indices + 1]
        lengths = (ends - begins).astype(np.int64)
        if (lengths < 0).any():
            raise _damaged(self.folder / f"{SIDES[side]}.offsets.bin", "damaged")
        starts = np.cumsum(lengths) - lengths  # of each sentence in the result
        positions = np.repeat(begins - starts, lengths) + np.arange(lengths.sum())
        return self._ids[side][positions], lengths


def _parts(path: Path, description: Any) -> list[Part]:
    """Check a shards.json, and return its corpora."""
    named = description.get("format") if isinstance(description, dict) else None
    if named != FORMAT:
        raise _damaged(path, f"of the format {named!r}, which this version does not read" if named else "not of nmtkit")
    try:
        numbers = [description["pairs"], *(description["tokens"][side] for side in SIDES)]
        parts = [Part(**part) for part in description["corpora"]]
        is_whole = (
            # type() and not isinstance(), for which True is a number.
            all(type(number) is int and number >= 0 for number in numbers)
            and all(description["types"][side] in _TYPES for side in SIDES)
            and all(type(part.weight) in (int, float) and 0 < part.weight < math.inf for part in parts)
            and sum(part.pairs for part in parts) == description["pairs"]
        )
    except (KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise _damaged(path, "damaged")
    return parts


def _map(path: Path, kind: str, count: int) -> npt.NDArray:
    expected = count * np.dtype(kind).itemsize
    size = path.stat().st_size if path.is_file() else None
    if size != expected:
        raise _damaged(path, "missing" if size is None else f"{size} bytes instead of {expected}")
    if count == 0:  # an empty file cannot be mapped
        return np.zeros(0, kind)
    return np.memmap(path, dtype=kind, mode="r", shape=(count,))


def _damaged(path: Path, fault: str) -> DataError:
    return DataError(f"{path}: {fault}; remove {path.parent.parent} and run `nmtkit prepare` again")
