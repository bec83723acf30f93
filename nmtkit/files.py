"""Reading and writing files so that nothing is cut wrongly and nothing is half-written.

Text is cut into lines at ``\\n`` only: U+2028, U+0085, form feeds and lone carriage returns stay inside their line.
Files and folders are written to a temporary name, synced and renamed, so one that exists is whole.
"""

import codecs
import glob
import gzip
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, TextIO, cast

from nmtkit.errors import DataError

TEMPORARY_MARK = ".nmtkit-tmp-"


class LineReader:
    """Iterates over the lines of a file or binary stream, cut at ``\\n`` only, and counts what it met.

    One carriage return at the end of a line (CRLF text) is removed and counted.

    Attributes:
        num_lines: lines read so far.
        carriage_returns: lines that ended in CRLF.
        has_byte_order_mark: whether the text began with one, which is removed.
        invalid_lines: numbers (from 1) of the lines whose invalid UTF-8 was replaced by U+FFFD.
    """

    def __init__(
        self,
        source: Path | Iterable[bytes],
        *,
        name: str | None = None,
        errors: Literal["strict", "replace"] = "strict",
    ) -> None:
        """Args:
        source: a path (``.gz`` is decompressed) or an open binary stream.
        name: how messages call the source; its path by default.
        errors: ``strict`` raises at invalid UTF-8, ``replace`` replaces it and records the line number.
        """
        self._source = source
        self._errors = errors
        self.name = name if name is not None else str(source)
        self.num_lines = 0
        self.carriage_returns = 0
        self.has_byte_order_mark = False
        self.invalid_lines: list[int] = []

    def __iter__(self) -> Iterator[str]:
        """Yields each line without its line end.

        Raises:
            DataError: the file cannot be read, is not valid UTF-8 (under ``strict``) or is a damaged gzip file.
        """
        with ExitStack() as stack:
            stream: Iterable[bytes]
            if isinstance(self._source, Path):
                stream = stack.enter_context(open_binary(self._source))
            else:
                stream = self._source
            lines = iter(stream)
            while (raw := self._next(lines)) is not None:
                self.num_lines += 1
                raw = raw.removesuffix(b"\n")
                if self.num_lines == 1 and raw.startswith(codecs.BOM_UTF8):
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                    self.has_byte_order_mark = True
                if raw.endswith(b"\r"):
                    raw = raw[:-1]
                    self.carriage_returns += 1
                yield self._decode(raw)

    def _next(self, lines: Iterator[bytes]) -> bytes | None:
        try:
            return next(lines, None)
        except EOFError:
            raise DataError(
                f"{self.name}: the gzip file is cut short after line {self.num_lines}; fetch or compress it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{self.name}: damaged or not a gzip file (after line {self.num_lines}: {error}); "
                "fetch or compress it again"
            ) from None

    def _decode(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if self._errors == "replace":
                self.invalid_lines.append(self.num_lines)
                return raw.decode("utf-8", errors="replace")
            raise DataError(
                f"{self.name}, line {self.num_lines}: invalid UTF-8 (byte 0x{raw[error.start]:02x} at position "
                f"{error.start + 1}); convert the file to UTF-8 or correct the line"
            ) from None


def open_binary(path: Path) -> io.BufferedIOBase:
    """Opens a plain or ``.gz`` file for reading bytes.

    Raises:
        DataError: it is missing, is a folder or may not be read.
    """
    try:
        if path.suffix == ".gz":
            return io.BufferedReader(gzip.open(path, "rb"))
        return path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read (permission denied)") from None


def read_lines(path: Path) -> list[str]:
    """All lines of a plain or ``.gz`` file, cut at ``\\n`` only; a missing final line end makes no difference.

    Raises:
        DataError: see LineReader.
    """
    return list(LineReader(path))


def sync_folder(folder: Path) -> None:
    """Makes a rename inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: Path) -> Path:
    """The temporary name for ``path``; what a process of this host that is no more left for it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    host = platform.node()
    for entry in path.parent.glob(glob.escape(f".{path.name}{TEMPORARY_MARK}") + "*"):
        owner, _, process = entry.name.rsplit(TEMPORARY_MARK, 1)[1].rpartition("-")
        if owner in ("", host) and not (process.isdigit() and _is_running(int(process))):
            _remove(entry)
    return path.with_name(f".{path.name}{TEMPORARY_MARK}{host}-{os.getpid()}")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)


