"""Files of public corpora from a mirror folder, the cache or the network, always verified.

A file is looked for in the mirror, then in the cache, and only then downloaded into the cache. Both folders have the
layout ``<host>/<path of the URL>``, so one can serve as the other. Where no checksum is published, that of the first
download is recorded in the cache (``.sha256``) and verified from then on.

The `Downloader` chooses addresses, tries again and verifies; `transfer` appends the bytes of one address to a
`PartialFile`, which is locked, so that processes can share a cache.
"""

import contextlib
import copy
import hashlib
import http.client
import json
import os
import queue
import socket
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from nmtkit.console import log
from nmtkit.errors import DataError
from nmtkit.files import expanded, free_bytes, sha256_of, sync, write_text
from nmtkit.json_toml import write_json
from nmtkit.locks import is_at, open_locked

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0
MAX_CONCURRENT = 4
"""Downloads at the same time."""
MAX_ATTEMPTS = 6
"""Attempts at one address without a new byte."""
BACKOFF_SECONDS = 1.0
"""Wait before the second attempt; doubled each time."""
MAX_WAIT_SECONDS = 60.0

_PART_MARK = ".nmtkit-part"
_TEMPORARY_STATUS = (408, 425, 429, 500, 502, 503, 504)  # timeouts, rate limits and failures of a server or proxy

ProgressFunction = Callable[[str, int, int | None], None]
"""progress(url, bytes done, bytes in total or None if the server does not state it), called from any thread."""


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


@dataclass(frozen=True)
class CorpusFile:
    """A verified file on disk. ``url`` is None for a file of the user; ``sha256`` is computed from its bytes."""

    path: Path
    url: str | None
    num_bytes: int
    sha256: str

    def for_manifest(self) -> dict[str, Any]:
        """Return the file as the manifest of prepared data lists it."""
        return {"path": str(self.path), "url": self.url, "bytes": self.num_bytes, "sha256": self.sha256}


class AttemptError(Exception):
    """The reason why an address did not give the file; the next one is tried."""


