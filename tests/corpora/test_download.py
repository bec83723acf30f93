"""Fetching: mirror, cache and network give the same verified file, or one clear line and nothing half-written."""

import errno
import fcntl
import gzip
import hashlib
import http.server
import io
import shutil
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import urllib.response
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from nmtkit.corpora import download, http_transfer
from nmtkit.corpora.download import Downloader, default_cache, mirror_path
from nmtkit.corpora.http_transfer import PartialFile, RemoteFile
from nmtkit.errors import DataError
from tests.conftest import message_of

CONTENT = b"Ein Satz.\n" * 1000


@dataclass
class Answer:
    """What the server says of a path, and its faults.

    Attributes:
        knows_range: whether it answers a Range with a part.
        ignores_condition: whether it does so for a part of another edition, too.
        hides_size: whether it does not say of a part how long the whole is.
        cut_at: of each answer only so many bytes are sent, though all are announced.
        failures: statuses of the first answers, before the file is given; ``retry_after`` goes with them.
        shift: how much of what was asked for is left out at the beginning of a part, as no server should.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = "application/octet-stream"
    content_length: int | None = None
    redirect: str | None = None
    knows_range: bool = True
    ignores_condition: bool = False
    hides_size: bool = False
    etag: str | None = None
    cut_at: int | None = None
    failures: list[int] = field(default_factory=list)
    retry_after: str | None = None
    shift: int = 0


@dataclass
class Server:
    """A web server on this machine; ``answers`` by path, and what was asked of it and given."""

    url: str
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    user_agents: list[str | None] = field(default_factory=list)
    num_bytes: int = 0

    def file(self, path: str = "/data/text.txt", body: bytes = CONTENT) -> RemoteFile:
        """Offers a file and describes it."""
        self.answers[path] = Answer(body)
        return RemoteFile(self.url + path, num_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())


def respond(handler: http.server.BaseHTTPRequestHandler, answer: Answer) -> bytes:
    """Sends the head of an answer, and returns its body."""
    if answer.failures:
        handler.send_response(answer.failures.pop(0))
        if answer.retry_after is not None:
            handler.send_header("Retry-After", answer.retry_after)
        handler.end_headers()
        return b""
    wanted, condition = handler.headers.get("Range"), handler.headers.get("If-Range")
    status, body, extent = answer.status, answer.body, None
    if wanted and answer.knows_range and (condition in (None, answer.etag) or answer.ignores_condition):
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) + answer.shift
        if start >= len(body):
            status, body = 416, b""
        else:
            total = "*" if answer.hides_size else len(body)
            status, extent, body = 206, f"bytes {start}-{len(body) - 1}/{total}", body[start:]
    handler.send_response(status)
    headers = {"Location": answer.redirect, "ETag": answer.etag, "Content-Range": extent}
    for name, value in headers.items():
        if value is not None:
            handler.send_header(name, value)
    handler.send_header("Content-Type", answer.content_type)
    if answer.content_length != 0:
        handler.send_header("Content-Length", str(answer.content_length or len(body)))
    handler.end_headers()
    return body[: answer.cut_at]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "BACKOFF_SECONDS", 0.0)

    noting = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with noting:  # several at once would be mixed up
                state.requests.append(self.path)
                state.ranges.append(self.headers.get("Range"))
                state.user_agents.append(self.headers.get("User-Agent"))
            body = respond(self, state.answers.get(self.path, Answer(b"not here", status=404)))
            state.num_bytes += len(body)
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        state = Server(f"http://127.0.0.1:{httpd.server_port}")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        httpd.shutdown()
        thread.join()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def store(folder: Path, file: RemoteFile, body: bytes) -> Path:
    path = folder / mirror_path(file.url)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return path


PUBLISHED = RemoteFile(
    "https://example.org/corpora/a.txt", num_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
)


def test_a_download_lands_in_the_cache_under_host_and_path(server: Server, tmp_path: Path) -> None:
    fetched = Downloader(cache=tmp_path).fetch(server.file("/a/b/text.txt"))
    assert fetched.path == tmp_path / "127.0.0.1" / "a" / "b" / "text.txt"
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.num_bytes, fetched.sha256) == (len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert fetched.url == f"{server.url}/a/b/text.txt"
    assert files_below(tmp_path) == [fetched.path]
    assert server.user_agents == ["nmtkit"]


def test_the_cache_is_named_by_the_environment_or_lies_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NMTKIT_CACHE", raising=False)
    assert Downloader().cache == default_cache() == tmp_path / ".cache" / "nmtkit"
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "elsewhere"))
    assert Downloader().cache == tmp_path / "elsewhere"


def test_without_a_home_folder_a_download_needs_a_named_cache(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    monkeypatch.delenv("NMTKIT_CACHE", raising=False)
    with pytest.raises(DataError, match="NMTKIT_CACHE"):
        Downloader().fetch(server.file("/text.txt"))
    assert not Path("~").exists()


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    file = server.file("/new.txt")
    server.answers["/old.txt"] = Answer(status=302, redirect="/new.txt")
    fetched = Downloader(cache=tmp_path).fetch(replace(file, url=f"{server.url}/old.txt"))
    assert fetched.path.name == "old.txt"
    assert fetched.path.read_bytes() == CONTENT


def test_a_file_system_without_locks_is_a_warning(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert Downloader(cache=tmp_path).fetch(server.file("/a.txt")).path.read_bytes() == CONTENT
    assert "cannot be locked (Operation not supported); run only one download at a time" in logged.text


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_an_unknown_certificate_names_its_remedies(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("unable to get local issuer certificate"))

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(server.file("/a.txt")))
    assert "SSL_CERT_FILE" in message
    assert ("Install Certificates.command" in message) == (platform == "darwin")


def test_a_compressed_file_arrives_as_it_is(server: Server, tmp_path: Path) -> None:
    body = gzip.compress(CONTENT, mtime=0)
    assert Downloader(cache=tmp_path).fetch(server.file("/a.gz", body)).path.read_bytes() == body


def test_progress_is_reported_until_the_last_byte(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 4000)
    reports: list[tuple[str, int, int | None]] = []
    file = server.file()
    downloader = Downloader(cache=tmp_path, progress=lambda url, done, total: reports.append((url, done, total)))
    downloader.fetch(file)
    assert [report[1] for report in reports] == sorted({report[1] for report in reports})
    assert reports[-1] == (file.url, 10000, 10000)
    told = len(reports)
    assert told >= 3
    downloader.fetch(file)
    assert len(reports) == told
    assert capsys.readouterr() == ("", "")


def test_a_file_of_unknown_size_and_checksum_is_taken_as_it_comes(server: Server, tmp_path: Path) -> None:
    server.answers["/unknown"] = Answer(CONTENT, content_length=0)
    totals: list[int | None] = []
    downloader = Downloader(cache=tmp_path, progress=lambda url, done, total: totals.append(total))
    fetched = downloader.fetch(RemoteFile(f"{server.url}/unknown"))
    assert fetched.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert set(totals) == {None}


@pytest.mark.usefixtures("no_network")
def test_the_mirror_is_used_in_place_of_the_network_and_before_the_cache(tmp_path: Path) -> None:
    mirror, cache = tmp_path / "mirror", tmp_path / "cache"
    path = store(mirror, PUBLISHED, CONTENT)
    store(cache, PUBLISHED, b"another text")
    assert Downloader(mirror=mirror, cache=cache).fetch(PUBLISHED).path == path
    shutil.rmtree(cache)
    assert Downloader(mirror=mirror, cache=cache).fetch(PUBLISHED).path == path
    assert not cache.exists()


@pytest.mark.usefixtures("no_network")
def test_the_mirror_may_hold_a_file_under_its_alternative_address(tmp_path: Path) -> None:
    file = replace(PUBLISHED, alternatives=("https://copy.example.org/b.txt",))
    path = tmp_path / "copy.example.org" / "b.txt"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert Downloader(mirror=tmp_path, cache=tmp_path / "cache").fetch(file).path == path


def test_what_the_mirror_lacks_is_downloaded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    fetched = Downloader(mirror=tmp_path / "mirror", cache=tmp_path / "cache").fetch(server.file())
    assert fetched.path.is_relative_to(tmp_path / "cache")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", ["folder", "dangling link", "looping link"])
def test_what_is_no_file_of_the_mirror_is_named_and_not_downloaded(tmp_path: Path, kind: str) -> None:
    path = store(tmp_path / "mirror", PUBLISHED, CONTENT)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "looping link" else tmp_path / "gone")
    downloader = Downloader(mirror=tmp_path / "mirror", cache=tmp_path / "cache")
    assert message_of(lambda: downloader.fetch(PUBLISHED)).startswith(f"{path}: no regular file; put the right file")
    other = replace(PUBLISHED, alternatives=("https://copy.example.org/b.txt",))
    copy = tmp_path / "mirror" / "copy.example.org" / "b.txt"
    copy.parent.mkdir()
    copy.write_bytes(CONTENT)
    assert downloader.fetch(other).path == copy
    cached = store(tmp_path / "cache", PUBLISHED, CONTENT)
    assert downloader.fetch(PUBLISHED).path == cached


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", ["mirror", "cache"])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (CONTENT[:-1], "has 9,999 bytes, expected 10,000"),
        (CONTENT.swapcase(), f"has sha256 {hashlib.sha256(CONTENT.swapcase()).hexdigest()}, expected "),
    ],
)
def test_files_of_the_mirror_and_the_cache_are_verified(tmp_path: Path, kind: str, body: bytes, expected: str) -> None:
    path = store(tmp_path, PUBLISHED, body)
    downloader = Downloader(
        mirror=tmp_path if kind == "mirror" else None, cache=tmp_path if kind == "cache" else tmp_path / "other"
    )
    message = message_of(lambda: downloader.fetch(PUBLISHED))
    assert message.startswith(f"{path}: {expected}")
    assert ("remove it from the mirror" if kind == "mirror" else "delete it to download it again") in message
    assert path.read_bytes() == body


@pytest.mark.usefixtures("no_network")
def test_md5_is_verified_where_that_is_what_is_published(tmp_path: Path) -> None:
    right, wrong = hashlib.md5(CONTENT).hexdigest(), hashlib.md5(b"").hexdigest()
    file = RemoteFile(PUBLISHED.url, md5=right)
    store(tmp_path, file, CONTENT)
    downloader = Downloader(cache=tmp_path)
    assert downloader.fetch(file).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert f"has md5 {right}, expected {wrong}" in message_of(lambda: downloader.fetch(replace(file, md5=wrong)))


def test_a_missing_mirror_folder_is_an_error(tmp_path: Path) -> None:
    assert "mirror" in message_of(lambda: Downloader(mirror=tmp_path / "nowhere", cache=tmp_path))
    (tmp_path / "file").touch()
    assert "mirror" in message_of(lambda: Downloader(mirror=tmp_path / "file", cache=tmp_path))


def test_a_wrong_checksum_leaves_nothing_in_the_cache(server: Server, tmp_path: Path) -> None:
    file = replace(server.file(), sha256="0" * 64)
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
    assert f"{file.url}: the download has sha256 {hashlib.sha256(CONTENT).hexdigest()}, expected {'0' * 64}" in message
    assert "--mirror" in message
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("content_length", [None, 0])
def test_a_wrong_size_leaves_nothing_in_the_cache(server: Server, tmp_path: Path, content_length: int | None) -> None:
    file = replace(server.file(), num_bytes=12345)
    server.answers["/data/text.txt"].content_length = content_length
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
    assert "10,000 bytes, expected 12,345" in message
    assert files_below(tmp_path) == []


def test_a_missing_page_names_the_url_the_reason_and_both_remedies(server: Server, tmp_path: Path) -> None:
    file = RemoteFile(f"{server.url}/missing/a.txt")
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
    assert message.startswith(f"{file.url}: HTTP 404 Not Found")
    assert "--mirror DIR with the file at DIR/127.0.0.1/missing/a.txt" in message
    assert f"put it at {tmp_path / '127.0.0.1' / 'missing' / 'a.txt'} by hand" in message
    assert len(server.requests) == 1
    assert files_below(tmp_path) == []


def test_a_server_that_does_not_answer_is_one_line(server: Server, tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as closed:
        port = closed.server_port
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(RemoteFile(f"http://127.0.0.1:{port}/a.txt")))
    assert "refused" in message
    assert "--mirror" in message


def test_a_server_that_stops_answering_is_given_up(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transfer, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(download, "MAX_ATTEMPTS", 1)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as silent:
        file = RemoteFile(f"http://127.0.0.1:{silent.server_port}/a.txt")
        assert "timed out" in message_of(lambda: Downloader(cache=tmp_path).fetch(file))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(CONTENT, content_length=20000), "after 10,000 of 20,000 bytes"),
        (Answer(b"<html>please log in</html>", content_type="text/html; charset=utf-8"), "web page"),
        (Answer(b"", status=200), "the server sent nothing"),
        (Answer(b"", status=204), "the server sent nothing"),
        (Answer(status=302, redirect="/a.txt"), "HTTP 302"),  # without end
    ],
)
def test_an_answer_that_is_not_the_file_leaves_nothing_in_the_cache(
    server: Server, tmp_path: Path, answer: Answer, expected: str
) -> None:
    server.answers["/a.txt"] = answer
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(RemoteFile(f"{server.url}/a.txt")))
    assert expected in message
    assert files_below(tmp_path) == []


def test_alternatives_are_tried_in_turn(server: Server, tmp_path: Path) -> None:
    good = server.file("/good.txt")
    server.answers["/damaged.txt"] = Answer(b"?" * len(CONTENT))
    alternatives = (f"{server.url}/damaged.txt", good.url)
    file = replace(good, url=f"{server.url}/missing.txt", alternatives=alternatives)
    fetched = Downloader(cache=tmp_path).fetch(file)
    assert server.requests == ["/missing.txt", "/damaged.txt", "/good.txt"]
    assert fetched.path == tmp_path / "127.0.0.1" / "missing.txt"
    assert files_below(tmp_path) == [fetched.path]


def test_when_all_addresses_fail_each_is_named_with_its_reason(server: Server, tmp_path: Path) -> None:
    server.answers["/b"] = Answer(status=503)
    file = RemoteFile(f"{server.url}/a", alternatives=(f"{server.url}/b",))
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
    assert f"{server.url}/a: HTTP 404" in message
    assert f"{server.url}/b: HTTP 503" in message


def usage_with(free: int) -> Callable[[Path], object]:
    class Usage(NamedTuple):
        free: int

    return lambda path: Usage(free)


@pytest.mark.parametrize("size_is_published", [True, False])
def test_too_little_disk_space_is_known_before_the_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_is_published: bool
) -> None:
    file = server.file()
    monkeypatch.setattr(shutil, "disk_usage", usage_with(9999))
    wanted = file if size_is_published else RemoteFile(file.url)
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(wanted))
    assert "needs 10,000 bytes, but only 9,999 are free" in message
    assert "NMTKIT_CACHE" in message
    assert len(server.requests) == (0 if size_is_published else 1)
    assert files_below(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_one_line(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = message_of(lambda: Downloader(cache=tmp_path / "file").fetch(server.file()))
    assert "cannot be written" in message
    assert "NMTKIT_CACHE" in message


def test_a_disk_that_fills_up_is_one_line_and_what_was_fetched_serves_the_next_run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 4000)
    write = PartialFile.write

    def write_until_full(part: PartialFile, chunk: bytes) -> None:
        if part.size + len(chunk) > 8000:
            raise OSError(28, "No space left on device")
        write(part, chunk)

    file = server.file()
    with monkeypatch.context() as patch:
        patch.setattr(PartialFile, "write", write_until_full)
        message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
    assert "cannot be written (No space left on device)" in message
    assert not (tmp_path / mirror_path(file.url)).exists()
    kept = PartialFile.path_of(tmp_path / mirror_path(file.url)).stat().st_size
    assert kept > 0
    assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={kept}-"]


def begun(cache: Path, file: RemoteFile, content: bytes) -> Path:
    """What a download that was killed leaves behind."""
    path = PartialFile.path_of(cache / mirror_path(file.url))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class TestResuming:
    def test_a_stopped_download_goes_on_where_it_was(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 1000)
        file = server.file()

        def stop(url: str, done: int, total: int | None) -> None:
            if done >= 4000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Downloader(cache=tmp_path, progress=stop).fetch(file)
        fetched = Downloader(cache=tmp_path).fetch(file)
        assert fetched.path.read_bytes() == CONTENT
        assert server.ranges[0] is None
        assert server.ranges[1] is not None and server.ranges[1] >= "bytes=4000-"
        assert files_below(tmp_path) == [fetched.path]

    def test_a_connection_that_is_cut_again_and_again_gives_every_byte_once(
        self, server: Server, tmp_path: Path
    ) -> None:
        file = server.file()
        server.answers["/data/text.txt"].cut_at = 900  # 12 connections, more than attempts
        fetched = Downloader(cache=tmp_path).fetch(file)
        assert fetched.path.read_bytes() == CONTENT
        assert len(server.requests) == 12
        assert server.num_bytes == len(CONTENT)

    @pytest.mark.parametrize(
        ("begin", "ranges", "answer"),
        [
            (CONTENT, [], {}),
            (CONTENT + b"more", [None], {}),
            (b"?" * 3000, ["bytes=3000-", None], {}),  # once the whole is seen to be wrong
            (CONTENT[:3000], ["bytes=3000-"], {"knows_range": False}),
            (CONTENT[:3000], ["bytes=3000-", None], {"shift": 10}),  # a part from another place than asked
        ],
    )
    def test_the_file_is_whole_whatever_its_beginning_and_the_answer_to_a_range(
        self, server: Server, tmp_path: Path, begin: bytes, ranges: list[str | None], answer: dict[str, Any]
    ) -> None:
        file = server.file()
        server.answers["/data/text.txt"] = Answer(CONTENT, **answer)
        begun(tmp_path, file, begin)
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges == ranges

    def test_a_range_beyond_the_end_begins_anew(self, server: Server, tmp_path: Path) -> None:
        file = replace(server.file(), num_bytes=None)
        begun(tmp_path, file, CONTENT * 2)
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges == ["bytes=20000-", None]

    @pytest.mark.parametrize("ignores_condition", [False, True])
    def test_without_a_checksum_only_the_same_edition_is_continued(
        self, server: Server, tmp_path: Path, ignores_condition: bool
    ) -> None:
        file = RemoteFile(f"{server.url}/moving.txt")
        server.answers["/moving.txt"] = Answer(CONTENT, etag='"one"', cut_at=4000, failures=[])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(download, "MAX_ATTEMPTS", 1)
            patch.setattr(Downloader, "_transfer", one_transfer)
            message_of(lambda: Downloader(cache=tmp_path).fetch(file))
        server.answers["/moving.txt"] = Answer(CONTENT.swapcase(), etag='"two"', ignores_condition=ignores_condition)
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT.swapcase()
        assert server.ranges == [None, "bytes=4000-", *([None] if ignores_condition else [])]

    def test_a_part_whose_server_does_not_know_the_size_is_as_long_as_announced(
        self, server: Server, tmp_path: Path
    ) -> None:
        file = RemoteFile(f"{server.url}/moving.txt")
        answer = server.answers["/moving.txt"] = Answer(CONTENT, etag='"one"', cut_at=4000, hides_size=True)
        progress = lambda url, done, total: setattr(answer, "cut_at", 1000 if done < 5000 else None)  # noqa: E731
        assert Downloader(cache=tmp_path, progress=progress).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges == [None, "bytes=4000-", "bytes=5000-"]

    def test_addresses_that_cannot_be_read_are_one_line(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.answers["/moved.txt"] = Answer(b"", status=302, redirect="http://[::1/x")
        file = RemoteFile(f"{server.url}/moved.txt")
        assert "Invalid IPv6 URL" in message_of(lambda: Downloader(cache=tmp_path).fetch(file))
        monkeypatch.delenv("no_proxy")
        monkeypatch.setattr(urllib.request, "_opener", None)  # it has read the variables already
        monkeypatch.setenv("http_proxy", "http:/proxy:8080")
        assert "proxy URL with no authority" in message_of(lambda: Downloader(cache=tmp_path).fetch(file))

    def test_a_redirection_to_another_protocol_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = urllib.response.addinfourl(io.BytesIO(CONTENT), Message(), "ftp://there/t.txt")
        monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: answer)
        message = message_of(lambda: Downloader(cache=tmp_path).fetch(RemoteFile("http://here/t.txt")))
        assert "redirected to ftp://there/t.txt, which is not HTTP" in message

    def test_a_damaged_edition_of_a_part_is_not_continued(self, server: Server, tmp_path: Path) -> None:
        server.answers["/moving.txt"] = Answer(CONTENT, etag='"one"')
        file = RemoteFile(f"{server.url}/moving.txt")
        part = begun(tmp_path, file, CONTENT[:3000])
        part.with_name(f"{part.name}.json").write_text(f'{{"url": "{file.url}", "validator": 5}}')
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges == [None]

    def test_a_kill_at_a_new_edition_leaves_no_bytes_of_the_old_one_under_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun(tmp_path, RemoteFile("https://here/t.txt"), b"old")
        part = PartialFile(tmp_path / "here" / "t.txt")
        monkeypatch.setattr(http_transfer, "write_json", lambda path, state: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            part.begin("https://here/t.txt", '"new"', 0)
        assert part.size == 0
        part.close()

    def test_without_checksum_and_edition_nothing_is_continued(self, server: Server, tmp_path: Path) -> None:
        server.answers["/moving.txt"] = Answer(CONTENT)
        file = RemoteFile(f"{server.url}/moving.txt")
        begun(tmp_path, file, b"?" * 3000)
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges == [None]

    def test_another_address_goes_on_with_the_bytes_of_the_first(self, server: Server, tmp_path: Path) -> None:
        good = server.file("/good.txt")
        server.answers["/dies.txt"] = Answer(CONTENT, cut_at=4000, knows_range=False)
        file = replace(good, url=f"{server.url}/dies.txt", alternatives=(good.url,))
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert server.ranges[-1] == "bytes=4000-"


def one_transfer(self: Downloader, url: str, expected: RemoteFile, part: PartialFile) -> None:
    http_transfer.transfer(url, expected, part, lambda done, total: None)


class TestTryingAgain:
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_passing_failure_is_tried_again(self, server: Server, tmp_path: Path, status: int) -> None:
        file = server.file()
        server.answers["/data/text.txt"].failures = [status] * 3
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == CONTENT
        assert len(server.requests) == 4

    def test_a_lasting_failure_is_one_line_that_says_how_often_it_was_tried(
        self, server: Server, tmp_path: Path
    ) -> None:
        file = server.file()
        server.answers["/data/text.txt"].failures = [429] * 50
        message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
        assert f"{file.url}: HTTP 429 Too Many Requests ({download.MAX_ATTEMPTS} attempts)" in message
        assert len(server.requests) == download.MAX_ATTEMPTS
        assert files_below(tmp_path) == []

    @pytest.mark.parametrize(("asked", "seconds"), [("7", 7.0), ("0", 0.0), ("100000", 60.0), (None, 3.0), ("?", 3.0)])
    def test_waiting_is_as_long_as_the_server_asks_or_grows(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, seconds: float
    ) -> None:
        waits: list[float] = []
        monkeypatch.setattr(download, "BACKOFF_SECONDS", 3.0)
        file = server.file()
        server.answers["/data/text.txt"].failures = [429, 429]
        server.answers["/data/text.txt"].retry_after = asked
        downloader = Downloader(cache=tmp_path)
        monkeypatch.setattr(downloader._stopped, "wait", lambda timeout: waits.append(timeout))
        downloader.fetch(file)
        assert waits == [seconds, 6.0 if seconds == 3.0 else seconds]


class TestRecordedChecksums:
    def test_the_first_download_is_recorded_and_verified_from_then_on(self, server: Server, tmp_path: Path) -> None:
        server.answers["/a.txt"] = Answer(CONTENT)
        file = RemoteFile(f"{server.url}/a.txt")
        fetched = Downloader(cache=tmp_path).fetch(file)
        record = fetched.path.with_name("a.txt.sha256")
        assert record.read_text() == f"{hashlib.sha256(CONTENT).hexdigest()}  a.txt\n"
        fetched.path.write_bytes(CONTENT.swapcase())
        message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
        assert "has sha256" in message
        assert f"delete {record} to take this one" in message

    def test_a_copy_of_the_cache_as_a_mirror_is_verified_too(self, server: Server, tmp_path: Path) -> None:
        server.answers["/a.txt"] = Answer(CONTENT)
        file, cache, mirror = RemoteFile(f"{server.url}/a.txt"), tmp_path / "cache", tmp_path / "mirror"
        Downloader(cache=cache).fetch(file)
        cache.rename(mirror)
        assert Downloader(mirror=mirror, cache=cache).fetch(file).path.is_relative_to(mirror)
        next(mirror.rglob("a.txt")).write_bytes(CONTENT.swapcase())
        message = message_of(lambda: Downloader(mirror=mirror, cache=cache).fetch(file))
        assert "has sha256" in message and f"delete {next(mirror.rglob('a.txt.sha256'))} to take" in message

    def test_a_renewed_file_is_refused_until_its_record_is_deleted(self, server: Server, tmp_path: Path) -> None:
        server.answers["/a.txt"] = Answer(CONTENT)
        file = RemoteFile(f"{server.url}/a.txt")
        path = Downloader(cache=tmp_path).fetch(file).path
        path.unlink()
        server.answers["/a.txt"] = Answer(b"a new edition\n")
        message = message_of(lambda: Downloader(cache=tmp_path).fetch(file))
        record = path.with_name("a.txt.sha256")
        assert f"delete {record} to take this one" in message
        record.unlink()
        assert Downloader(cache=tmp_path).fetch(file).path.read_bytes() == b"a new edition\n"


class TestSeveralAtOnce:
    def test_all_arrive_and_in_order_and_a_second_run_asks_for_nothing(self, server: Server, tmp_path: Path) -> None:
        files = [server.file(f"/{n}.txt", CONTENT + bytes([65 + n])) for n in range(9)]
        fetched = Downloader(cache=tmp_path).fetch_all([*files, files[0]])
        assert [file.path.read_bytes()[-1] for file in fetched] == [65 + n for n in range(9)]
        assert sorted(server.requests) == sorted(f"/{n}.txt" for n in range(9))
        assert Downloader(cache=tmp_path).fetch_all(files) == fetched
        assert len(server.requests) == 9

    def test_they_go_on_at_the_same_time(self, server: Server, tmp_path: Path) -> None:
        meeting = threading.Barrier(download.MAX_CONCURRENT)
        files = [server.file(f"/{n}.txt") for n in range(download.MAX_CONCURRENT)]
        met: set[str] = set()

        def meet(url: str, done: int, total: int | None) -> None:
            if url not in met:
                met.add(url)
                meeting.wait(timeout=300)

        assert len(Downloader(cache=tmp_path, progress=meet).fetch_all(files)) == download.MAX_CONCURRENT

    def test_one_failure_is_one_line_and_the_rest_is_kept_for_the_next_run(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_transfer, "CHUNK_BYTES", 1000)
        files = [server.file(f"/{n}.txt") for n in range(4)]
        missing = RemoteFile(f"{server.url}/missing.txt")
        places = [tmp_path / mirror_path(file.url) for file in files]

        def wait_for_the_failure(url: str, done: int, total: int | None) -> None:
            if url == files[0].url:
                assert is_over.wait(timeout=300)  # so that it outlives the call

        is_over = threading.Event()
        before = set(threading.enumerate())
        downloader = Downloader(cache=tmp_path, progress=wait_for_the_failure)
        assert "HTTP 404" in message_of(lambda: downloader.fetch_all([*files, missing]))
        is_over.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(300)
        kept = [(path if path.exists() else PartialFile.path_of(path)) for path in places]
        sizes = {f"/{n}.txt": path.stat().st_size if path.exists() else 0 for n, path in enumerate(kept)}
        assert 1000 <= sizes["/0.txt"] < len(CONTENT)
        asked = len(server.requests)
        Downloader(cache=tmp_path).fetch_all(files)
        starts = {
            path: int((wanted or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            for path, wanted in zip(server.requests[asked:], server.ranges[asked:], strict=True)
        }
        assert starts["/0.txt"] == sizes["/0.txt"]
        assert all(sizes[path] <= start < len(CONTENT) for path, start in starts.items())
        assert [path.read_bytes() for path in places] == [CONTENT] * 4

    def test_room_for_all_together_is_made_sure_of_first(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = [server.file(f"/{n}.txt") for n in range(3)]
        begun(tmp_path, files[0], CONTENT[:4000])
        monkeypatch.setattr(shutil, "disk_usage", usage_with(25_999))
        message = message_of(lambda: Downloader(cache=tmp_path).fetch_all(files))
        assert "needs 26,000 bytes, but only 25,999 are free" in message
        assert server.requests == []

    def test_processes_that_share_a_cache_download_a_file_once(self, server: Server, tmp_path: Path) -> None:
        file = server.file(body=CONTENT * 200)
        code = (
            "import sys; from pathlib import Path; from nmtkit.corpora.download import Downloader\n"
            "from nmtkit.corpora.http_transfer import RemoteFile\n"
            f"file = RemoteFile({file.url!r}, num_bytes={file.num_bytes}, sha256={file.sha256!r})\n"
            f"print(Downloader(cache=Path({str(tmp_path)!r})).fetch(file).sha256)"
        )
        started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        assert [process.communicate()[0].strip() for process in started] == [file.sha256] * 3
        assert len(server.requests) == 1
        assert files_below(tmp_path) == [tmp_path / mirror_path(file.url)]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://www.example.org/wmt13/a.tgz", "www.example.org/wmt13/a.tgz"),
        ("https://example.org:8080/a%20b.gz", "example.org/a b.gz"),
    ],
)
def test_a_mirror_is_laid_out_as_host_and_path(url: str, path: str) -> None:
    assert mirror_path(url) == Path(path)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/a",
        "file:///etc/passwd",
        "http:///a",
        "https://example.org",
        "https://example.org/",
        "https://example.org/folder/",
        "https://example.org/a?b=c",
        "https://example.org/../a",
        "https://example.org/x/%2e%2e/%2e%2e/a",
        "http://../a",
    ],
)
def test_an_address_that_names_no_file_inside_the_folder_is_a_bug(url: str) -> None:
    with pytest.raises(ValueError, match="not the address"):
        mirror_path(url)


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        ("bytes 5-9/10", (5, 10)),
        ("bytes 5-9/*", (5, 10)),  # as the length of the answer says
        (f"bytes 0-9/{'1' * 5000}", (-1, None)),
        (f"bytes {'1' * 5000}-", (-1, None)),
        ("lines 0-9/10", (-1, None)),
    ],
)
def test_a_range_of_an_answer_that_cannot_be_read_is_unknown(extent: str, expected: tuple[int, int | None]) -> None:
    answer: Any = SimpleNamespace(status=206, length=5, headers={"Content-Range": extent})
    assert http_transfer._extent(answer) == expected
