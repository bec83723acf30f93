"""Transfer of one file from one address: it goes on where an earlier one ended, and says whether to try again."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from nmtkit.console import log
from nmtkit.errors import DataError, in_one_line
from nmtkit.files import free_bytes
from nmtkit.json_toml import write_json
from nmtkit.locks import is_at, open_locked

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0
_PART_MARK = ".nmtkit-part"
_TEMPORARY_STATUS = (408, 425, 429, 500, 502, 503, 504)  # timeouts, rate limits and failures of a server or proxy


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and how to verify it.

    Attributes:
        url: the published address (http or https).
        alternatives: other addresses of the same bytes, tried in turn.
        num_bytes, sha256, md5: published size and checksums, in lower-case hexadecimal; None if not published.
    """

    url: str
    alternatives: tuple[str, ...] = ()
    num_bytes: int | None = None
    sha256: str | None = None
    md5: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """The published address, then the alternatives."""
        return (self.url, *self.alternatives)

    @property
    def is_checked(self) -> bool:
        """True if a checksum is known."""
        return self.sha256 is not None or self.md5 is not None


class AttemptError(Exception):
    """The reason why an address did not give the file; the next one is tried."""


class TemporaryError(AttemptError):
    """A failure that may be gone after a wait, such as the server's ``wait_seconds``."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class PartialFile:
    """The bytes of a download so far, in a locked file beside its final path.

    Address and edition (ETag or date) of the bytes are stored beside it (``.json``); None if unknown.
    """

    def __init__(self, path: Path) -> None:
        """Lock the partial file of ``path``, after waiting for any other process that holds it."""
        self.path = self.path_of(path)
        self._state_path = self.path.with_name(f"{self.path.name}.json")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Without a buffer, all that has arrived is in the file, also after a kill; its size is the number of bytes.
        waiting = f"{self.path.name}: waiting for another process that is downloading it"
        self._file = open_locked(self.path, lambda _: log.info("%s", waiting), "run only one download at a time")
        self.url: str | None = None
        self.validator: str | None = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._state_path.read_bytes())
            validator = state["validator"]
            self.url, self.validator = str(state["url"]), validator if isinstance(validator, str) else None

    @staticmethod
    def path_of(path: Path) -> Path:
        """Return the path of the bytes until ``path`` is complete."""
        return path.with_name(f".{path.name}{_PART_MARK}")

    def close(self) -> None:
        """Unlock the file, and remove it if it is empty."""
        if self.size == 0 and is_at(self._file, self.path):
            self.discard()
            self.path.unlink(missing_ok=True)  # while it is locked: see open_locked
        self._file.close()

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def begin(self, url: str, validator: str | None, start: int) -> None:
        """Cut the file to ``start`` bytes and store the origin of the next ones."""
        self._file.truncate(start)  # first: bytes of an older edition must not get the name of a newer one
        self._file.seek(start)
        if (url, validator) != (self.url, self.validator):
            write_json(self._state_path, {"url": url, "validator": validator})
            self.url, self.validator = url, validator

    def write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:  # an unbuffered write may take only a part
            rest = rest[self._file.write(rest) :]

    def discard(self) -> None:
        """Remove all bytes."""
        self._file.truncate(0)
        self._state_path.unlink(missing_ok=True)
        self.url = self.validator = None

    def finish(self, path: Path) -> None:
        """Sync the file and give it its final name."""
        os.fsync(self._file.fileno())
        self._state_path.unlink(missing_ok=True)
        self.path.replace(path)


def transfer(url: str, expected: RemoteFile, part: PartialFile, report: Callable[[int, int | None], None]) -> None:
    """Append the missing bytes of a partial file.

    Args:
        report: called with the bytes done and in total (None if unknown); may raise to stop.

    Raises:
        AttemptError: this address does not give the file; TemporaryError: it may do so later.
        DataError: there is not enough disk space.
    """
    num_bytes = expected.num_bytes
    if num_bytes is not None and part.size > num_bytes:
        part.discard()
    # With a checksum, bytes of any edition may be continued: a wrong mixture is detected.
    start = part.size if expected.is_checked or (part.url == url and part.validator) else 0
    if start and start == num_bytes:
        return
    headers = {"User-Agent": "nmtkit"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if part.url == url and part.validator:
            # If the edition is another one, the server then sends the whole file (RFC 9110, section 13.1.5).
            headers["If-Range"] = part.validator
    check_room(part.path, (num_bytes or 0) - start)
    with _request(url, headers, part) as response:
        begin, total = _extent(response)
        # Login pages of networks and many error pages have the status 200.
        if response.headers.get_content_type() in ("text/html", "application/xhtml+xml"):
            raise AttemptError("the server sent a web page instead of the file")
        if total is not None and num_bytes not in (None, total):
            raise AttemptError(f"the server offers {total:,} bytes, expected {num_bytes:,}")
        if begin not in (0, start):
            part.discard()
            raise TemporaryError("the server sent another range than the requested one")
        # Once more, as the size may not have been published.
        check_room(part.path, (total or 0) - begin)
        etag = response.headers.get("ETag")
        is_strong = etag and not etag.startswith("W/")  # a weak ETag does not guarantee equal bytes
        validator = etag if is_strong else response.headers.get("Last-Modified")
        if begin and part.url == url:
            validator = validator or part.validator  # a part of the same edition need not repeat the date
            if validator != part.validator and not expected.is_checked:  # the server has ignored If-Range
                part.discard()
                raise TemporaryError("the file has changed meanwhile")
        part.begin(url, validator, begin)
        done = begin
        while chunk := _read(response):
            part.write(chunk)
            done += len(chunk)
            report(done, total if total is not None else num_bytes)
            if total is None and num_bytes is not None and done > num_bytes:
                break  # the answer may be endless
        if total is not None and done < total:
            raise TemporaryError(f"the connection ended after {done:,} of {total:,} bytes")
        if not done and num_bytes != 0:
            raise AttemptError("the server sent nothing")


def _request(url: str, headers: dict[str, str], part: PartialFile) -> http.client.HTTPResponse:
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
        if isinstance(response, http.client.HTTPResponse):
            return response
        response.close()
        raise AttemptError(f"redirected to {response.url}, which is not HTTP")
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        reason = in_one_line(f"HTTP {error.code} {error.reason}")
        if error.code == 416:  # the partial file is longer than the server's, or whole: begin anew
            part.discard()
            raise TemporaryError(reason, 0.0) from None
        if error.code in _TEMPORARY_STATUS:
            raise TemporaryError(reason, _retry_after(error.headers.get("Retry-After"))) from None
        raise AttemptError(reason) from None
    except urllib.error.URLError as error:
        # Without a network, or with a wrong certificate, waiting does not help; with other faults of TLS, it may.
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            advice = "; behind a proxy that inspects TLS, name its certificate in the variable SSL_CERT_FILE"
            if sys.platform == "darwin":
                advice += "; with Python from python.org, run 'Install Certificates.command' in its folder first"
            raise AttemptError(f"{in_one_line(error.reason)}{advice}") from None
        kind = AttemptError if isinstance(error.reason, socket.gaierror) else TemporaryError
        raise kind(in_one_line(error.reason)) from None
    except ValueError as error:  # an address that urllib cannot read, of a proxy or a redirection
        raise AttemptError(in_one_line(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(in_one_line(error)) from None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        # Returns what has arrived, which is stored at once; read() would wait for the whole chunk.
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"the connection broke ({in_one_line(error)})") from None


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which gives a number or a date; None if it is neither."""
    with contextlib.suppress(ValueError):
        return max(float(value or ""), 0.0)
    with contextlib.suppress(ValueError, TypeError):  # TypeError: a date without a time zone
        return max((parsedate_to_datetime(value or "") - datetime.now(UTC)).total_seconds(), 0.0)
    return None


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the first byte of an answer (-1: unknown) and the size of the whole file; servers may ignore a Range."""
    if response.status != 206:
        return 0, response.length
    unit, _, extent = response.headers.get("Content-Range", "").partition(" ")
    begin, _, rest = extent.partition("-")
    total = rest.partition("/")[2]
    if unit.lower() == "bytes" and begin.isdecimal():
        with contextlib.suppress(ValueError):  # more digits than Python reads
            if not total.isdecimal():  # unknown to the server: at least what it has announced
                return int(begin), None if response.length is None else int(begin) + response.length
            return int(begin), int(total)
    return -1, None


def check_room(path: Path, num_bytes: int) -> None:
    """Raise DataError unless that many bytes are free on the disk of ``path``."""
    free = free_bytes(path.parent)
    if num_bytes > free:
        raise DataError(
            f"{path.parent}: needs {num_bytes:,} bytes, but only {free:,} are free there; make room, or name a folder "
            "on another disk in the environment variable NMTKIT_CACHE"
        )
