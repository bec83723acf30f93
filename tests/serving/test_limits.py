"""No request ends the server or makes another one wait without bound: limits, faults, and clients that vanish."""

import json
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from nmtkit.decoding.request import Translation, TranslationRequest
from nmtkit.serving import http
from tests.serving.conftest import (
    Client,
    Server,
    Shouting,
    gated,
    request,
    serving_engine,
    translated_together,
    translation_request,
    wait_until,
)

KEYS = ["0123456789abcdef", "schlüssel-der-zweite"]


@pytest.fixture(scope="module")
def engine() -> Shouting:
    return Shouting()


@pytest.fixture(scope="module")
def server(engine: Shouting) -> Iterator[Server]:
    with serving_engine(engine) as running:
        yield running


def test_too_many_characters_are_refused(server: Server) -> None:
    assert server.translated("x" * 5000) == "X" * 5000
    assert server.translated(["x", ""] * 2500) == ["X", ""] * 2500
    for fields in ({"q": "x" * 5001}, {"q": ["xx"] * 2501}, {"q": "x", "prefix": "y" * 5000},
                   {"q": "x", "glossary": {"a" * 3000: "b" * 2000}}, {"q": [""] * 5001}):  # fmt: skip
        answer = server.post(**fields)
        unit = "texts" if fields["q"] == [""] * 5001 else "characters"
        assert (answer.status, answer.error) == (413, f"more than 5,000 {unit}; send several requests")


def test_refusals_before_a_request_is_read_are_counted_and_warned_of_once_in_a_while(
    logged: pytest.LogCaptureFixture,
) -> None:
    faults = {
        "400": b"nonsense\r\n\r\n", "408": b"GET",
        "413": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n",
        "431": b"GET / HTTP/1.1\r\na: " + b"x" * 99_999,
    }  # fmt: skip
    with serving_engine(Shouting(), seconds=2.0) as server:
        assert [str(server.answer(data).status) for data in faults.values()] == [*faults]
        metrics = server.get("/metrics").body.decode().splitlines()
    assert set(metrics) > {f'nmtkit_refused_requests_total{{status="{status}"}} 1.0' for status in faults}
    warnings = [record.getMessage() for record in logged.records if record.levelname == "WARNING"]
    assert warnings == ["refused requests, by status: {'400': 1}"]


