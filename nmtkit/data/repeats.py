"""Find equal texts among training pairs by keys in files, with memory that does not grow with the corpus.

Copies are found by 64-bit keys. Two different texts have the same key with probability 2^-64; among 40 million pairs,
0.00004 false copies are expected. Pairs to hold out for validation and test are chosen by a 128-bit key of both sides.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmtkit.text.normalization import normalize

_KEY_BYTES = 8
_KEYS_AT_ONCE = 2_000_000
"""Number of keys that are sorted at once, in about 100 MB of memory."""
# Byte orders are stated, so that every machine chooses the same pairs; big-endian keys sort as their bytes do.
_ROW = np.dtype([("pair", ">u8", 2), ("sides", "<u8", 2), ("number", "<i8"), ("begins", "<i8", 2), ("group", "<i4")])
"""A pair: keys of both sides together and of each, its number, where its lines begin, and the group that it may be held
out for; -1: none."""


def key_of(*texts: str) -> bytes:
    """Return the key of a line or of both sides of a pair; it is the same in every process."""
    return hashlib.blake2b("\n".join(texts).encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES).digest()


class KeyFile:
    """A file to which the keys of a sequence of texts are appended."""

    def __init__(self, path: Path, watched: int = 0) -> None:
        """Args:
        watched: number of texts, from the first, among which a repeat is found as soon as it is added.
        """
        self._path = path
        self._num_keys = 0
        self._watched = watched
        self._seen: set[int] = set()

    def add(self, keys: bytes, eligible: npt.NDArray[np.bool_]) -> int | None:
        """Append the keys of the next texts, concatenated.

        Args:
            eligible: the texts that count, [keys].

        Returns:
            The index among these keys of the first repeat of all, if it is among them and among the watched texts.
        """
        with self._path.open("ab") as file:
            file.write(keys)
        begin = self._num_keys
        self._num_keys += len(keys) // _KEY_BYTES
        values = np.frombuffer(keys, "<u8")
        for index in np.flatnonzero(eligible[: max(0, self._watched - begin)]).tolist():
            key = int(values[index])
            if key in self._seen:
                # Only the first repeat is quoted, so the memory can be freed.
                self._watched, self._seen = 0, set()
                return int(index)
            self._seen.add(key)
        return None

    def repeats(self, eligible: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the indices of texts that came before, sorted within each array.

        Args:
            eligible: the texts that count, [keys].
        """
        # Equal keys leave the same remainder, so each part can be searched alone.
        # At most 32 parts, as each reads all keys: more would take quadratic time, fewer more memory.
        num_parts = min(32, -(-self._num_keys // _KEYS_AT_ONCE))
        for part in range(num_parts):
            keys, indices = [], []
            for begin in range(0, self._num_keys, _KEYS_AT_ONCE):
                chunk = np.fromfile(self._path, "<u8", _KEYS_AT_ONCE, offset=begin * _KEY_BYTES)
                chosen = np.flatnonzero((chunk % np.uint64(num_parts) == part) & eligible[begin : begin + len(chunk)])
                keys.append(chunk[chosen])
                indices.append(chosen + begin)
            part_keys, index = np.concatenate(keys), np.concatenate(indices)
            order = np.argsort(part_keys, kind="stable")  # stable: among equal keys the first text stays first
            again = np.flatnonzero(part_keys[order[1:]] == part_keys[order[:-1]]) + 1
            yield np.sort(index[order[again]])


class PairFile:
    """A file to which the pairs are appended from which some are held out for validation and test."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @staticmethod
    def rows(
        pairs: Sequence[tuple[int, str, str]], steps: Sequence[str], lines: tuple[list[bytes], list[bytes]]
    ) -> npt.NDArray:
        """Return the rows of pairs, for `add`.

        Args:
            pairs: number, source and target of each pair.
            steps: steps of data.normalize; texts that are equal after these steps count as equal.
            lines: both sides of each pair as they are stored, with line ends.
        """
        rows = np.zeros(len(pairs), _ROW)
        rows["number"] = [number for number, _, _ in pairs]
        texts = [(normalize(source, steps), normalize(target, steps)) for _, source, target in pairs]
        keys = b"".join(hashlib.blake2b("\n".join(pair).encode(), digest_size=16).digest() for pair in texts)
        rows["pair"] = np.frombuffer(keys, ">u8").reshape(-1, 2)
        for side in range(2):
            rows["sides"][:, side] = np.frombuffer(b"".join(key_of(pair[side]) for pair in texts), "<u8")
            sizes = np.fromiter(map(len, lines[side]), np.int64, len(pairs))
            rows["begins"][:, side] = np.cumsum(sizes) - sizes
        return rows

    def add(self, rows: npt.NDArray, begins: tuple[int, int], group: int | npt.NDArray) -> None:
        """Append rows.

        Args:
            begins: byte position in the text file of each side at which the lines of these pairs begin.
            group: group that the pairs, or each of them, may be held out for, from 0; -1: none.
        """
        rows["begins"] += begins
        rows["group"] = group
        with self._path.open("ab") as file:
            file.write(rows.tobytes())

    def hold_out(
        self,
        nums_wanted: Sequence[int],
        kept: npt.NDArray[np.bool_],
        taken: npt.NDArray,
        *,
        across: bool = False,
    ) -> tuple[list[npt.NDArray], npt.NDArray[np.int64]]:
        """Choose the distinct pairs with the smallest keys, which do not depend on the rest of the text.

        Args:
            nums_wanted: number of pairs to choose of each group; fewer are chosen if there are no more.
            kept: the pairs that are still in the text, [pairs].
            taken: rows of other pairs, with which no chosen pair may share a side.
            across: a source also counts as a copy of an equal target.

        Returns:
            The rows of the chosen pairs of each group in the order of the text, and the numbers of all pairs, these
            included, that share a side with one of them.
        """
        best = [np.zeros(0, _ROW) for _ in nums_wanted]
        for rows in self._kept_rows(kept):
            is_free = ~_shares_side(rows, taken, across)
            for group, num_wanted in enumerate(nums_wanted):
                candidates = np.concatenate([best[group], rows[is_free & (rows["group"] == group)]])
                keys = candidates["pair"]
                # Stable: the first of equal pairs stays first.
                candidates = candidates[np.lexsort((keys[:, 1], keys[:, 0]))]
                is_new = np.ones(len(candidates), bool)
                is_new[1:] = (candidates["pair"][1:] != candidates["pair"][:-1]).any(axis=1)
                best[group] = candidates[is_new][:num_wanted]
        chosen = np.concatenate(best)
        sharing = [rows["number"][_shares_side(rows, chosen, across)] for rows in self._kept_rows(kept)]
        in_order = [rows[np.argsort(rows["number"])] for rows in best]
        return in_order, np.concatenate([np.zeros(0, np.int64), *sharing])

    def _kept_rows(self, kept: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray]:
        if self._path.exists():
            with self._path.open("rb") as file:
                while len(rows := np.fromfile(file, _ROW, _KEYS_AT_ONCE)):
                    yield rows[kept[rows["number"] - 1]]


def _shares_side(rows: npt.NDArray, others: npt.NDArray, across: bool) -> npt.NDArray[np.bool_]:
    """Return for each row whether its source or its target is that of one of the others; across: or the other side."""
    sides = others["sides"]
    shares = [np.isin(rows["sides"][:, side], sides if across else sides[:, side]) for side in range(2)]
    return shares[0] | shares[1]
