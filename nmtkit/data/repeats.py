"""Which training pairs come again, in bounded memory: 64-bit keys on disk, compared a part at a time.

Two different texts have the same key once in 2^64; among 40 million pairs a false repeat is expected 0.00004 times.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BUFFERED_KEYS = 65_536
_KEYS_AT_ONCE = 2_000_000
"""Keys that are sorted at once: about 100 MB, however many there are in all."""


def key_of(text: str | tuple[str, str]) -> int:
    """A 64-bit key of a line or a pair. It holds within this process only, as Python draws its hashes anew in each."""
    return hash(text)


class KeyFile:
    """The keys of one row of texts, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = array("q")
        self._num_keys = 0
        path.touch()

    def add(self, key: int) -> None:
        """Appends the key of the next text."""
        self._buffer.append(key)
        if len(self._buffer) == _BUFFERED_KEYS:
            self._flush()

    def repeats(self, eligible: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
        """The places (from 0) of texts that came before, sorted within each array given.

        Args:
            eligible: which texts are looked at, [keys].
        """
        self._flush()
        if not self._num_keys:
            return
        keys = np.memmap(self._path, dtype=np.uint64, mode="r", shape=(self._num_keys,))
        parts = -(-self._num_keys // _KEYS_AT_ONCE)
        for part in range(parts):
            found, places = [], []
            for begin in range(0, self._num_keys, _KEYS_AT_ONCE):
                chunk = keys[begin : begin + _KEYS_AT_ONCE]
                chosen = np.flatnonzero((chunk % np.uint64(parts) == part) & eligible[begin : begin + len(chunk)])
                found.append(chunk[chosen])
                places.append(chosen + begin)
            yield _repeated(np.concatenate(found), np.concatenate(places))

    def close(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        with self._path.open("ab") as file:
            self._buffer.tofile(file)
        self._num_keys += len(self._buffer)
        del self._buffer[:]


def _repeated(keys: npt.NDArray[np.uint64], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places, given in rising order, whose key stands at an earlier one too."""
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(keys[order[1:]] == keys[order[:-1]]) + 1
    return np.sort(places[order[again]])
