"""Which training pairs come again, in bounded memory: 64-bit keys on disk, compared a part at a time.

Two different texts have the same key once in 2^64; among 40 million pairs a false repeat is expected 0.00004 times.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

_KEY_BYTES = 8
_KEYS_AT_ONCE = 2_000_000
"""Keys that are sorted at once: about 100 MB, however many there are in all."""


def key_of(*texts: str) -> bytes:
    """The key of a line, or of the sides of a pair, the same in every process; no line holds a line end."""
    return hashlib.blake2b("\n".join(texts).encode("utf-8", "surrogateescape"), digest_size=_KEY_BYTES).digest()


class KeyFile:
    """The keys of one row of texts, in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_keys = 0
        self._file = path.open("wb")

    def add(self, keys: bytes) -> None:
        """Appends the keys of the next texts, one after the other."""
        self._file.write(keys)
        self._num_keys += len(keys) // _KEY_BYTES

    def repeats(self, eligible: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
        """The places (from 0) of texts that came before, sorted within each array given.

        Args:
            eligible: which texts are looked at, [keys].
        """
        self._file.flush()
        parts = -(-self._num_keys // _KEYS_AT_ONCE)
        for part in range(parts):
            found, places = [], []
            for begin in range(0, self._num_keys, _KEYS_AT_ONCE):
                chunk = np.fromfile(self._path, "<u8", _KEYS_AT_ONCE, offset=begin * _KEY_BYTES)
                chosen = np.flatnonzero((chunk % np.uint64(parts) == part) & eligible[begin : begin + len(chunk)])
                found.append(chunk[chosen])
                places.append(chosen + begin)
            found_keys, found_places = np.concatenate(found), np.concatenate(places)
            order = np.argsort(found_keys, kind="stable")
            again = np.flatnonzero(found_keys[order[1:]] == found_keys[order[:-1]]) + 1
            yield np.sort(found_places[order[again]])

    def close(self) -> None:
        """Removes the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)
