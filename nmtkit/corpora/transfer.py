"""Bytes from one address into a partial file, which a later attempt continues where the server can.

Below ``download.py``, which chooses addresses, tries again and verifies. A partial file is locked while a process is at
it, so several processes share a cache; what is said of it beside it (``.json``) lets the server tell whether its file
is still the same.
"""

import contextlib
import errno
import fcntl
import http.client
import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from nmtkit.console import log
from nmtkit.errors import DataError
from nmtkit.files import free_bytes, write_json

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0
PART_MARK = ".nmtkit-part"
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)

Report = Callable[[int, int | None], None]
"""report(bytes done, bytes in total or None): may raise to stop."""


class AttemptError(Exception):
    """Why one address did not give the file; the next one is tried."""


class TemporaryError(AttemptError):
    """A failure that may be gone the next time.

    Attributes:
        wait_seconds: how long the server asks to wait, None if it does not say.
    """

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class PartialFile:
    """The bytes of a download so far, in a locked file beside the place where it will lie; a context manager."""

    def __init__(self, path: Path) -> None:
        """Locks the partial file of ``path``, and waits while another process is at it."""
        self.path = self.path_of(path)
        self._state_path = self.path.with_name(f"{self.path.name}.json")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = _locked(self.path)
        self.url, self.validator = self._read_state()

    @staticmethod
    def path_of(path: Path) -> Path:
        """Where the bytes lie until ``path`` is whole."""
        return path.with_name(f".{path.name}{PART_MARK}")

    def __enter__(self) -> "PartialFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = os.fstat(self._file.fileno())
        if found.st_size == 0 and self.path.exists() and os.path.samestat(found, self.path.stat()):
            self.discard()
            self.path.unlink(missing_ok=True)  # while it is locked: see _locked
        self._file.close()

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _read_state(self) -> tuple[str | None, str | None]:
        try:
            state = json.loads(self._state_path.read_bytes())
            return str(state["url"]), state["validator"]
        except (OSError, ValueError, KeyError, TypeError):
            return None, None

    def begin(self, url: str, validator: str | None, start: int) -> None:
        """Cuts the file to ``start`` bytes and notes where the next ones come from."""
        if (url, validator) != (self.url, self.validator):
            write_json(self._state_path, {"url": url, "validator": validator})
            self.url, self.validator = url, validator
        self._file.truncate(start)
        self._file.seek(start)

    def write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:  # a disk that is nearly full takes a part
            rest = rest[self._file.write(rest) :]

    def discard(self) -> None:
        """Forgets all bytes."""
        self._file.truncate(0)
        self._state_path.unlink(missing_ok=True)
        self.url = self.validator = None

    def finish(self, path: Path) -> None:
        """Gives the file its name, once it is on the disk."""
        os.fsync(self._file.fileno())
        self._state_path.unlink(missing_ok=True)
        self.path.replace(path)


def _locked(path: Path) -> BinaryIO:
    """The file, opened without a buffer and locked; made where there is none."""
    told = False
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                log.info("%s: waiting for another process that is downloading it", path.name)
            told = True
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                file.close()
                raise
            log.warning("%s cannot be locked (%s); run only one download at a time", path, error.strerror)
            return file
        # Whoever held the lock has renamed or removed the file: then this one is locked in vain.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()


def transfer(url: str, part: PartialFile, num_bytes: int | None, is_checked: bool, report: Report) -> None:
    """Gets what a partial file lacks.

    Args:
        num_bytes: of the whole file, None if that is not known.
        is_checked: whether its checksum is known: then bytes of any edition may be continued, since a wrong mixture
            is found out; else only those that the server says are of the same one.

    Raises:
        AttemptError: this address does not give the file; TemporaryError: perhaps it does later.
        DataError: there is too little room for it.
    """
    if num_bytes is not None and part.size > num_bytes:
        part.discard()
    start = part.size if is_checked or (part.url == url and part.validator) else 0
    if start and start == num_bytes:
        return
    headers = {"User-Agent": "nmtkit"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if part.url == url and part.validator:
            headers["If-Range"] = part.validator
    _check_room(part.path, num_bytes, start)
    with _request(url, headers, part) as response:
        begin, total = _extent(response)
        if response.headers.get_content_type() == "text/html":
            raise AttemptError("the server sent a web page instead of the file")
        if total is not None and num_bytes not in (None, total):
            raise AttemptError(f"the server offers {total:,} bytes, expected {num_bytes:,}")
        if begin not in (0, start):
            part.discard()
            raise TemporaryError("the server sent another part than it was asked for")
        _check_room(part.path, total, begin)
        part.begin(url, _validator(response), begin)
        done = begin
        while chunk := _read(response):
            part.write(chunk)
            done += len(chunk)
            report(done, total if total is not None else num_bytes)
            if total is None and num_bytes is not None and done > num_bytes:
                break  # a server that has no end
        if total is not None and done < total:
            raise TemporaryError(f"the connection ended after {done:,} of {total:,} bytes")


def _request(url: str, headers: dict[str, str], part: PartialFile) -> http.client.HTTPResponse:
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        reason = one_line(f"HTTP {error.code} {error.reason}")
        if error.code == 416:  # the partial file is longer than theirs, or whole: without it all is clear
            part.discard()
            raise TemporaryError(reason, 0.0) from None
        if error.code in _TEMPORARY:
            raise TemporaryError(reason, _retry_after(error.headers.get("Retry-After"))) from None
        raise AttemptError(reason) from None
    except urllib.error.URLError as error:
        # Without a network, or with another one's certificate, waiting does not help.
        kind = AttemptError if isinstance(error.reason, (socket.gaierror, ssl.SSLError)) else TemporaryError
        raise kind(one_line(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(one_line(error)) from None


def _retry_after(value: str | None) -> float | None:
    """Seconds, of a header that gives them or a date."""
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return max(float(value), 0.0)
    with contextlib.suppress(ValueError):
        from datetime import UTC, datetime

        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    return None


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Where the bytes of an answer begin, and the size of the whole file; a server may ignore what was asked."""
    if response.status != 206:
        return 0, response.length
    unit, _, place = response.headers.get("Content-Range", "").partition(" ")
    begin, _, rest = place.partition("-")
    total = rest.partition("/")[2]
    if unit.lower() != "bytes" or not begin.isdigit():
        return -1, None
    return int(begin), int(total) if total.isdigit() else None


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What identifies the server's edition of the file; a weak ETag does not vouch for its bytes."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"the connection broke ({one_line(error)})") from None


def one_line(reason: object) -> str:
    """A reason as one line, however it came."""
    return " ".join(str(reason).split()) or type(reason).__name__


def _check_room(path: Path, num_bytes: int | None, start: int) -> None:
    if num_bytes is not None:
        check_room(path, num_bytes - start)


def check_room(path: Path, num_bytes: int) -> None:
    """Raises DataError unless so many bytes are free where ``path`` is to lie."""
    folder = next(parent for parent in (path.parent, *path.parents) if parent.exists())
    free = free_bytes(folder)
    if num_bytes > free:
        raise DataError(
            f"{path.parent}: needs {num_bytes:,} bytes, but only {free:,} are free there; make room, or name a folder "
            "on another disk in the environment variable NMTKIT_CACHE"
        )
