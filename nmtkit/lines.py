"""Lines of text files, plain or compressed.

Text is split into lines at ``\\n`` only: U+2028, U+0085, form feeds and lone carriage returns stay inside their line.
A text without any ``\\n`` but several carriage returns is refused, as old programs for the Mac write it.
"""

import codecs
import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO, Literal, cast

from nmtkit.compression import BEGINNINGS, DAMAGED, decompressed, kind_of
from nmtkit.errors import DataError
from nmtkit.files import check_regular, naming, open_plain, write_atomically


class LineReader:
    """Iterator over the lines of a file or binary stream, split at ``\\n`` only, which counts irregularities.

    One carriage return at the end of a line (CRLF text) is removed and counted.

    Attributes:
        num_lines: number of lines read so far, including those before this part of the text.
        carriage_returns: number of lines that ended in CRLF.
        has_byte_order_mark: the text began with a byte-order mark, which is removed.
        invalid_lines: numbers (from 1) of the lines whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(
        self,
        source: Path | Iterable[bytes],
        *,
        name: str | None = None,
        errors: Literal["strict", "replace", "surrogateescape"] = "strict",
        lines_before: int = 0,
    ) -> None:
        """Args:
        source: a path (decompressed by its suffix, such as ``.gz``) or an open binary stream.
        name: name of the source in messages; by default its path.
        errors: ``strict`` raises at invalid UTF-8, ``replace`` replaces it and records the line number,
            ``surrogateescape`` leaves each invalid byte in the line as U+DC80 to U+DCFF.
        lines_before: number of lines of the text before this part.
        """
        self._source = source
        self._errors = errors
        self.name = name if name is not None else str(source)
        self._kind = kind_of(self.name) or "compressed"
        self.num_lines = lines_before
        self.carriage_returns = 0
        self.has_byte_order_mark = False
        self.invalid_lines: list[int] = []

    def __iter__(self) -> Iterator[str]:
        """Yield each line without its line end.

        Raises:
            DataError: the file cannot be read, is not valid UTF-8 (under ``strict``) or is damaged.
        """
        for raw in self.raw_lines():
            yield self._text_of(raw)

    def raw_lines(self) -> Iterator[bytes]:
        """Yield each line as it is stored, with its line end, and count only the lines.

        Raises:
            DataError: the file cannot be read or is damaged.
        """
        source = self._source
        with naming(self.name), open_binary(source) if isinstance(source, Path) else nullcontext(source) as stream:
            try:
                for raw in stream:
                    self.num_lines += 1
                    yield raw
            except EOFError:
                raise DataError(
                    f"{self.name}: the {self._kind} file is cut short after line {self.num_lines}; "
                    "fetch or compress it again"
                ) from None
            except DAMAGED as error:
                raise DataError(
                    f"{self.name}: damaged or not a {self._kind} file (after line {self.num_lines}: {error}); "
                    "fetch or compress it again"
                ) from None

    def _text_of(self, raw: bytes) -> str:
        if self.num_lines == 1:
            refuse_binary(raw.removesuffix(b"\n"), self.name)
            refuse_carriage_returns(raw, self.name)
            self.has_byte_order_mark = raw.startswith(codecs.BOM_UTF8)
            raw = raw.removeprefix(codecs.BOM_UTF8)
        raw = raw.removesuffix(b"\n")
        if raw.endswith(b"\r"):
            raw = raw[:-1]
            self.carriage_returns += 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._errors == "strict":
                raise DataError(
                    f"{self.name}, line {self.num_lines}: invalid UTF-8 (byte 0x{raw[error.start]:02x} at position "
                    f"{error.start + 1}); convert the file to UTF-8 or correct the line"
                ) from None
            if self._errors == "replace":
                self.invalid_lines.append(self.num_lines)
            return raw.decode("utf-8", errors=self._errors)


def refuse_binary(line: bytes, name: str) -> None:
    """Raise DataError if the first line of a text is that of compressed data or of UTF-16.

    UTF-16 has a byte-order mark, or at least half of each other byte is NUL.
    """
    for beginning, kind in BEGINNINGS.items():
        if line.startswith(beginning):
            if b"[Content_Types].xml" in line or b"mimetypeapplication/vnd" in line:
                raise DataError(f"{name}: is an office document; save it as plain text, a table as tab-separated text")
            raise DataError(f"{name}: holds {kind} data and no text; decompress it, or give it the ending of its kind")
    # Whole code units: in UTF-16 with the high byte first, one byte of the line end is left in the line.
    begin = line[: min(200, len(line) & ~1)]
    nuls = [begin[side::2].count(0) for side in (0, 1)]
    kind = "utf-16be" if nuls[0] > nuls[1] else "utf-16le"
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        kind = "utf-16"
    elif len(begin) < 8 or nuls[0] == nuls[1] or 4 * max(nuls) < len(begin):
        return
    raise DataError(f"{name}: looks like UTF-16; convert it with `iconv -f {kind} -t utf-8 FILE > FILE.utf8`")


def refuse_carriage_returns(line: bytes, name: str) -> None:
    """Raise DataError if a text has no ``\\n`` but several carriage returns; ``line``: the first, with its end."""
    if line.count(b"\r") > 1 and not line.endswith(b"\n"):
        remedy = "`tr '\\r' '\\n' < FILE > FILE.lines`"
        raise DataError(f"{name}: only carriage returns end its lines; convert it with {remedy}")


def open_binary(path: Path) -> io.BufferedIOBase:
    """Open a file for reading its bytes, decompressed by its suffix (``.gz``, ``.xz``, ``.bz2``, ``.zst``).

    Raises:
        DataError: the file is missing, is a folder or may not be read.
    """
    return decompressed(cast(io.BufferedReader, open_plain(path)), str(path))


class Snapshot:
    """The content of a file at one time, to find out whether it was changed otherwise than by growing."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        self._path = path
        with naming(path), open_plain(path) as file:
            self._status = os.fstat(file.fileno())
            self.sha256 = self._sha256_of_begin(file)

    def _sha256_of_begin(self, file: BinaryIO) -> str:
        size, begin = self._status.st_size, hashlib.sha256()
        while chunk := file.read(min(size, 1 << 20)):
            begin.update(chunk)
            size -= len(chunk)
        return begin.hexdigest()

    def is_changed(self) -> bool:
        """Return whether the file does not begin with that content any more; not where it cannot be read."""
        try:
            with open_plain(self._path) as file:
                status = os.fstat(file.fileno())
                is_same = (status.st_size, status.st_mtime_ns) == (self._status.st_size, self._status.st_mtime_ns)
                return not is_same and self._sha256_of_begin(file) != self.sha256
        except DataError:
            return False

    def changed(self) -> DataError:
        """Return the error about a change."""
        return DataError(f"{self._path}: was changed while it was read; run the same command again")


def any_text(*lines: str) -> bool:
    """Return whether any of the given lines has text; a pair of lines without text separates documents."""
    return any(map(str.strip, lines))


def without_line_end(line: str) -> str:
    """Return a line without the line end after it (``\\n``, ``\\r\\n``), if it has one."""
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def read_lines(path: Path) -> list[str]:
    """Return all lines of a plain or compressed file, split at ``\\n`` only; the final line end may be missing.

    Raises:
        DataError: see LineReader.
    """
    return list(LineReader(path))


def write_lines(path: Path, lines: Iterator[str] | list[str]) -> None:
    """Write lines to a file, atomically."""
    with write_atomically(path) as file:
        file.writelines(f"{line}\n" for line in lines)
