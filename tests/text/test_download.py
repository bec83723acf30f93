"""Fetching: mirror, cache and network give the same verified file, or one clear line and nothing half-written."""

import gzip
import hashlib
import http.server
import os
import platform
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from nmtkit.errors import DataError
from nmtkit.files import ABANDONED_SECONDS, TEMPORARY_MARK
from nmtkit.text import download
from nmtkit.text.download import Downloader, RemoteFile, default_cache, mirror_path

CONTENT = b"Ein Satz.\n" * 1000


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    content_type: str = "application/octet-stream"
    content_length: int | None = None
    redirect: str | None = None


@dataclass
class Server:
    """A web server on this machine; ``answers`` by path, and what was asked of it."""

    url: str
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    user_agents: list[str | None] = field(default_factory=list)

    def file(self, path: str = "/data/text.txt", body: bytes = CONTENT) -> RemoteFile:
        """Offers a file and describes it."""
        self.answers[path] = Answer(body)
        return RemoteFile(self.url + path, num_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            state.user_agents.append(self.headers.get("User-Agent"))
            answer = state.answers.get(self.path, Answer(b"not here", status=404))
            self.send_response(answer.status)
            if answer.redirect is not None:
                self.send_header("Location", answer.redirect)
            self.send_header("Content-Type", answer.content_type)
            if answer.content_length != 0:
                self.send_header("Content-Length", str(answer.content_length or len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as httpd:
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


def message_of(action: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    return message


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


def test_the_cache_is_reused_without_a_second_request(server: Server, tmp_path: Path) -> None:
    file = server.file()
    first = Downloader(cache=tmp_path).fetch(file)
    second = Downloader(cache=tmp_path).fetch(file)
    assert first == second
    assert len(server.requests) == 1


def test_the_cache_is_named_by_the_environment_or_lies_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NMTKIT_CACHE", raising=False)
    assert Downloader().cache == default_cache() == tmp_path / ".cache" / "nmtkit"
    monkeypatch.setenv("NMTKIT_CACHE", str(tmp_path / "elsewhere"))
    assert Downloader().cache == tmp_path / "elsewhere"


def test_a_redirect_is_followed(server: Server, tmp_path: Path) -> None:
    file = server.file("/new.txt")
    server.answers["/old.txt"] = Answer(status=302, redirect="/new.txt")
    fetched = Downloader(cache=tmp_path).fetch(replace(file, url=f"{server.url}/old.txt"))
    assert fetched.path.name == "old.txt"
    assert fetched.path.read_bytes() == CONTENT


def test_a_compressed_file_arrives_as_it_is(server: Server, tmp_path: Path) -> None:
    body = gzip.compress(CONTENT, mtime=0)
    assert Downloader(cache=tmp_path).fetch(server.file("/a.gz", body)).path.read_bytes() == body


def test_progress_is_reported_until_the_last_byte(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download, "CHUNK_BYTES", 4000)
    reports: list[tuple[str, int, int | None]] = []
    file = server.file()
    downloader = Downloader(cache=tmp_path, progress=lambda url, done, total: reports.append((url, done, total)))
    downloader.fetch(file)
    assert reports == [(file.url, done, 10000) for done in (4000, 8000, 10000)]
    downloader.fetch(file)
    assert len(reports) == 3
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
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.05)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as silent:
        file = RemoteFile(f"http://127.0.0.1:{silent.server_port}/a.txt")
        assert "timed out" in message_of(lambda: Downloader(cache=tmp_path).fetch(file))


def test_a_connection_that_ends_early_leaves_nothing_in_the_cache(server: Server, tmp_path: Path) -> None:
    server.answers["/cut"] = Answer(CONTENT, content_length=20000)
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(RemoteFile(f"{server.url}/cut")))
    assert "after 10,000 of 20,000 bytes" in message
    assert files_below(tmp_path) == []


def test_a_web_page_is_not_taken_for_the_file(server: Server, tmp_path: Path) -> None:
    server.answers["/login"] = Answer(b"<html>please log in</html>", content_type="text/html; charset=utf-8")
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(RemoteFile(f"{server.url}/login")))
    assert "web page" in message
    assert files_below(tmp_path) == []


def test_alternatives_are_tried_in_turn(server: Server, tmp_path: Path) -> None:
    good = server.file("/good.txt")
    server.answers["/damaged.txt"] = Answer(b"?" * len(CONTENT))
    alternatives = (f"{server.url}/damaged.txt", good.url)
    fetched = Downloader(cache=tmp_path).fetch(
        replace(good, url=f"{server.url}/missing.txt", alternatives=alternatives)
    )
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


def test_a_disk_that_fills_up_leaves_nothing_in_the_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    message = message_of(lambda: Downloader(cache=tmp_path).fetch(server.file()))
    assert "cannot be written (No space left on device)" in message
    assert files_below(tmp_path) == []


def test_a_stopped_download_leaves_nothing_in_the_cache(server: Server, tmp_path: Path) -> None:
    def stop(url: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Downloader(cache=tmp_path, progress=stop).fetch(server.file())
    assert files_below(tmp_path) == []


def test_the_next_download_removes_what_a_killed_one_left_but_not_one_going_on(server: Server, tmp_path: Path) -> None:
    file = server.file("/a.txt")
    folder = tmp_path / "127.0.0.1"
    folder.mkdir()
    here = f"{TEMPORARY_MARK}{platform.node()}-"
    dead, alive, other = (
        folder / f".{name}{here}{process}"
        for name, process in (("a.txt", 999999999), ("a.txt", os.getppid()), ("b.txt", 999999999))
    )
    elsewhere, long_gone = (folder / f".a.txt{TEMPORARY_MARK}no-host-{number}" for number in (1, 2))
    for leftover in (dead, alive, other, elsewhere, long_gone):
        leftover.write_bytes(b"half")
    long_ago = time.time() - 2 * ABANDONED_SECONDS
    os.utime(alive, (long_ago, long_ago))
    os.utime(long_gone, (long_ago, long_ago))
    Downloader(cache=tmp_path).fetch(file)
    assert files_below(tmp_path) == sorted([alive, other, elsewhere, folder / "a.txt"])


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
