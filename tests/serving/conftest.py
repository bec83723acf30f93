"""Models, a server of them in this process, and a client that sends whatever bytes it is given."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.request import Translation, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import DataError, ModelError
from nmtkit.serving.api import Directions
from nmtkit.serving.http import Limits
from nmtkit.serving.server import load_directions, serve
from tests.export.tiny_models import make_run
from tests.forked import free_port

LENGTHS = TrainingLengths(longest_source=40, target_ratio=1.0, multi_sentence_share=0.0)
LIMITS = Limits(characters=5000, beam=5, body_bytes=100_000, seconds=60.0, waiting=100, connections=100)


@dataclass
class Answer:
    """An answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The content, which is one line of JSON."""
        assert self.headers["content-type"] == "application/json"
        assert self.body.endswith(b"\n")
        assert self.body.count(b"\n") == 1
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The fault that the server names."""
        assert self.status >= 400
        assert list(self.json) == ["error"]
        return str(self.json["error"])


class Client:
    """A connection to a server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=90)
        self._rest = b""

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_answer(self, *, is_head: bool = False) -> Answer:
        """Reads one answer; the connection may carry others."""
        while b"\r\n\r\n" not in self._rest:
            self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if is_head else int(headers.get("content-length", 0))
        while len(self._rest) < length:
            self._read()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Answer(int(first.split(" ")[1]), headers, body)

    def _read(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._rest += data

    def is_closed(self) -> bool:
        """Whether the server ends the connection, having sent nothing more."""
        try:
            return not self._rest and not self.socket.recv(1)
        except ConnectionResetError:
            return True


def request(method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
    """The bytes of a request; an underscore in the name of a header is a hyphen."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [] if body is None else [f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def translation_request(fields: Any, **headers: str) -> bytes:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return request("POST", "/translate", body, **{"Content_Type": "application/json", **headers})


@dataclass
class Server:
    """A running server."""

    port: int
    clients: list[Client] = field(default_factory=list)

    def client(self) -> Client:
        """A new connection, which ends with the server if not before."""
        self.clients.append(Client(self.port))
        return self.clients[-1]

    def answer(self, data: bytes, *, is_head: bool = False) -> Answer:
        """The answer to a request on a connection of its own."""
        with self.client() as client:
            client.send(data)
            return client.read_answer(is_head=is_head)

    def get(self, path: str, **headers: str) -> Answer:
        return self.answer(request("GET", path, **headers))

    def post(self, q: object, headers: dict[str, str] | None = None, **fields: object) -> Answer:
        return self.answer(translation_request({"q": q, "source": "en", "target": "de", **fields}, **(headers or {})))

    def translated(self, q: object, **fields: object) -> Any:
        answer = self.post(q, **fields)
        assert answer.status == 200, answer.body
        return answer.json["translatedText"]

    def together(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """The results of calls that are made at the same time."""
        with ThreadPoolExecutor(len(calls)) as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


@contextmanager
def serving(
    load: Callable[[], Directions],
    keys: Sequence[str] = (),
    batch_tokens: int = 2048,
    *,
    is_local: bool = False,
    **limits: Any,
) -> Iterator[Server]:
    """A server in a thread of this process."""
    port = free_port()
    server, ends = Server(port), threading.Event()
    failed: list[BaseException] = []

    limited = LIMITS._replace(**limits)

    async def run() -> None:
        life = asyncio.create_task(serve(load, "127.0.0.1", port, keys, limited, batch_tokens, is_local=is_local))
        end = asyncio.create_task(asyncio.to_thread(ends.wait))
        await asyncio.wait([life, end], return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            failed.append(life.exception() or AssertionError("the server has ended"))
        life.cancel()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        wait_until(lambda: bool(failed) or _listens(port))
        assert not failed, failed
        yield server
    finally:
        for client in server.clients:
            client.socket.close()
        ends.set()
        thread.join()
    assert not failed, failed


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Shouting(Engine):
    """An engine that takes no time and gives the capitals of each line, once its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[list[str]] = []
        self.decoding = DecodingConfig()
        self.tokenizer: Any = SimpleNamespace(context=0, context_sides=(), segment_mark="")
        self.before_step = lambda: None

    def check(self, *_: Any) -> None:
        """Takes any request."""

    def check_search(self, request: TranslationRequest) -> None:
        raise NotImplementedError

    def search_segments(self, *_: Any) -> Any:
        raise NotImplementedError

    @property
    def num_threads(self) -> int:
        return 1

    def translations(self, lines: Any, request: TranslationRequest, **_: Any) -> list[list[Translation]]:
        self.calls.append(list(lines))
        while not self.gate.wait(0.01):
            self.before_step()
        if request.n_best > self.decoding.beam:
            raise DataError("n_best is beyond the beam")
        if "damaged" in lines:
            raise ModelError("the weights are damaged")
        if "bug" in lines:
            raise KeyError("bug")
        return [[Translation(line.upper())] * request.n_best for line in lines]


@contextmanager
def serving_engine(engine: Any, **options: Any) -> Iterator[Server]:
    """A server of one engine, whose gate is opened at the end."""
    try:
        with serving(lambda: {("en", "de"): (engine, TranslationRequest())}, **options) as server:
            yield server
            engine.gate.set()
    finally:
        engine.gate.set()


@contextmanager
def gated(**options: Any) -> Iterator[tuple[Server, Shouting]]:
    """A server whose engine waits until its gate is opened."""
    engine = Shouting()
    with serving_engine(engine, **options) as server:
        engine.gate.clear()
        try:
            yield server, engine
        finally:
            engine.gate.set()  # else a failed test would wait for it


def translated_together(server: Server, engine: Shouting, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of calls that arrive while the engine, whose gate is closed, is in work, and so wait together."""

    def ask_the_others() -> list[Any]:
        wait_until(lambda: engine.calls == [["first"]])
        return server.together([*calls, open_gate])[:-1]

    def open_gate() -> None:
        wait_until(lambda: server.metric("nmtkit_waiting_requests") == len(calls))
        engine.gate.set()

    return list(server.together([lambda: server.translated("first"), ask_the_others])[1])


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights, from English into German."""
    return make_run(tmp_path_factory.mktemp("model") / "en-de", lengths=LENGTHS)


@pytest.fixture(scope="session")
def reverse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, from German into English."""
    folder = tmp_path_factory.mktemp("model") / "de-en"
    return make_run(folder, seed=2, lengths=LENGTHS, source_language="de", target_language="en")


@pytest.fixture(scope="session")
def server(model: Path, reverse_model: Path) -> Iterator[Server]:
    """A server of both models."""
    with serving(lambda: load_directions([model, reverse_model], "auto", "float32", "cpu", 1)) as running:
        yield running


@pytest.fixture(scope="session")
def translator(model: Path) -> Translator:
    """The engine of `nmtkit translate` with the first model."""
    return Translator.load(model)