@contextmanager
def write_bytes_atomically(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under ``path``, whole and synced, when the block ends without an error.

    What is no file, such as /dev/stdout or a pipe, is written to as it is; a link stays and its target is replaced.

    Raises:
        DataError: ``path`` is a folder.
    """
    path = path.resolve()
    if path.is_dir():
        raise DataError(f"{path}: is a folder; name a file")
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk is told without the name of the file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def write_atomically(path: Path) -> Iterator[TextIO]:
    """A UTF-8 text file with ``\\n`` line ends that appears under ``path`` whole; ``.gz`` is compressed."""
    with write_bytes_atomically(path) as file, ExitStack() as stack:
        binary: IO[bytes] = file
        if path.suffix == ".gz":
            compressed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
            binary = cast(IO[bytes], stack.enter_context(compressed))
        text = io.TextIOWrapper(cast(BinaryIO, binary), encoding="utf-8", newline="\n", write_through=False)
        try:
            yield text
            text.flush()
        finally:
            text.detach()


def write_lines(path: Path, lines: Iterator[str] | list[str]) -> None:
    """Writes one line each, atomically."""
    with write_atomically(path) as file:
        file.writelines(f"{line}\n" for line in lines)


@contextmanager
def write_folder_atomically(path: Path) -> Iterator[Path]:
    """A folder that appears under ``path``, whole and synced, when the block ends without an error.

    An older folder of that name is replaced only once the new one is complete.
    """
    path = path.resolve()
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_dir():
                sync_folder(file)
            else:
                with file.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(temporary)
        if path.exists():
            old = path.with_name(f".{path.name}{TEMPORARY_MARK}{platform.node()}-old")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            temporary.rename(path)
            shutil.rmtree(old)
        else:
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes what a killed process left half-written in ``folder`` and says what that was."""
    if not folder.is_dir():
        return []
    leftovers = [entry for entry in folder.iterdir() if TEMPORARY_MARK in entry.name]
    for entry in leftovers:
        _remove(entry)
    return leftovers


def remove_folder(path: Path) -> None:
    """Removes a folder; a kill on the way leaves nothing that looks like it."""
    abandoned = path.with_name(f".{path.name}{TEMPORARY_MARK}{platform.node()}-old")
    shutil.rmtree(abandoned, ignore_errors=True)
    path.rename(abandoned)
    shutil.rmtree(abandoned)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("nmtkit", "torch", "sentencepiece", "accelerate", "sacrebleu")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in packages}}


def sha256_of(path: Path) -> str:
    """The sha256 sum of a file, in hexadecimal."""
    with open_plain(path) as file:
        return hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()


def open_plain(path: Path) -> BinaryIO:
    """Opens a file for reading its bytes as they are, compressed or not; raises DataError as open_binary does."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a folder, not a file") from None
    except PermissionError:
        raise DataError(f"{path}: may not be read (permission denied)") from None


def sha256_of_files(folder: Path) -> dict[str, str]:
    """The sha256 sums of all files below ``folder``, keyed by relative path."""
    files = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    return {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}


def write_json(path: Path, value: Any) -> None:
    """Writes indented JSON, atomically."""
    with write_atomically(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def read_json(path: Path) -> Any:
    """Raises DataError when the file is missing or not JSON."""
    with open_plain(path) as file:
        try:
            return json.loads(file.read().decode("utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not valid JSON ({error}); the file is damaged") from None


def json_line(value: Any) -> str:
    """A value as one line of JSON, its line end included."""
    return json.dumps(value, ensure_ascii=False) + "\n"


def append_json_line(path: Path, value: Any) -> None:
    """Appends one JSON line and flushes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json_line(value))
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def read_json_lines(path: Path) -> list[Any]:
    """All JSON lines of a file, [] if there is none; a last line that a killed process left unfinished is ignored.

    Raises:
        DataError: another line is not JSON.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    values = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            values.append(json.loads(line.decode("utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number}: not valid JSON ({error}); the file is damaged") from None
    return values