class TemporaryError(AttemptError):
    """A failure that may be gone after a wait, such as the server's ``wait_seconds``."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class _StoppedError(Exception):
    """Another download has failed, so this one is given up; its bytes so far are kept."""


def default_cache() -> Path:
    """Return the environment variable NMTKIT_CACHE, else ``~/.cache/nmtkit``."""
    return expanded(os.environ.get("NMTKIT_CACHE") or "~/.cache/nmtkit")


def mirror_path(url: str) -> Path:
    """Return the path of a URL's file in a mirror or cache: ``<host>/<path>``, without port, query or percent signs.

    Raises:
        ValueError: the URL is not http or https, names no file, or would lead out of the folder.
    """
    parts = urlsplit(url)
    path = PurePosixPath(unquote(parts.path))
    names_file = parts.hostname and path.name and not parts.query and not parts.path.endswith("/")
    if parts.scheme not in ("http", "https") or not names_file or ".." in (parts.hostname, *path.parts):
        raise ValueError(f"not the address of a file to download: {url}")
    return Path(parts.hostname or "", *path.parts[1:])


@dataclass
class Downloader:
    """Finds or downloads files, and verifies each by size and checksum; raises DataError if the mirror is no folder.

    Attributes:
        mirror: a folder whose files are used in place of the network; None: no mirror.
        cache: the folder for downloads, which processes may share; a file gets its name there once it is verified.
        progress: called during downloads.
    """

    mirror: Path | None = None
    cache: Path = field(default_factory=default_cache)
    progress: ProgressFunction | None = None
    _fetched: dict[RemoteFile, CorpusFile] = field(default_factory=dict, init=False, repr=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mirror is not None and not self.mirror.is_dir():
            raise DataError(f"{self.mirror}: the mirror is not a folder; correct --mirror (or NMTKIT_MIRROR)")

    def find(self, file: RemoteFile) -> CorpusFile | None:
        """Return a file of the mirror or the cache, verified (once); None if neither has it.

        Raises:
            DataError: it differs from the expected size or checksum.
        """
        if file not in self._fetched and (existing := self._existing(file)) is not None:
            path, remedy = existing
            found, difference = _compare(path, self._expected(file))
            if difference:
                raise DataError(f"{path}: {difference}{self._recorded_hint(file)}; {remedy}")
            with contextlib.suppress(OSError):  # a mirror serves without a writable cache
                self._record(file, found)
            self._fetched[file] = found
        return self._fetched.get(file)

    def fetch(self, file: RemoteFile) -> CorpusFile:
        """Return a file of the mirror or the cache, verified (once), after downloading it if neither has it.

        Raises:
            DataError: it cannot be downloaded or stored, or differs from the expected size or checksum.
        """
        if (found := self.find(file)) is None:
            found = self._fetched[file] = self._download(file)
        return found

    def fetch_all(self, files: Iterable[RemoteFile]) -> list[CorpusFile]:
        """Return several files as `fetch` does, downloaded concurrently once there is room for all that is missing.

        After an error, the bytes of the other downloads so far are kept.
        """
        wanted = list(dict.fromkeys(files))
        missing = [file for file in wanted if file not in self._fetched and self._existing(file) is None]
        if missing:
            num_bytes = 0
            for file in missing:
                part = PartialFile.path_of(self._cache_path(file))
                num_bytes += max((file.num_bytes or 0) - (part.stat().st_size if part.is_file() else 0), 0)
            _check_room(self._cache_path(missing[0]), num_bytes)
        waiting: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
        results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for file in wanted:
            waiting.put(file)
        mine = copy.copy(self)  # its event is that of the threads of this call, which may outlive it
        stopped = mine._stopped = threading.Event()

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not stopped.is_set():
                    file = waiting.get_nowait()
                    try:
                        mine.fetch(file)
                        results.put(None)
                    except BaseException as error:
                        results.put(error)

        # Daemons, unlike an executor's threads: an interrupted program does not wait for a server.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(MAX_CONCURRENT, len(wanted)))]
        for thread in threads:
            thread.start()
        try:
            for _ in wanted:
                if (error := results.get()) is not None:
                    raise error
        finally:
            stopped.set()
            for thread in threads:
                thread.join(timeout=1)  # one that waits for its server ends when that answers, see `_transfer`
        return [self._fetched[file] for file in wanted]

    def _cache_path(self, file: RemoteFile) -> Path:
        return self.cache / mirror_path(file.url)

    def _existing(self, file: RemoteFile) -> tuple[Path, str] | None:
        """Return the path of a file in the mirror or the cache, and the remedy if it is wrong; None: not there."""
        for url in file.urls if self.mirror is not None else ():
            path = (self.mirror or Path()) / mirror_path(url)
            if path.is_file():
                return path, "put the right file there, or remove it from the mirror to download it"
        path = self._cache_path(file)
        return (path, "delete it to download it again") if path.is_file() else None

    def _download(self, file: RemoteFile) -> CorpusFile:
        path = self._cache_path(file)
        if path.parts[0] == "~":  # which `expanded` could not replace
            raise DataError("this user has no home folder: name a folder for downloads in the variable NMTKIT_CACHE")
        failures = []
        try:
            with contextlib.closing(PartialFile(path)) as part:
                if found := self.find(file):  # stored by the process that held the lock
                    return found
                expected = self._expected(file)
                for url in file.urls:
                    try:
                        found = self._download_from(url, expected, part)
                    except AttemptError as failure:
                        failures.append(f"{url}: {failure}")
                        continue
                    self._record(file, found)
                    # After the record, as a kill between the two must not leave a file without one in the cache.
                    part.finish(path)
                    sync(path.parent)
                    return replace(found, path=path)
                # Nothing could tell later whether these bytes and the next ones are of the same edition.
                if not expected.is_checked and not part.validator:
                    part.discard()
        except OSError as error:
            raise DataError(
                f"{path}: cannot be written ({error.strerror or error}); make room or correct the permissions, "
                "or name another folder in the environment variable NMTKIT_CACHE"
            ) from None
        raise DataError(
            f"{'; '.join(failures)}; without the network give --mirror DIR with the file at "
            f"DIR/{mirror_path(file.url)}, or put it at {path} by hand"
        )

    def _download_from(self, url: str, expected: RemoteFile, part: "PartialFile") -> CorpusFile:
        """Complete a partial file from one address and verify it."""
        is_continued = part.size > 0
        while True:
            self._transfer(url, expected, part)
            found, difference = _compare(part.path, expected)
            if not difference:
                return found
            part.discard()
            if not is_continued:
                raise AttemptError(f"the download {difference}{self._recorded_hint(expected)}")
            is_continued = False  # the earlier bytes may have been wrong: once more from the beginning

    def _transfer(self, url: str, expected: RemoteFile, part: "PartialFile") -> None:
        """Transfer all missing bytes, with new attempts after temporary failures."""

        def report(done: int, total: int | None) -> None:
            if self._stopped.is_set():
                raise _StoppedError
            if self.progress is not None:
                self.progress(url, done, total)

        attempts = 0
        while True:
            before = part.size
            try:
                transfer(url, expected, part, report)
                return
            except TemporaryError as failure:
                attempts = 1 if part.size > before else attempts + 1
                if attempts == MAX_ATTEMPTS:
                    raise AttemptError(f"{failure} ({attempts} attempts)") from None
                seconds = failure.wait_seconds
                if seconds is None:
                    seconds = BACKOFF_SECONDS * 2 ** (attempts - 1)
                log.info("%s: %s; trying again", url, failure)
                if self._stopped.wait(min(seconds, MAX_WAIT_SECONDS)):
                    raise _StoppedError from None

    def _record_path(self, file: RemoteFile) -> Path:
        """Return the path of a file's recorded checksum, which is beside the file in the mirror, or in the cache."""
        existing = self._existing(file)
        paths = [existing[0]] if existing is not None else []
        records = [path.with_name(f"{path.name}.sha256") for path in (*paths, self._cache_path(file))]
        return next((record for record in records if record.is_file()), records[-1])

    def _expected(self, file: RemoteFile) -> RemoteFile:
        """Return a file with the checksum of its first download where none is published."""
        if file.is_checked:
            return file
        try:
            fields = self._record_path(file).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            return file
        return replace(file, sha256=fields[0]) if fields else file

    def _recorded_hint(self, file: RemoteFile) -> str:
        path = self._record_path(file)
        if not path.is_file():
            return ""
        return f" (as at the first download; if the publisher has renewed it, delete {path} to take the new one)"

    def _record(self, file: RemoteFile, found: CorpusFile) -> None:
        """Store the checksum of a file for which none is published, in the format of sha256sum."""
        path = self._record_path(file)
        if not file.is_checked and not path.is_file():
            write_text(path, f"{found.sha256}  {mirror_path(file.url).name}\n")


