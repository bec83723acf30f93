"""HTTP/1.1: h11 parses and checks; this module reads and writes, within limits of size, time and connections.

A request has to arrive whole in time, so that a slow client does not hold its connection: common servers limit only the
time between requests. Every fault is answered with one line of JSON, {"error": ...}.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Any, NamedTuple

import h11
import prometheus_client as prometheus

from nmtkit.console import log

_READ_BYTES, _MAX_HEAD_BYTES, _LINGER_SECONDS = 64 * 1024, 64 * 1024, 2.0
_SECONDS_BETWEEN_WARNINGS = 60.0
_HEADERS = {
    "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}  # fmt: skip


class Reader(asyncio.StreamReader):
    """Reader that tells at once that a client sends no more, also if there are bytes to read."""

    has_ended = False

    def feed_eof(self) -> None:
        self.has_ended = True
        super().feed_eof()


Streams = tuple[Reader, asyncio.StreamWriter]


class Limits(NamedTuple):
    """Limits of a request, then of all; ``seconds`` each for it to arrive, to be translated, and to be read."""

    characters: int
    beam: int
    body_bytes: int
    seconds: float
    waiting: int
    connections: int


class Request(NamedTuple):
    """A whole request; the names of headers are in lower case. ``is_gone()``: its client has closed the connection."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes
    is_gone: Callable[[], bool]


class Response(NamedTuple):
    """An answer; ``headers`` are added to those of every answer, or replace them."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


def as_json(content: Any, status: int = 200, **headers: str) -> Response:
    """Return an answer of one line of JSON, in which half of a surrogate pair stays an escape; an _ is a hyphen."""
    line = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(status, line + b"\n", headers={name.replace("_", "-"): text for name, text in headers.items()})


class RequestError(Exception):
    """A request that is refused, with the answer to it."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.response = as_json({"error": message}, status, **headers)


