"""Fetching the files of public corpora: from a mirror folder, the cache or the network, and always verified.

The first step of ``nmtkit prepare``. A file is looked for in the mirror, then in the cache, and only then downloaded
into the cache (``transfer.py``). Both folders are laid out as ``<host>/<path of the URL>``, so one can serve as the
other. A checksum that nobody has published is recorded in the cache (``.sha256``) the first time and holds from then
on.
"""

import contextlib
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from nmtkit.console import log
from nmtkit.corpora.transfer import AttemptError, PartialFile, TemporaryError, check_room, transfer
from nmtkit.errors import DataError
from nmtkit.files import open_plain, sync_folder, write_atomically

CHUNK_BYTES = 1 << 20
MAX_AT_ONCE = 4
"""Downloads at the same time."""
MAX_ATTEMPTS = 6
"""Attempts at one address that bring no new byte."""
BACKOFF_SECONDS = 1.0
"""Before the second attempt; doubled each time."""
MAX_WAIT_SECONDS = 60.0

Progress = Callable[[str, int, int | None], None]
"""Called with the URL, the bytes done and the bytes in total (None where the server does not say), from any thread."""


class _StoppedError(Exception):
    """Another download has failed, so this one is given up; what it has got so far is kept."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and how to know that it is the right one.

    Attributes:
        url: where it is published (http or https).
        alternatives: other addresses of the same bytes, tried in turn.
        num_bytes, sha256, md5: what the file must have, in lower-case hexadecimal; None where nobody has published it.
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


@dataclass(frozen=True)
class CorpusFile:
    """A whole and verified file on disk.

    Attributes:
        path: where it lies.
        url: where it is published; None for a file of the user.
        num_bytes: its size.
        sha256: its checksum, computed from its bytes, in hexadecimal.
    """

    path: Path
    url: str | None
    num_bytes: int
    sha256: str


def default_cache() -> Path:
    """The environment variable NMTKIT_CACHE, else ``~/.cache/nmtkit``."""
    return Path(os.environ.get("NMTKIT_CACHE") or "~/.cache/nmtkit").expanduser()


def mirror_path(url: str) -> Path:
    """Where a mirror or cache keeps the file of a URL: ``<host>/<path>``, without port, query or percent signs.

    Raises:
        ValueError: the URL is not http or https, names no file, or would lead out of the folder.
    """
    parts = urlsplit(url)
    path = PurePosixPath(unquote(parts.path))
    named = parts.hostname and path.name and not parts.query and not parts.path.endswith("/")
    if parts.scheme not in ("http", "https") or not named or ".." in (parts.hostname, *path.parts):
        raise ValueError(f"not the address of a file to download: {url}")
    return Path(parts.hostname or "", *path.parts[1:])


@dataclass
class Downloader:
    """Finds or downloads files, and verifies each by size and checksum.

    Attributes:
        mirror: a folder of files that are used where they lie instead of the network; None for no mirror.
        cache: the folder for downloads, which processes may share; a file that exists there was verified before it
            got its name.
        progress: told about every download as it goes on; not called for files of the mirror or the cache.

    Raises:
        DataError: the mirror is not a folder.
    """

    mirror: Path | None = None
    cache: Path = field(default_factory=default_cache)
    progress: Progress | None = None
    _fetched: dict[RemoteFile, CorpusFile] = field(default_factory=dict, init=False, repr=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.mirror is not None and not self.mirror.is_dir():
            raise DataError(f"{self.mirror}: the mirror is not a folder; correct --mirror (or NMTKIT_MIRROR)")

    def fetch(self, file: RemoteFile) -> CorpusFile:
        """The file on disk, verified (once), downloaded if need be.

        Raises:
            DataError: it cannot be downloaded or stored, or differs from what is expected in size or checksum.
        """
        if self.find(file) is None:
            self._fetched[file] = self._download(file)
        return self._fetched[file]

    def find(self, file: RemoteFile) -> CorpusFile | None:
        """The file if it is in the mirror or the cache, verified (once).

        Raises:
            DataError: it is there, but differs from what is expected.
        """
        if file not in self._fetched and (found := self._find(file)) is not None:
            self._fetched[file] = found
        return self._fetched.get(file)

    def fetch_all(self, files: Iterable[RemoteFile]) -> list[CorpusFile]:
        """Several files, some of them at the same time; room for all that is missing is made sure of first.

        Raises:
            DataError: see fetch; what the other downloads have got so far is kept.
        """
        wanted = list(dict.fromkeys(files))
        missing = [file for file in wanted if file not in self._fetched and self._place(file) is None]
        if missing:
            known = sum(max((file.num_bytes or 0) - self._partial_bytes(file), 0) for file in missing)
            check_room(self._cache_path(missing[0]), known)
        waiting: queue.SimpleQueue[RemoteFile] = queue.SimpleQueue()
        results: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        for file in wanted:
            waiting.put(file)
        self._stopped.clear()

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not self._stopped.is_set():
                    file = waiting.get_nowait()
                    try:
                        self.fetch(file)
                        results.put(None)
                    except BaseException as error:
                        results.put(error)

        # Daemons: a program that is told to end does not wait for a server.
        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(MAX_AT_ONCE, len(wanted)))]
        for thread in threads:
            thread.start()
        try:
            for _ in wanted:
                if (error := results.get()) is not None:
                    raise error
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(timeout=1)
            self._stopped.clear()
        return [self._fetched[file] for file in wanted]

    def _cache_path(self, file: RemoteFile) -> Path:
        return self.cache / mirror_path(file.url)

    def _partial_bytes(self, file: RemoteFile) -> int:
        path = PartialFile.path_of(self._cache_path(file))
        return path.stat().st_size if path.is_file() else 0

    def _place(self, file: RemoteFile) -> tuple[Path, str] | None:
        """Where the file lies, and what to do if it is wrong."""
        for url in file.urls if self.mirror is not None else ():
            path = (self.mirror or Path()) / mirror_path(url)
            if path.is_file():
                return path, "put the right file there, or remove it from the mirror to download it"
        path = self._cache_path(file)
        return (path, "delete it to download it again") if path.is_file() else None

    def _find(self, file: RemoteFile) -> CorpusFile | None:
        """The file if it is there, verified."""
        if (place := self._place(file)) is None:
            return None
        path, remedy = place
        found, difference = _compare(path, self._expected(file))
        if difference:
            raise DataError(f"{path}: {difference}{self._recorded_hint(file)}; {remedy}")
        with contextlib.suppress(OSError):  # a mirror serves without a cache that can be written
            self._record(file, found)
        return found

    def _download(self, file: RemoteFile) -> CorpusFile:
        path = self._cache_path(file)
        try:
            with PartialFile(path) as part:
                if found := self._find(file):  # by the process that held the lock
                    return found
                return self._get(file, part, path)
        except OSError as error:
            raise DataError(
                f"{path}: cannot be written ({error.strerror or error}); make room or correct the permissions, "
                "or name another folder in the environment variable NMTKIT_CACHE"
            ) from None

    def _get(self, file: RemoteFile, part: PartialFile, path: Path) -> CorpusFile:
        expected = self._expected(file)
        failures = []
        for url in file.urls:
            try:
                found = self._try_address(url, expected, part)
            except AttemptError as failure:
                failures.append(f"{url}: {failure}")
                continue
            self._record(file, found)
            part.finish(path)
            sync_folder(path.parent)
            return replace(found, path=path)
        if not _is_checked(expected) and not part.validator:
            part.discard()
        raise DataError(
            f"{'; '.join(failures)}; without the network give --mirror DIR with the file at "
            f"DIR/{mirror_path(file.url)}, or put it at {path} by hand"
        )

    def _try_address(self, url: str, expected: RemoteFile, part: PartialFile) -> CorpusFile:
        """All of the file from one address (and what there was of it), verified; again after passing failures."""
        begun_with = part.size
        while True:
            self._transfer(url, expected, part)
            found, difference = _compare(part.path, expected)
            if not difference:
                return replace(found, url=expected.url)
            part.discard()
            if not begun_with:
                raise AttemptError(f"the download {difference}{self._recorded_hint(expected)}")
            begun_with = 0  # perhaps what there was before was wrong

    def _transfer(self, url: str, expected: RemoteFile, part: PartialFile) -> None:
        def report(done: int, total: int | None) -> None:
            if self._stopped.is_set():
                raise _StoppedError
            if self.progress is not None:
                self.progress(url, done, total)

        attempts = 0
        while True:
            before = part.size
            try:
                transfer(url, part, expected.num_bytes, _is_checked(expected), report)
                return
            except TemporaryError as failure:
                attempts = 1 if part.size > before else attempts + 1
                if attempts == MAX_ATTEMPTS:
                    raise AttemptError(f"{failure} ({attempts} attempts)") from None
                asked = failure.wait_seconds
                seconds = BACKOFF_SECONDS * 2 ** (attempts - 1) if asked is None else asked
                log.info("%s: %s; trying again", url, failure)
                if self._stopped.wait(min(seconds, MAX_WAIT_SECONDS)):
                    raise _StoppedError from None

    def _record_path(self, file: RemoteFile) -> Path:
        path = self._cache_path(file)
        return path.with_name(f"{path.name}.sha256")

    def _expected(self, file: RemoteFile) -> RemoteFile:
        """The file with the checksum of its first download where none is published."""
        if _is_checked(file):
            return file
        try:
            words = self._record_path(file).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError):
            return file
        return replace(file, sha256=words[0]) if words else file

    def _recorded_hint(self, file: RemoteFile) -> str:
        path = self._record_path(file)
        if not path.is_file():
            return ""
        return f" (as at the first download; if the publisher has renewed it, delete {path} to take the new one)"

    def _record(self, file: RemoteFile, found: CorpusFile) -> None:
        """Notes the checksum of a file for which none is published, in the form of sha256sum."""
        path = self._record_path(file)
        if _is_checked(file) or path.is_file():
            return
        with write_atomically(path) as record:
            record.write(f"{found.sha256}  {mirror_path(file.url).name}\n")


def _is_checked(file: RemoteFile) -> bool:
    return file.sha256 is not None or file.md5 is not None


def _compare(path: Path, expected: RemoteFile) -> tuple[CorpusFile, str | None]:
    """What a file is, and in words what is not as expected of it."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    num_bytes = 0
    with open_plain(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            num_bytes += len(chunk)
            sha256.update(chunk)
            if expected.md5 is not None:
                md5.update(chunk)
    difference = None
    if expected.num_bytes not in (None, num_bytes):
        difference = f"has {num_bytes:,} bytes, expected {expected.num_bytes:,}"
    elif expected.sha256 not in (None, sha256.hexdigest()):
        difference = f"has sha256 {sha256.hexdigest()}, expected {expected.sha256}"
    elif expected.md5 not in (None, md5.hexdigest()):
        difference = f"has md5 {md5.hexdigest()}, expected {expected.md5}"
    return CorpusFile(path, expected.url, num_bytes, sha256.hexdigest()), difference