def _compare(path: Path, expected: RemoteFile) -> tuple[CorpusFile, str | None]:
    """Return the properties of a file and, in words, the first difference from the expected ones."""
    found = CorpusFile(path, expected.url, path.stat().st_size, sha256_of(path))
    if expected.num_bytes not in (None, found.num_bytes):
        return found, f"has {found.num_bytes:,} bytes, expected {expected.num_bytes:,}"
    if expected.sha256 not in (None, found.sha256):
        return found, f"has sha256 {found.sha256}, expected {expected.sha256}"
    if expected.md5 is not None:
        with path.open("rb") as stream:
            # Systems in FIPS mode refuse MD5 otherwise; sacreBLEU publishes no better checksum of its sets.
            md5 = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != expected.md5:
            return found, f"has md5 {md5}, expected {expected.md5}"
    return found, None


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
        self._file = open_locked(self.path, self._when_held, "run only one download at a time")
        self.url: str | None = None
        self.validator: str | None = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads(self._state_path.read_bytes())
            self.url, self.validator = str(state["url"]), state["validator"]

    def _when_held(self, _: BinaryIO) -> None:
        log.info("%s: waiting for another process that is downloading it", self.path.name)

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
    _check_room(part.path, (num_bytes or 0) - start)
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
        _check_room(part.path, (total or 0) - begin)
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
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        reason = _one_line(f"HTTP {error.code} {error.reason}")
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
            raise AttemptError(f"{_one_line(error.reason)}{advice}") from None
        kind = AttemptError if isinstance(error.reason, socket.gaierror) else TemporaryError
        raise kind(_one_line(error.reason)) from None
    except ValueError as error:  # an address that urllib cannot read, of a proxy or a redirection
        raise AttemptError(_one_line(error)) from None
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(_one_line(error)) from None


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        # Returns what has arrived, which is stored at once; read() would wait for the whole chunk.
        return response.read1(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise TemporaryError(f"the connection broke ({_one_line(error)})") from None


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


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split()) or type(reason).__name__


def _check_room(path: Path, num_bytes: int) -> None:
    """Raise DataError unless that many bytes are free on the disk of ``path``."""
    free = free_bytes(path.parent)
    if num_bytes > free:
        raise DataError(
            f"{path.parent}: needs {num_bytes:,} bytes, but only {free:,} are free there; make room, or name a folder "
            "on another disk in the environment variable NMTKIT_CACHE"
        )