def test_every_refusal_is_warned_of_in_the_end(
    logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_SECONDS_BETWEEN_WARNINGS", 1.0)
    with serving_engine(Shouting()) as server:
        for _ in range(7):
            assert server.answer(b"nonsense\r\n\r\n").status == 400
        wait_until(lambda: sum(record.args["400"] for record in logged.records if record.levelname == "WARNING") == 7)


def test_a_beam_beyond_the_limit_is_refused(server: Server) -> None:
    assert server.translated("x", beam=5) == "X"
    for fields in ({"beam": 6}, {"n_best": 6}, {"alternatives": 5}, {"beam": 10**400}):
        assert server.post("x", **fields).error == "beam, n_best: at most 5 on this server"


def test_the_page_offers_no_more_translations_than_the_server_gives() -> None:
    engine = Shouting()
    for sides, expected in (((), 2), (("source",), 2), (("source", "target"), 1)):
        engine.tokenizer.context_sides = sides
        with serving_engine(engine, beam=2) as server:
            assert f'["en","de",{expected},true]' in server.get("/").body.decode()


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_LINGER_SECONDS", 60.0)  # the rest may be sent slowly
    with server.client() as client:  # stated, and never sent
        client.send(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")
        answer = client.read_answer()
        assert (answer.status, answer.error) == (413, "the body has more than 100,000 bytes")
        assert answer.headers["connection"] == "close"
    assert server.answer(translation_request(b" " * 10_000_000)).status == 413  # sent whole, and the answer is read
    with server.client() as client:
        client.send(b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            client.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert client.read_answer().status == 413


@pytest.mark.parametrize("piece", [1000, 1_000_000])
def test_headers_beyond_the_limit_are_refused_however_they_arrive(
    server: Server, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(http, "_LINGER_SECONDS", 60.0)  # the rest may be sent slowly
    begin = request("GET", "/health")[:-2] + b"a: "
    for size, status in ((64 * 1024, 200), (64 * 1024 + 1, 431), (100_000, 431)):
        head = begin + b"x" * (size - len(begin) - 4) + b"\r\n\r\n"
        with server.client() as client:
            client.send(request("GET", "/health") + head[:99])
            assert client.read_answer().status == 200
            for start in range(99, size, piece):
                client.send(head[start : start + piece])
                time.sleep(0.001)
            assert client.read_answer().status == status


def test_a_chunked_body_without_a_length_is_read(server: Server) -> None:
    body = json.dumps({"q": "hello", "source": "en", "target": "de"}).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:8], body[8:]))
    answer = server.answer(
        b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    )
    assert answer.json == {"translatedText": "HELLO"}


def test_a_client_that_waits_before_it_sends_a_body_is_told_to_go_on(server: Server) -> None:
    whole = translation_request({"q": "hello", "source": "en", "target": "de"}, Expect="100-continue")
    head, _, body = whole.partition(b"\r\n\r\n")
    with server.client() as client:
        client.send(head + b"\r\n\r\n")
        assert client.read_answer().status == 100
        client.send(body)
        assert client.read_answer().json == {"translatedText": "HELLO"}


def test_a_full_queue_refuses_requests_until_there_is_room() -> None:
    with gated(waiting=3) as (server, engine):
        clients = [server.client() for _ in range(4)]
        for number, client in enumerate(clients):
            client.send(translation_request({"q": f"text {number}", "source": "en", "target": "de"}))
            if number == 0:
                wait_until(lambda: engine.calls == [["text 0"]])
        wait_until(lambda: server.metric("nmtkit_waiting_requests") == 3)
        answer = server.post("one more")
        assert (answer.status, answer.error) == (503, "too many requests are waiting; try again later")
        assert int(answer.headers["retry-after"]) >= 1
        assert server.get("/health").status == 200  # what needs no translation does not wait
        engine.gate.set()
        assert [client.read_answer().json["translatedText"] for client in clients] == [f"TEXT {n}" for n in range(4)]
        assert server.translated("one more") == "ONE MORE"
        assert not any("one more" in lines for lines in engine.calls[:-1])


def test_a_request_that_takes_too_long_is_answered_and_frees_the_engine() -> None:
    with gated(seconds=4.0) as (server, engine):
        begun = time.monotonic()
        answers = server.together([lambda: server.post("slow"), lambda: server.post("behind it", beam=2)])
        assert 4.0 <= time.monotonic() - begun < 60
        assert {(answer.status, answer.error) for answer in answers} == {(503, "not translated within 4 s")}

        def open_gate() -> None:
            wait_until(lambda: engine.calls[-1] == ["next"])  # what came before has left the engine, its gate closed
            engine.gate.set()

        assert server.together([lambda: server.post("next").json, open_gate])[0] == {"translatedText": "NEXT"}


@pytest.mark.parametrize("unread", [b"", b"G", request("GET", "/health")])
def test_the_work_of_a_dropped_connection_is_discarded(unread: bytes) -> None:
    with gated() as (server, engine):
        first, dropped, kept = server.client(), server.client(), server.client()
        first.send(translation_request({"q": "in work", "source": "en", "target": "de"}))
        wait_until(lambda: engine.calls == [["in work"]])
        dropped.send(translation_request({"q": "dropped", "source": "en", "target": "de", "beam": 2}))
        kept.send(translation_request({"q": "kept", "source": "en", "target": "de", "beam": 3}))
        wait_until(lambda: server.metric("nmtkit_waiting_requests") == 2)
        for client in (dropped, first):
            client.send(unread)
        dropped.socket.close()
        first.socket.close()  # nobody needs what is in work, either: it ends without its gate
        wait_until(lambda: engine.calls == [["in work"], ["kept"]])
        engine.gate.set()
        assert kept.read_answer().json == {"translatedText": "KEPT"}
        wait_until(lambda: server.metric("nmtkit_connections") == 2)
        assert engine.calls == [["in work"], ["kept"]]


def test_a_dropped_connection_keeps_no_place_in_a_full_queue() -> None:
    with gated(waiting=1) as (server, engine):
        first, dropped, kept = server.client(), server.client(), server.client()
        first.send(translation_request({"q": "in work", "source": "en", "target": "de"}))
        wait_until(lambda: engine.calls == [["in work"]])
        dropped.send(translation_request({"q": "dropped", "source": "en", "target": "de"}))
        wait_until(lambda: server.metric("nmtkit_waiting_requests") == 1)
        dropped.socket.close()
        kept.send(translation_request({"q": "kept", "source": "en", "target": "de"}))
        assert server.metric("nmtkit_waiting_requests") == 1  # by now the server has read what came before
        engine.gate.set()
        assert kept.read_answer().json == {"translatedText": "KEPT"}
        assert first.read_answer().json == {"translatedText": "IN WORK"}


def test_a_client_that_sends_its_request_slowly_is_ended_in_time_whatever_it_sends() -> None:
    engine = Shouting()
    whole = translation_request({"q": "slow", "source": "en", "target": "de"})
    with serving_engine(engine, seconds=3.0) as server:

        def drip(data: bytes, answers: list[object]) -> None:
            begun = time.monotonic()
            with server.client() as client:
                try:
                    for index in range(len(data)):
                        client.send(data[index : index + 1])
                        time.sleep(0.05)
                        if time.monotonic() - begun > 100:
                            break
                except (BrokenPipeError, ConnectionResetError):
                    pass
                answers.append(time.monotonic() - begun)

        slow: list[object] = []
        threads = [
            threading.Thread(target=drip, args=(data, slow)) for data in (whole[:-1], b"GET / HT" * 99, whole[:-9])
        ]
        with server.client() as partial, server.client() as silent:
            for thread in threads:
                thread.start()
            partial.send(whole[:-1])
            assert server.translated("fast") == "FAST"
            idle = server.client()
            idle.send(whole)
            assert idle.read_answer().status == 200
            for thread in threads:
                thread.join()
            assert len(slow) == 3 and all(isinstance(seconds, float) and seconds < 60 for seconds in slow)
            answer = partial.read_answer()
            assert (answer.status, answer.error) == (408, "the request did not arrive within 3 s")
            assert partial.is_closed() and silent.is_closed() and idle.is_closed()
        wait_until(lambda: server.metric("nmtkit_connections") == 1)


def test_too_many_connections_are_answered_and_then_ended() -> None:
    with serving_engine(Shouting(), connections=3) as server:
        wait_until(lambda: server.metric("nmtkit_connections") == 1)
        held = [server.client() for _ in range(3)]
        for client in held:
            client.send(request("GET", "/health"))
            assert client.read_answer().status == 200
        answer = server.get("/health")
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert answer.error == "too many connections; try again later"
        assert int(answer.headers["retry-after"]) >= 1
        wait_until(lambda: not _is_served(server, 3))
        held[0].send(request("GET", "/health"))
        assert held[0].read_answer().status == 200  # those within the limit are served
        held[1].socket.close()
        wait_until(lambda: _is_served(server, 1))
        wait_until(lambda: server.metric("nmtkit_refused_requests_total") >= 1)


def _is_served(server: Server, number: int) -> bool:
    """Whether so many new connections at a time get an answer, of any kind."""
    clients = [server.client() for _ in range(number)]
    try:
        for client in clients:
            client.send(request("GET", "/health"))
        return all(client.read_answer().status == 200 for client in clients)
    except (ConnectionResetError, BrokenPipeError):
        return False
    finally:
        for client in clients:
            client.socket.close()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with server.client() as client:
        bodies = [{"q": f"text {number}", "source": "en", "target": "de"} for number in range(20)]
        client.send(b"".join(map(translation_request, bodies)) + request("GET", "/nothing") + request("GET", "/health"))
        assert [client.read_answer().json["translatedText"] for _ in bodies] == [f"TEXT {n}" for n in range(20)]
        assert client.read_answer().status == 404
        assert client.read_answer().json == {"status": "ok"}


def test_methods_and_paths_that_do_not_exist_are_refused(server: Server) -> None:
    for path in ("/", "/docs", "/openapi.json", "/health", "/languages", "/metrics"):
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "get", "X" * 100):
            answer = server.answer(request(method, path, b""))
            assert (answer.status, answer.headers["allow"], answer.error) == (405, "GET, HEAD", "use GET")
        head, got = server.answer(request("HEAD", path), is_head=True), server.get(path)
        assert (head.status, head.body) == (200, b"")
        if path != "/metrics":
            assert head.headers["content-length"] == str(len(got.body))
    for method in ("GET", "HEAD", "OPTIONS", "PUT"):
        answer = server.answer(request(method, "/translate"), is_head=method == "HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
    for path in ("/x", "//", "/translate/", "/../etc/passwd", "/%2e%2e/", "*", "http://other/health", "/page.js"):
        answer = server.answer(request("GET", path))
        assert (answer.status, answer.error[:13]) == (404, "no such path;")
    assert server.get("/health?x=1").status == 200
    assert server.answer(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n").status == 404


def test_a_faulty_request_for_a_head_is_refused_without_a_body(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for head, status in (("Content-Length: 50000000", 413), ("Transfer-Encoding: chunked\r\n\r\nno chunk", 400)):
        with server.client() as client:
            client.send(f"HEAD / HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
            answer = client.read_answer(is_head=True)
            assert (answer.status, answer.headers["connection"]) == (status, "close")
            assert int(answer.headers["content-length"]) > 0
            assert client.socket.recv(1) == b""  # the end, without a body
    assert not [record for record in caplog.records if record.exc_info]


def test_every_answer_has_the_headers_that_keep_browsers_careful(server: Server) -> None:
    for answer in (server.get("/"), server.get("/docs"), server.get("/nothing"), server.post("x"), server.post(1)):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "server" not in answer.headers


def test_pages_of_other_sites_may_not_use_the_server(server: Server) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert server.post("x", {"Sec_Fetch_Site": site, "Origin": "https://example.org"}).status == status
    # Browsers name the site only at addresses with TLS or on localhost.
    for origin, status in (("http://localhost", 200), ("http://LOCALHOST", 200), ("http://localhost:80", 403),
                           ("http://example.org", 403), ("null", 403)):  # fmt: skip
        assert server.post("x", {"Origin": origin}).status == status


def test_a_local_server_answers_to_its_own_names_only() -> None:
    with serving_engine(Shouting(), is_local=True) as server:
        for host, status in (("localhost", 200), ("LocalHost:8000", 200), ("127.0.0.1:80", 200), ("[::1]:80", 200),
                             ("[::1]", 200), ("example.org", 403), ("localhost.example.org:80", 403),
                             ("127.0.0.1.example.org", 403), ("", 403)):  # fmt: skip
            for path in ("/health", "/metrics", "/"):
                assert server.answer(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).status == status
        assert server.answer(b"GET /health HTTP/1.0\r\n\r\n").status == 200
        assert server.translated("a") == "A"


def test_a_key_is_needed_for_translations_languages_and_metrics() -> None:
    with serving_engine(Shouting(), keys=KEYS) as server:
        wrong = ["Bearer wrong", f"Basic {KEYS[0]}", f"Bearer {KEYS[0]}x", f"Bearer {KEYS[0][:-1]}", "Bearer", KEYS[0]]
        for path in ("/languages", "/metrics"):
            for headers in ({}, *({"Authorization": value} for value in wrong)):
                answer = server.get(path, **headers)
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert answer.error == "a valid API key is needed"
            assert server.get(path, Authorization=f"bearer {KEYS[0]}").status == 200
        for path in ("/", "/docs", "/health", "/openapi.json"):
            assert server.get(path).status == 200
        assert server.post("x").status == server.post("x", api_key="wrong").status == 401
        assert server.post("x", api_key=7).status == server.post("x", api_key=["y"]).status == 401
        assert server.post(7).status == 401  # nothing is said about the request before the key
        for key in KEYS:
            assert server.translated("x", api_key=key) == "X"
        assert server.post("x", {"Authorization": f"Bearer {KEYS[0]}"}).status == 200
        encoded = KEYS[1].encode().decode("latin-1")
        assert server.post("x", {"Authorization": f"Bearer {encoded}"}).status == 200


def test_a_bug_is_answered_with_one_line_and_the_server_goes_on(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    found = server.together([lambda: server.post("bug"), *(lambda: server.post("x") for _ in range(5))])
    assert [answer.status for answer in found] == [500, *[200] * 5]
    assert found[0].error == "internal error; see the log of the server"
    assert server.translated("x") == "X"
    with caplog.at_level("ERROR", "nmtkit"):
        failed = server.post("damaged")
    assert (failed.status, failed.error) == (500, "the weights are damaged")
    assert "POST /translate failed: the weights are damaged" in caplog.text


def test_what_a_failed_search_held_is_free_when_its_requests_are_translated_one_by_one() -> None:
    class Full(Shouting):
        """An engine with memory for one line."""

        def translations(self, lines: Any, request: TranslationRequest, **options: Any) -> list[list[Translation]]:
            if len(lines) > 1:
                memory = threading.Event()  # anything that can be looked for
                held.append(weakref.ref(memory))
                raise RuntimeError("CUDA out of memory")
            found = super().translations(lines, request, **options)
            assert all(reference() is None for reference in held)
            return found

    held: list[weakref.ref[threading.Event]] = []
    engine = Full()
    with serving_engine(engine) as server:
        engine.gate.clear()
        calls = [lambda line=line: server.translated(line) for line in ("one", "two")]
        assert translated_together(server, engine, calls) == ["ONE", "TWO"]
    assert len(held) == 1


def test_connections_that_break_off_anywhere_do_no_harm(server: Server) -> None:
    whole = translation_request({"q": "hello", "source": "en", "target": "de"})
    for stop in range(0, len(whole), 7):
        client = Client(server.port)
        client.send(whole[:stop])
        client.socket.close()
    assert server.translated("x") == "X"
    wait_until(lambda: server.metric("nmtkit_connections") == 1)
