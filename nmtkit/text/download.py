"""Fetching the files of public corpora: from a mirror folder, the cache or the network, and always verified.

The first step of ``nmtkit prepare``. A file is looked for in the mirror, then in the cache, and only then downloaded
into the cache. Both folders are laid out as ``<host>/<path of the URL>``, so one can serve as the other.
"""

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from nmtkit.errors import DataError
from nmtkit.files import open_plain, write_bytes_atomically

CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = 60.0

Progress = Callable[[str, int, int | None], None]
"""Called with the URL, the bytes done and the bytes in total (None where the server does not say)."""


class _AttemptError(Exception):
    """Why one URL did not give the file; the next one is tried."""


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


@dataclass(frozen=True)
class Downloader:
    """Finds or downloads files, and verifies each by size and checksum every time.

    Attributes:
        mirror: a folder of files that are used where they lie instead of the network; None for no mirror.
        cache: the folder for downloads; a file that exists there was verified before it got its name.
        progress: told about every download as it goes on; not called for files of the mirror or the cache.

    Raises:
        DataError: the mirror is not a folder.
    """

    mirror: Path | None = None
    cache: Path = field(default_factory=default_cache)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.mirror is not None and not self.mirror.is_dir():
            raise DataError(f"{self.mirror}: the mirror is not a folder; correct --mirror (or NMTKIT_MIRROR)")

    def fetch(self, file: RemoteFile) -> CorpusFile:
        """The file on disk, verified, downloaded if need be.

        Raises:
            DataError: it cannot be downloaded or stored, or differs from what is expected in size or checksum.
        """
        if self.mirror is not None:
            for url in file.urls:
                path = self.mirror / mirror_path(url)
                if path.is_file():
                    return _verify(path, file, "put the right file there, or remove it from the mirror to download it")
        path = self.cache / mirror_path(file.url)
        if path.is_file():
            return _verify(path, file, "delete it to download it again")
        return self._download(file, path)

    def _download(self, file: RemoteFile, path: Path) -> CorpusFile:
        failures = []
        for url in file.urls:
            try:
                return self._download_from(url, file, path)
            except _AttemptError as failure:
                failures.append(f"{url}: {failure}")
            except OSError as error:
                raise DataError(
                    f"{path}: cannot be written ({error.strerror or error}); make room or correct the permissions, "
                    "or name another folder in the environment variable NMTKIT_CACHE"
                ) from None
        raise DataError(
            f"{'; '.join(failures)}; without the network give --mirror DIR with the file at "
            f"DIR/{mirror_path(file.url)}, or put it at {path} by hand"
        )

    def _download_from(self, url: str, file: RemoteFile, path: Path) -> CorpusFile:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_space(path, file.num_bytes)
        with _request(url) as response:
            num_bytes: int | None = response.length
            if response.headers.get_content_type() == "text/html":
                raise _AttemptError("the server sent a web page instead of the file")
            if num_bytes is not None and file.num_bytes not in (None, num_bytes):
                raise _AttemptError(f"the server offers {num_bytes:,} bytes, expected {file.num_bytes:,}")
            _check_space(path, num_bytes)
            with write_bytes_atomically(path) as output:
                check = _Check(file)
                for chunk in _chunks(response):
                    output.write(chunk)
                    check.update(chunk)
                    if self.progress is not None:
                        self.progress(url, check.num_bytes, num_bytes)
                if num_bytes is not None and check.num_bytes < num_bytes:
                    raise _AttemptError(f"the connection ended after {check.num_bytes:,} of {num_bytes:,} bytes")
                if difference := check.difference():
                    raise _AttemptError(f"the download {difference}")
        return check.result(path)


class _Check:
    """Measures the bytes of a file as they pass, and compares them with what is expected."""

    def __init__(self, expected: RemoteFile) -> None:
        self.num_bytes = 0
        self._expected = expected
        self._sha256 = hashlib.sha256()
        self._md5 = hashlib.md5(usedforsecurity=False) if expected.md5 is not None else None

    def update(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self._sha256.update(chunk)
        if self._md5 is not None:
            self._md5.update(chunk)

    def difference(self) -> str | None:
        """In words, what is not as expected; None if all is."""
        expected = self._expected
        if expected.num_bytes not in (None, self.num_bytes):
            return f"has {self.num_bytes:,} bytes, expected {expected.num_bytes:,}"
        if expected.sha256 not in (None, self._sha256.hexdigest()):
            return f"has sha256 {self._sha256.hexdigest()}, expected {expected.sha256}"
        if self._md5 is not None and expected.md5 != self._md5.hexdigest():
            return f"has md5 {self._md5.hexdigest()}, expected {expected.md5}"
        return None

    def result(self, path: Path) -> CorpusFile:
        return CorpusFile(path, self._expected.url, self.num_bytes, self._sha256.hexdigest())


def _verify(path: Path, file: RemoteFile, remedy: str) -> CorpusFile:
    check = _Check(file)
    with open_plain(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            check.update(chunk)
    if difference := check.difference():
        raise DataError(f"{path}: {difference}; {remedy}")
    return check.result(path)


def _request(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "nmtkit"})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise _AttemptError(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _AttemptError(_one_line(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _AttemptError(_one_line(error)) from None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _AttemptError(f"the connection broke ({_one_line(error)})") from None
        if not chunk:
            return
        yield chunk


def _one_line(reason: object) -> str:
    return " ".join(str(reason).split()) or type(reason).__name__


def _check_space(path: Path, num_bytes: int | None) -> None:
    free = shutil.disk_usage(path.parent).free
    if num_bytes is not None and num_bytes > free:
        raise DataError(
            f"{path}: needs {num_bytes:,} bytes, but only {free:,} are free there; make room, or name a folder on "
            "another disk in the environment variable NMTKIT_CACHE"
        )
