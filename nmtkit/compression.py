"""Compressed files as streams of their bytes, read and written: gzip, xz, bzip2 and zstd, told by the end of the name.

Below all reading of text. Whatever the form, one that is cut short raises EOFError, one that is damaged raises one of
DAMAGED, and one that unfolds to far more than its size raises DataError before it has filled a disk or a memory.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, BinaryIO, cast

from nmtkit.errors import DataError

KINDS = {".gz": "gzip", ".tgz": "gzip", ".xz": "xz", ".txz": "xz", ".bz2": "bzip2", ".zst": "zstd"}
"""What compresses a file, by the end of its name."""

MAX_EXPANSION = 500
EXPANSION_FREE_BYTES = 1 << 22
"""After so many bytes, what comes out of a file may be MAX_EXPANSION times what went in; text reaches 5, seldom 20.
They may be as many blank lines, each of which costs as much time as a sentence."""

_BUFFER_BYTES = 1 << 17
_INPUT_BYTES = 1 << 10
"""zstd and bzip2 make up to 32,000 bytes of one: read at once, so much becomes 32 MB at most."""


class DamagedError(Exception):
    """Compressed bytes that cannot be read."""


DAMAGED = (DamagedError, zlib.error, lzma.LZMAError)
"""What reading a damaged file raises, or a damaged member of a zip."""


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
    return io.BufferedReader(_Unfolded(stream, kind, name), _BUFFER_BYTES)


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
            f"{name}: unfolds to more than {MAX_EXPANSION} times its size, which no text does; do not use it, or "
            "decompress it yourself if it is what it should be"
        )


class _Unfolded(io.RawIOBase):
    """What the compressed streams in a file unfold to, as a file that closes theirs."""

    def __init__(self, stream: io.BufferedIOBase, kind: str, name: str) -> None:
        self._stream = stream
        self._pieces = _pieces(stream, kind, name)
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._waiting = memoryview(piece)
        count = min(len(target), len(self._waiting))
        target[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def _pieces(stream: io.BufferedIOBase, kind: str, name: str) -> Iterator[bytes]:
    """What one compressed stream or several in a row unfold to.

    The file classes of Python's libraries read those too, but silently drop all that follows padding or damage.
    """
    begin, padding, faults = _form(kind)
    num_read = num_unfolded = num_zeros = 0
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
                piece = current.decompress(chunk)
            except faults as error:
                raise DamagedError(str(error)) from None
            num_unfolded += len(piece)
            check_expansion(name, num_read, num_unfolded)
            yield piece
            is_between = current.eof
            chunk = current.unused_data if is_between else b""
    if not is_between:
        raise EOFError("the last stream has no end")
    _check_padding(num_zeros, padding)


def _check_padding(num_zeros: int, padding: int) -> None:
    if num_zeros and num_zeros % padding:
        raise DamagedError(f"{num_zeros} zero bytes between streams, which is not a multiple of {padding}")


def _form(kind: str) -> tuple[Callable[[], Any], int, tuple[type[Exception], ...]]:
    """What unfolds a stream, of how many zero bytes a multiple may follow it (0: none), and the errors of damage."""
    if kind == "gzip":
        return lambda: zlib.decompressobj(16 + zlib.MAX_WBITS), 1, (zlib.error,)
    if kind == "xz":
        return lzma.LZMADecompressor, 4, (lzma.LZMAError,)
    if kind == "bzip2":
        return bz2.BZ2Decompressor, 0, (OSError, ValueError)
    import zstandard

    return lambda: zstandard.ZstdDecompressor().decompressobj(), 0, (zstandard.ZstdError,)
