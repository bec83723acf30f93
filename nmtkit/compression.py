"""Compressed files as streams of their bytes, read and written: gzip, xz, bzip2 and zstd, told by the end of the name.

Below all reading of text. Whatever the form, one that is cut short raises EOFError, one that is damaged raises one of
DAMAGED, and one that unfolds to far more than its size raises DataError before it has filled a disk or a memory.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, BinaryIO, cast

from nmtkit.errors import DataError

KINDS = {".gz": "gzip", ".tgz": "gzip", ".xz": "xz", ".txz": "xz", ".bz2": "bzip2", ".zst": "zstd"}
"""What compresses a file, by the end of its name."""

MAX_EXPANSION = 500
EXPANSION_FREE_BYTES = 1 << 30
"""After so many bytes, what comes out of a file may be MAX_EXPANSION times what went in; text reaches 5, seldom 20."""

_BUFFER_BYTES = 1 << 17
_ZSTD_INPUT_BYTES = 1 << 10
"""zstd makes up to 32,000 bytes of one: read at once, so much becomes 32 MB at most."""


class DamagedError(Exception):
    """Compressed bytes that cannot be read."""


DAMAGED = (DamagedError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
"""What reading a damaged file raises."""


def kind_of(name: str) -> str | None:
    """What the file of that name is compressed by; None if it is not."""
    return next((kind for suffix, kind in KINDS.items() if name.lower().endswith(suffix)), None)


def without_suffix(name: str) -> str:
    """A name without the end that says what compresses it: ``a.en.gz`` is ``a.en``."""
    suffix = next((suffix for suffix in KINDS if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def decompressed(stream: io.BufferedIOBase, name: str) -> io.BufferedIOBase:
    """The bytes that a compressed stream of that name unfolds to; the stream itself where the name says of nothing.

    Args:
        stream: is closed with the result.
    """
    kind = kind_of(name)
    if kind is None:
        return stream
    openers: dict[str, Callable[[Any], io.BufferedIOBase | io.RawIOBase]] = {
        "gzip": lambda file: gzip.GzipFile(fileobj=file),
        "xz": lzma.LZMAFile,
        "bzip2": bz2.BZ2File,
        "zstd": _Zstd,
    }
    return io.BufferedReader(_Guarded(openers[kind](stream), stream, name), _BUFFER_BYTES)


def compressed(stream: BinaryIO, name: str) -> AbstractContextManager[IO[bytes]]:
    """What compresses bytes into a stream of that name, which stays open; equal bytes become equal bytes."""
    kind = kind_of(name)
    if kind == "gzip":
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0)
        return cast(AbstractContextManager[IO[bytes]], packed)
    if kind == "xz":
        return lzma.LZMAFile(stream, "wb")
    if kind == "bzip2":
        return bz2.BZ2File(stream, "wb")
    if kind == "zstd":
        import zstandard

        return cast(AbstractContextManager[IO[bytes]], zstandard.ZstdCompressor().stream_writer(stream, closefd=False))
    return nullcontext(stream)


def check_expansion(name: str, num_read: int, num_unfolded: int) -> None:
    """Raises DataError where so many bytes have become far more than text does."""
    if num_unfolded > EXPANSION_FREE_BYTES and num_unfolded > MAX_EXPANSION * max(num_read, 1):
        raise DataError(
            f"{name}: unfolds to more than {MAX_EXPANSION} times its size, which no text does; do not use it"
        )


class _Guarded(io.RawIOBase):
    """Counts what comes out of a decompressor, closes its stream with it, and stops one that has no end."""

    def __init__(self, opened: io.BufferedIOBase | io.RawIOBase, stream: io.BufferedIOBase, name: str) -> None:
        self._opened = opened
        self._stream = stream
        self._name = name
        self._num_bytes = 0
        try:
            self._position: Callable[[], int] | None = stream.tell
            stream.tell()
        except (OSError, AttributeError):
            self._position = None  # a pipe: nothing is known of what went in

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._opened.readinto(buffer) or 0
        except OSError as error:
            if error.errno is None and not isinstance(error, gzip.BadGzipFile):  # so bz2 tells of damage
                raise DamagedError(str(error)) from None
            raise
        self._num_bytes += count
        if self._position is not None:
            check_expansion(self._name, self._position(), self._num_bytes)
        return count

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
            self._stream.close()
        super().close()


class _Zstd(io.RawIOBase):
    """A zstd file of one or more frames; unlike the library's own reader it notices one that is cut short."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        import zstandard

        self._stream = stream
        self._library = zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_inside = False
        self._waiting = memoryview(b"")
        self._unread = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        while not self._waiting:
            chunk = self._unread or self._stream.read(_ZSTD_INPUT_BYTES)
            self._unread = b""
            if not chunk:
                if self._is_inside:
                    raise EOFError("the last zstd frame has no end")
                return 0
            self._unfold(chunk)
        count = min(len(target), len(self._waiting))
        target[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def _unfold(self, chunk: bytes) -> None:
        try:
            self._waiting = memoryview(self._frame.decompress(chunk))
        except self._library.ZstdError as error:
            raise DamagedError(str(error)) from None
        self._is_inside = not self._frame.eof
        if self._frame.eof:
            self._unread = self._frame.unused_data
            self._frame = self._library.ZstdDecompressor().decompressobj()