class HttpServer:
    """The connections of a server; the callback of `asyncio.StreamReaderProtocol`."""

    def __init__(
        self, respond: Callable[[Request], Awaitable[Response]], limits: Limits, registry: prometheus.CollectorRegistry
    ) -> None:
        self._respond, self._limits, self._is_stopping = respond, limits, False
        self._num_in_work = self._num_connections = 0
        self._unreported, self._warned_at = Counter[str](), -_SECONDS_BETWEEN_WARNINGS
        connections = prometheus.Gauge("nmtkit_connections", "Open connections.", registry=registry)
        connections.set_function(lambda: self._num_connections)
        about = "Requests refused before they were read; no answer: connections ended at once."
        self._refused = prometheus.Counter("nmtkit_refused_requests", about, ["status"], registry=registry)

    async def stop(self) -> None:
        """Refuse further requests, and return when those in work are answered."""
        self._is_stopping = True
        while self._num_in_work:
            await asyncio.sleep(0.01)
        self._warn_of_refusals()

    def _count_refusal(self, status: str) -> None:
        """Count a refusal that no answer of ``respond`` counts; warn of it now, or some time after the last warning."""
        self._refused.labels(status).inc()
        if not self._unreported:
            due = self._warned_at + _SECONDS_BETWEEN_WARNINGS - time.monotonic()
            asyncio.get_running_loop().call_later(max(0.0, due), self._warn_of_refusals)
        self._unreported[status] += 1

    def _warn_of_refusals(self) -> None:
        if self._unreported:
            log.warning("refused requests, by status: %s", dict(self._unreported))
            self._unreported.clear()
            self._warned_at = time.monotonic()

    async def __call__(self, *streams: *Streams) -> None:
        """Answer the requests of a connection, one after the other."""
        reader, writer = streams
        self._num_connections += 1
        is_full = self._num_connections > self._limits.connections
        try:
            writer.transport.set_write_buffer_limits(0)  # `drain` waits until all is sent
            parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES - 1)
            if self._num_connections > 2 * self._limits.connections:  # from the limit on, the answer is 503
                self._count_refusal("no answer")
            else:
                while await self._exchange(parser, streams, is_full=is_full):
                    parser.start_next_cycle()
                async with asyncio.timeout(_LINGER_SECONDS):
                    writer.write_eof()
                    while await reader.read(_READ_BYTES):  # with data unread, the system would take the answer back
                        pass
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass  # the client has gone or does not read, or the server ends
        finally:
            # Not close, which would keep what is not sent, for a client that does not read.
            writer.transport.abort()
            self._num_connections -= 1

    async def _exchange(self, parser: h11.Connection, streams: Streams, *, is_full: bool) -> bool:
        """Answer one request; return whether another one may follow."""
        heads: list[h11.Request] = []  # none if the fault comes before
        try:
            if (request := await self._receive(parser, streams, heads)) is None:
                return False
            if is_full or self._is_stopping:
                fault = "the server is stopping" if self._is_stopping else "too many connections; try again later"
                raise RequestError(503, fault, Retry_After="1")
            self._num_in_work += 1
            try:
                is_head = request.method == "HEAD"
                return await self._send(await self._respond(request), parser, streams[1], is_head=is_head)
            finally:
                self._num_in_work -= 1
        except RequestError as error:
            if not streams[0].at_eof():  # else the client has gone
                self._count_refusal(str(error.response.status))
            is_head = any(head.method == b"HEAD" for head in heads)
            return await self._send(error.response, parser, streams[1], is_head=is_head, is_last=is_full)

    async def _receive(self, parser: h11.Connection, streams: Streams, heads: list[h11.Request]) -> Request | None:
        """Return the next request, or None if there is none; raise RequestError for a fault or a limit.

        Its head is appended to ``heads`` as soon as it has arrived.
        """
        (reader, writer), head, body, size, has_begun = streams, None, bytearray(), 0, False
        room = _MAX_HEAD_BYTES - len(parser.trailing_data[0])  # h11 refuses a head that fills it and goes on
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not isinstance(event := parser.next_event(), h11.EndOfMessage):
                    if event is h11.NEED_DATA:
                        # A client that sent "Expect: 100-continue" waits for this (RFC 9110, section 10.1.1).
                        if parser.they_are_waiting_for_100_continue:
                            writer.write(parser.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                        data = await reader.read(_READ_BYTES if head else room)
                        parser.receive_data(data)
                        room -= len(data)
                        has_begun = True
                    elif isinstance(event, h11.Request):
                        head, size = event, int(dict(event.headers).get(b"content-length", 0))
                        heads.append(head)
                    elif isinstance(event, h11.Data):
                        body += event.data
                    else:
                        return None
                    if max(size, len(body)) > self._limits.body_bytes:
                        raise RequestError(413, f"the body has more than {self._limits.body_bytes:,} bytes")
        except TimeoutError:
            # A connection that is idle between two requests ends without an answer.
            if not has_begun:
                return None
            raise RequestError(408, f"the request did not arrive within {self._limits.seconds:g} s") from None
        except h11.RemoteProtocolError as error:
            # h11 proposes 501 for unknown transfer codings; faults of a request are all 4xx here.
            status = error.error_status_hint if error.error_status_hint < 500 else 400
            raise RequestError(status, f"not a valid HTTP request: {str(error)[:200]}") from None
        assert head is not None
        method, path = head.method.decode("ascii"), head.target.partition(b"?")[0].decode("ascii")
        has_closed = lambda: reader.has_ended or writer.transport.is_closing()  # noqa: E731
        return Request(method, path, dict(head.headers), bytes(body), has_closed)

    async def _send(
        self, response: Response, parser: h11.Connection, writer: asyncio.StreamWriter, *, is_head: bool,
        is_last: bool = False,
    ) -> bool:  # fmt: skip
        """Send an answer; return whether another request may follow."""
        is_last = is_last or self._is_stopping or parser.their_state is not h11.DONE
        headers = {"Date": formatdate(usegmt=True), "Content-Type": response.content_type, **_HEADERS}
        headers |= {"Content-Length": str(len(response.body)), **response.headers}
        headers |= {"Connection": "close"} if is_last else {}
        events: list[h11.Event] = [h11.Response(status_code=response.status, headers=[*headers.items()])]
        events += [h11.EndOfMessage()] if is_head else [h11.Data(data=response.body), h11.EndOfMessage()]
        writer.write(b"".join(parser.send(event) or b"" for event in events))
        async with asyncio.timeout(self._limits.seconds):
            await writer.drain()
        return not is_last and parser.our_state is h11.DONE
