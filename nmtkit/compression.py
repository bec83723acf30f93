"""Reading and writing of compressed byte streams: gzip, xz, bzip2 and zstd, chosen by the suffix of the file name.

In every format, a truncated file raises EOFError, a damaged file one of DAMAGED, and a file that expands to far more
than text does raises DataError before it fills a disk or the memory.
"""

import bz2
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, BinaryIO, cast

from nmtkit.errors import DataError

KINDS = {".gz": "gzip", ".tgz": "gzip", ".xz": "xz", ".txz": "xz", ".bz2": "bzip2", ".zst": "zstd"}
"""Compression formats by suffix."""

BEGINNINGS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"(\xb5/\xfd": "zstd", b"PK\x03\x04": "zip"}
"""Formats by their first bytes, which no text has; those of bzip2, `BZh`, can be text."""

MAX_EXPANSION = 500
EXPANSION_FREE_BYTES = 1 << 22
"""Output bytes from which the output may be at most MAX_EXPANSION times the input; text reaches 5, rarely 20. The limit
is low, as all the bytes may be blank lines, each of which takes as much time as a sentence."""

_BUFFER_BYTES = 1 << 17
_INPUT_BYTES = 1 << 10
"""Bytes decompressed at once. zstd and bzip2 expand a byte to up to 32,000, so the output is at most 32 MB."""


class DamagedError(Exception):
    """Compressed bytes that cannot be read."""


DAMAGED = (DamagedError, zlib.error, lzma.LZMAError)
"""Exceptions for a damaged file or member of a zip archive."""


def kind_of(name: str) -> str | None:
    """Return the compression format of a file name; None if it is not compressed."""
    return next((kind for suffix, kind in KINDS.items() if name.lower().endswith(suffix)), None)


def without_suffix(name: str) -> str:
    """Return a file name without a suffix of compression: ``a.en`` for ``a.en.gz``."""
    suffix = next((suffix for suffix in KINDS if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def decompressed(stream: io.BufferedIOBase, name: str, most_stored: float = math.inf) -> io.BufferedIOBase:
    """Return the decompressed bytes of a stream; the stream itself if its name has no suffix of compression.

    Closing the result closes ``stream``.

    Args:
        most_stored: bytes of the file that holds the stream, which may be compressed a second time in it.
    """
    kind = kind_of(name)
    return stream if kind is None else io.BufferedReader(_Decompressed(stream, kind, name, most_stored), _BUFFER_BYTES)


def compressed(stream: BinaryIO, name: str) -> AbstractContextManager[IO[bytes]]:
    """Return a stream that compresses into another, which stays open; equal input gives equal output."""
    kind = kind_of(name)
    if kind == "gzip":
        # The header holds the name of the file and the time by default, so equal text would give different bytes.
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


def check_expansion(name: str, num_read: float, num_decompressed: int) -> None:
    """Raise DataError if compressed bytes have expanded far more than text does."""
    if num_decompressed > EXPANSION_FREE_BYTES and num_decompressed > MAX_EXPANSION * max(num_read, 1):
        raise DataError(
            f"{name}: expands to more than {MAX_EXPANSION} times its size, which text never does; do not use it, or "
            "decompress it yourself if it is what it should be"
        )


class _Decompressed(io.RawIOBase):
    """A file of decompressed bytes that closes the compressed stream."""

    def __init__(self, stream: io.BufferedIOBase, kind: str, name: str, most_stored: float) -> None:
        self._stream = stream
        self._chunks = _decompress(stream, kind, name, most_stored)
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        # A decompressor may return nothing for a while; 0 bytes would mean the end of the file.
        while not self._waiting:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._waiting = memoryview(chunk)
        count = min(len(target), len(self._waiting))
        target[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _decompress(stream: io.BufferedIOBase, kind: str, name: str, most_stored: float) -> Iterator[bytes]:
    """Decompress one compressed stream or several in a row.

    The file classes of Python's libraries read these too, but silently drop all that follows padding or damage.
    """
    begin: Callable[[], Any]
    padding = 0  # zero bytes may follow a stream in multiples of this number; 0: not at all
    faults: tuple[type[Exception], ...]
    if kind == "gzip":
        # 16 + MAX_WBITS: with the header and checksum of gzip (zlib.h). gzip accepts zero bytes after a stream.
        begin, padding, faults = lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), 1, (zlib.error,)
    elif kind == "xz":
        # Stream padding is a multiple of four zero bytes (.xz file format, section 2.2).
        begin, padding, faults = lzma.LZMADecompressor, 4, (lzma.LZMAError,)
    elif kind == "bzip2":
        # An OSError for damaged bytes would look like a fault of the disk; below, it becomes DamagedError.
        begin, faults = bz2.BZ2Decompressor, (OSError, ValueError)
    else:
        import zstandard

        reader = zstandard.ZstdDecompressor(max_window_size=2**31)  # as `zstd --long=31` needs
        begin, faults = reader.decompressobj, (zstandard.ZstdError,)
    num_read = num_decompressed = num_zeros = 0
    current, is_between = begin(), False
    while chunk := stream.read(_INPUT_BYTES):
        num_read += len(chunk)
        while chunk:
            if is_between:
                rest = chunk.lstrip(b"\0") if padding else chunk
                num_zeros += len(chunk) - len(rest)
                if not (chunk := rest):
                    break
                _check_padding(num_zeros, padding)
                current, num_zeros = begin(), 0
            try:
                content = current.decompress(chunk)
            except faults as error:
                raise DamagedError(str(error)) from None
            num_decompressed += len(content)
            check_expansion(name, min(num_read, most_stored), num_decompressed)
            yield content
            is_between = current.eof
            chunk = current.unused_data if is_between else b""
    if not is_between:
        raise EOFError("the last stream has no end")
    _check_padding(num_zeros, padding)


def _check_padding(num_zeros: int, padding: int) -> None:
    if num_zeros and num_zeros % padding:
        raise DamagedError(f"{num_zeros} zero bytes between streams, which is not a multiple of {padding}")
