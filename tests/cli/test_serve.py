"""`nmtkit serve`: its options, its faults in one line, and how signals end it."""

import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nmtkit.cli import serve as serve_command
from nmtkit.serving import server as server_module
from nmtkit.serving.http import Limits
from tests.conftest import run_command
from tests.export.tiny_models import make_run
from tests.forked import Forked, translate_after
from tests.serving.conftest import LENGTHS, Server, request, translation_request, wait_until

KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("model") / "run", lengths=LENGTHS)


STOPPING = "stopping: requests in work are finished\n"


@contextmanager
def process(
    folder: Path, *arguments: object, gate: Path | None = None, is_forked: bool = True
) -> Iterator[tuple[Server, "Forked | subprocess.Popen[bytes]"]]:
    """A server in a process of its own, at any free port, whose stdout and stderr are the files out and err.

    It translates nothing before ``gate`` exists.
    """
    out, err, before = folder / "out", folder / "err", None if gate is None else partial(translate_after, gate)
    command = ["serve", *map(str, arguments), "--port", "0", "--device", "cpu", "--threads", "1"]
    with ExitStack() as stack:
        running: Forked | subprocess.Popen[bytes]
        if is_forked:
            running = stack.enter_context(Forked(*command, out=out, err=err, before=before))
        else:
            files = [stack.enter_context(path.open("ab")) for path in (out, err)]
            running = subprocess.Popen([sys.executable, "-m", "nmtkit", *command], stdout=files[0], stderr=files[1])
            stack.callback(running.wait)
            stack.callback(running.kill)
        wait_until(lambda: running.poll() is not None or (err.exists() and err.read_text().endswith("\n")))
        match = re.fullmatch(r"serving en-de at http://127\.0\.0\.1:(\d+)/\n", err.read_text())
        assert match, err.read_text()
        err.write_text("")
        yield Server(int(match[1])), running


@pytest.mark.parametrize(("number", "is_forked"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_a_server_starts_translates_and_ends_at_once_when_nothing_is_in_work(
    model: Path, tmp_path: Path, number: signal.Signals, is_forked: bool
) -> None:
    started = process(tmp_path, model, "--max-seconds", 3600, is_forked=is_forked)
    with started as (server, running), server.client() as idle:
        idle.send(request("GET", "/health"))
        assert idle.read_answer().status == 200
        assert server.post("the dog").status == 200
        running.send_signal(number)
        assert running.wait(120) == 0  # after an hour, the idle connection would end by itself
        assert idle.is_closed()
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("", STOPPING)


def test_a_signal_lets_what_is_in_work_finish_and_refuses_the_rest(model: Path, tmp_path: Path) -> None:
    text, gate = "the old dog\nsees the new red house", tmp_path / "gate"
    with process(tmp_path, model, "--max-seconds", 300, gate=gate) as (server, running):
        with server.client() as working, server.client() as late:
            late.send(request("GET", "/health"))
            assert late.read_answer().status == 200
            working.send(translation_request({"q": text, "source": "en", "target": "de"}))
            wait_until(lambda: server.metric("nmtkit_round_lines_count") == 1)
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: (tmp_path / "err").read_text() == STOPPING)
            late.send(translation_request({"q": "x", "source": "en", "target": "de"}))
            answer = late.read_answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert "the server is stopping" in answer.error
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port))
            gate.touch()
            answer = working.read_answer()
            assert answer.status == 200
            assert answer.json["translatedText"].count("\n") == 1
        assert running.wait(60) == 0
    assert (tmp_path / "err").read_text() == f"{STOPPING}warning: refused requests, by status: {{'503': 1}}\n"


