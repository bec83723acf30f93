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
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from nmtkit.console import log
from nmtkit.corpora.http_transfer import AttemptError, PartialFile, RemoteFile, TemporaryError, check_room, transfer
from nmtkit.errors import DataError
from nmtkit.files import expanded, sha256_of, sync, write_text

MAX_CONCURRENT = 4
"""Downloads at the same time."""
MAX_ATTEMPTS = 6
"""Attempts at one address without a new byte."""
BACKOFF_SECONDS = 1.0
"""Wait before the second attempt; doubled each time."""
MAX_WAIT_SECONDS = 60.0

ProgressFunction = Callable[[str, int, int | None], None]
"""progress(url, bytes done, bytes in total or None if the server does not state it), called from any thread."""


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
            check_room(self._cache_path(missing[0]), num_bytes)
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
        broken = None
        for url in file.urls if self.mirror is not None else ():
            path = (self.mirror or Path()) / mirror_path(url)
            if path.is_file():
                return path, "put the right file there, or remove it from the mirror to download it"
            if os.path.lexists(path):  # a folder, or a link to a file that is gone
                broken = path
        path = self._cache_path(file)
        if path.is_file():
            return path, "delete it to download it again"
        if broken is not None:
            raise DataError(f"{broken}: no regular file; put the right file there, or remove it to download it")
        return None

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

    def _download_from(self, url: str, expected: RemoteFile, part: PartialFile) -> CorpusFile:
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

    def _transfer(self, url: str, expected: RemoteFile, part: PartialFile) -> None:
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
        return (
            " (as when it was first read; if that copy was damaged, or the publisher has renewed it, "
            f"delete {path} to take this one)"
        )

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