def test_a_second_signal_ends_it_at_once(model: Path, tmp_path: Path) -> None:
    started = process(tmp_path, model, "--max-seconds", 3000, gate=tmp_path / "gate")
    with started as (server, running), server.client() as working:
        working.send(translation_request({"q": "the dog", "source": "en", "target": "de"}))
        wait_until(lambda: server.metric("nmtkit_round_lines_count") == 1)
        running.send_signal(signal.SIGTERM)
        wait_until(lambda: (tmp_path / "err").read_text() == STOPPING)
        running.send_signal(signal.SIGTERM)
        assert running.wait(300) == 143
        assert working.is_closed()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command would serve."""
    found: list[Any] = []

    async def serve(load: Any, *arguments: Any, is_local: bool) -> None:
        found.extend([load(), *arguments, is_local])

    monkeypatch.setattr(server_module, "serve", serve)
    monkeypatch.setattr(server_module, "load_directions", lambda *arguments: arguments)
    return found


def test_every_option_has_its_effect(served: list[Any], tmp_path: Path) -> None:
    assert run_command("serve", "a", "b").code == 0
    defaults = Limits(characters=5000, beam=10, body_bytes=2**18, seconds=30.0, waiting=256, connections=256)
    loaded = ([Path("a"), Path("b")], "auto", "float32", "auto", None)
    assert served[:6] == [loaded, "127.0.0.1", 8000, [], defaults, 2048]
    assert set(served[6]) >= {signal.SIGINT, signal.SIGTERM}
    assert served[7] is True
    served.clear()
    (tmp_path / "keys").write_text(f"# of the first customer\n{KEY}\n\n  another-{KEY} \n", encoding="utf-8")
    options = (
        "--host ::1 --port 1234 --max-characters 1 --max-beam 2 --max-body 3 --max-seconds 4.5 --max-queue 5 "
        "--max-connections 6 --batch-tokens 7 --engine torch --precision bf16 --device cpu --threads 1 --quiet"
    )
    assert run_command("serve", "a", *options.split(), "--api-key", tmp_path / "keys").code == 0
    loaded = ([Path("a")], "torch", "bf16", "cpu", 1)
    limits = Limits(characters=1, beam=2, body_bytes=3, seconds=4.5, waiting=5, connections=6)
    assert served[:6] == [loaded, "::1", 1234, [KEY, f"another-{KEY}"], limits, 7]
    assert served[7] is False


def test_files_may_be_open_for_all_connections(served: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    limits, found = [(256, 10_000), (640, 640), (resource.RLIM_INFINITY,) * 2], list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.pop(0))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: found.append(wanted))
    while limits:
        assert run_command("serve", "a").code == 0
    assert found == [(640, 10_000)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "", "example.org", "127.0.0.1.example.org", "*"])
def test_an_address_that_is_not_loopback_needs_keys_or_the_statement_that_there_are_none(
    served: list[Any], tmp_path: Path, host: str
) -> None:
    outcome = run_command("serve", "a", "--host", host)
    assert (outcome.code, served) == (2, [])
    assert "--api-key" in outcome.err
    assert "--no-api-key" in outcome.err
    assert run_command("serve", "a", "--host", host, "--no-api-key").code == 0
    assert served[7] is False
    (tmp_path / "keys").write_text(f"{KEY}\n", encoding="utf-8")
    assert run_command("serve", "a", "--host", host, "--api-key", tmp_path / "keys").code == 0
    assert run_command("serve", "a", "--no-api-key", "--api-key", tmp_path / "keys").code == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(served: list[Any], host: str) -> None:
    assert run_command("serve", "a", "--host", host).code == 0
    assert served[1] == host.strip("[]")


@pytest.mark.parametrize("content", ["", "\n \n", "short\n", f"{KEY}\nshort"])
def test_keys_that_are_too_short_or_missing_are_refused(served: list[Any], tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content, encoding="utf-8")
    outcome = run_command("serve", "a", "--api-key", tmp_path / "keys")
    assert (outcome.code, served) == (1, [])
    assert outcome.err.splitlines() == [
        f"error: {tmp_path / 'keys'} (--api-key): write one key per line, of at least 16 characters"
    ]
    assert run_command("serve", "a", "--api-key", tmp_path / "none").code == 1


def test_without_its_extra_it_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_command, "find_spec", lambda name: None)
    outcome = run_command("serve", "a")
    assert outcome.code == 1
    assert outcome.err == "error: nmtkit serve needs more packages; run `pip install 'nmtkit[serve]'`\n"


def test_faults_at_the_start_are_one_line(model: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run_command("serve", model, "--port", port)
    assert outcome.code == 1
    assert outcome.err == (
        f"error: --host 127.0.0.1 --port {port}: address already in use; choose another address or port\n"
    )
    for arguments, named in (
        ([tmp_path / "none"], "none"),
        ([model, model], "another model translates en-de"),
        ([model, "--engine", "ctranslate2"], "there is no CTranslate2 export"),
        ([model, "--host", "host.invalid", "--no-api-key"], "--host host.invalid"),
    ):
        outcome = run_command("serve", *arguments, "--port", "0", "--device", "cpu")
        assert outcome.code == 1, outcome
        assert len(outcome.err.splitlines()) == 1
        assert named in outcome.err
