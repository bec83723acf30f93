"""A thousand malformed requests: each is answered with 4xx and one line, while others are served as usual."""

import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.conftest import Answer, Server, Shouting, request, serving_engine, translation_request, wait_until

VALID: dict[str, Any] = {
    "q": "hello", "source": "en", "target": "de", "format": "text", "beam": 2, "n_best": 2, "alternatives": 1,
    "alignment": False, "prefix": "x", "glossary": {"a": "b"}, "api_key": "",
}  # fmt: skip
BODY = json.dumps(VALID).encode()
WRONG = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    2**63,
    10**400,
    "",
    "\ud800",
    [],
    [[]],
    [None],
    ["\udfff"],
    {},
    {"a": None},
    {"": "x"},
]
LENGTH = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: "
CHUNKED = b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "


def wrong_fields() -> Iterator[bytes]:
    """Every field with every wrong value, or missing, or under another name."""
    right = {  # what of WRONG is right
        "q": ["", []], "format": [], "alignment": [True, False], "prefix": ["", []], "api_key": [""], "glossary": [{}],
        "alternatives": [0], "beam": [None],
    }  # fmt: skip
    for name in VALID:
        for value in WRONG:
            if not any(value is one or (type(value) is type(one) and value == one) for one in right.get(name, [])):
                yield json.dumps({**VALID, name: value}).encode()
        yield json.dumps({**VALID, f"{name}_": VALID[name]}).encode()
        yield json.dumps({**VALID, name.upper(): VALID[name]}).encode()
        yield BODY[:-1] + f", {json.dumps(name)}: {json.dumps(VALID[name])}}}".encode()  # twice
    for name in ("q", "source", "target"):
        yield json.dumps({key: value for key, value in VALID.items() if key != name}).encode()
    for value in (
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "1" * 5000,
        "-0",
        "1.0",
        "01",
        "0x1",
        "[" * 50_000,
        "{}" * 9,
    ):
        yield BODY.replace(b'"beam": 2', f'"beam": {value}'.encode())


def wrong_bodies(rng: random.Random) -> Iterator[bytes]:
    """What is no JSON object, and no UTF-8."""
    yield from (BODY[:stop] for stop in range(0, len(BODY), 2))
    yield from (b"null", b"[]", b'"q"', b"1", b"true", b"[" * 90_000, b'{"a":' * 15_000, b"\x00")
    yield b"\xef\xbb\xbf" + BODY
    yield from (BODY.decode().encode(encoding) for encoding in ("utf-16", "utf-32", "utf-16-le"))
    for _ in range(150):
        at = rng.randrange(1, len(BODY) - 1)
        yield BODY[:at] + bytes([rng.choice([0x80, 0xC0, 0xFF, 0xED, 0xF5, 0x00, 0x1F])]) + BODY[at:]


def wrong_http(rng: random.Random) -> Iterator[bytes]:
    """What is no HTTP."""
    lines = (
        "", "GET", "GET /", "GET /  HTTP/1.1", "GET / HTTP/1.1.1", "GET / http/1.1",
        " GET / HTTP/1.1", "GET /ä HTTP/1.1", "G@T / HTTP/1.1", "GET / HTTP/1.1 x", "PRI * HTTP/2.0",
        "\x16\x03\x01\x02", "GET /\x00 HTTP/1.1", "hello there",
    )  # fmt: skip
    yield from (f"{line}\r\nHost: x\r\n\r\n".encode("latin-1") for line in lines if line)
    headers = (
        "no colon", ": no name", "a b: c", "a : b", "a:\x00", "a: b\x00c", "ä: b", "Host: y", "a\x0b: c",
        "Content-Length: 1", "Content-Length: -1", "Content-Length: x", "Content-Length: 1, 2",
        "Content-Length: " + "9" * 30,
        "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: identity", "a: " + "x" * 20_000, "Content-Length: 0x10", "Content-Length: +5",
    )  # fmt: skip
    for line in headers:
        yield f"POST /translate HTTP/1.1\r\nHost: x\r\n{line}\r\nContent-Length: 2\r\n\r\n{{}}".encode("latin-1")
    yield b"GET / HTTP/1.1\r\n\r\n"
    yield b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"\r\n".join([b"GET / HTTP/1.1", b"Host: x", *(b"a%d: b" % number for number in range(20_000)), b"", b""])
    for size in (b"", b"x", b"-1", b"g", b"0x1", b"1 1", b"F" * 30, b"\x00"):
        yield CHUNKED + b"chunked\r\n\r\n" + size + b"\r\nab\r\n0\r\n\r\n"
    yield CHUNKED + b"chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n"
    for _ in range(280):
        noise = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60))).lstrip(b"\r\n")
        yield (noise or b"x") + b"\r\n\r\n"
    whole = translation_request(BODY)
    head = whole.index(b"\r\n\r\n")
    for _ in range(220):  # a byte that no header may have
        at = rng.randrange(1, head)
        yield whole[:at] + bytes([rng.choice([0x00, 0x0B])]) + whole[at + 1 :]


def malformed() -> list[bytes]:
    rng = random.Random(1)
    bodies = [*wrong_fields(), *wrong_bodies(rng)]
    form = "application/x-www-form-urlencoded"
    kinds = ["text/plain", "application/xml", "multipart/form-data; boundary=x", ""]
    found = [translation_request(body) for body in bodies]
    found += [translation_request(BODY, Content_Type=kind) for kind in kinds]
    for body in (b"", b"q=%ff&source=en&target=de", b"q=x&source=en&source=de&target=de", b"&" * 5000, b"q=a\xff",
                 b"q=x&source=en&target=de&beam=x", b"q=x&source=en&target=de&glossary=x", b"q=&" * 2000):  # fmt: skip
        found.append(translation_request(body, Content_Type=form))
    found += [*wrong_http(rng)]
    paths = ["/translate/", "/TRANSLATE", "/languages/x", "//", "/%00", "/detect", "/docs/../", "*", "/translate%20"]
    found += [request("GET", path) for path in paths]
    found += [
        request(method, path, b"{}") for path in ("/", "/health", "/docs") for method in ("POST", "PUT", "OPTIONS")
    ]
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving_engine(Shouting(), body_bytes=95_000) as running:
        yield running


def test_each_of_a_thousand_malformed_requests_is_a_4xx_with_one_line_and_nothing_else_is_lost(server: Server) -> None:
    requests = malformed()
    assert len(requests) >= 1000
    assert len(set(requests)) > 0.9 * len(requests)
    ends = threading.Event()
    served: list[Answer] = []

    def use() -> None:
        with server.client() as client:
            while not ends.is_set():
                client.send(translation_request(VALID))
                served.append(client.read_answer())

    user = threading.Thread(target=use)
    user.start()
    try:
        faults = []
        for data in requests:
            answer = server.answer(data)
            if not 400 <= answer.status < 500 or not answer.error or len(answer.body) > 500:
                faults.append((data[:300], answer))
        assert faults == []
    finally:
        ends.set()
        user.join()
    assert len(served) > 50
    assert {answer.json["translatedText"] for answer in served} == {"HELLO"}
    wait_until(lambda: server.metric("nmtkit_connections") == 1)
    assert server.metric("nmtkit_waiting_requests") == 0


def test_what_the_malformed_requests_are_made_of_is_right(server: Server) -> None:
    assert server.answer(translation_request(VALID)).json == {"translatedText": "HELLO", "alternatives": []}
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert server.answer(CHUNKED + b"chunked\r\n\r\n" + chunks).status == 200
    assert server.answer(LENGTH + b"%d\r\n\r\n" % len(BODY) + BODY).status == 200


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"q": "a", "q": "b"}', "a name occurs twice in an object"),
        (b'{"q": NaN}', "NaN is not JSON"),
        (b"[" * 90_000, "recursion"),
        (b'{"q": "\xff"}', "can't decode byte 0xff in position 7"),
        (b'"q"', "the body is not a JSON object"),
        (json.dumps({**VALID, "n_best": "2"}).encode(), "n_best: Input should be a valid integer"),
        (json.dumps({**VALID, "beams": 2}).encode(), "beams: unknown field; did you mean beam?"),
        (json.dumps({**VALID, "zzz": 2}).encode(), "zzz: unknown field"),
        (json.dumps({**VALID, "q": 2}).encode(), "q: give a text or a list of texts"),
        (json.dumps({**VALID, "q": ["a", 2]}).encode(), "q[1]: Input should be a valid string"),
        (json.dumps({**VALID, "glossary": {"a": 2}}).encode(), 'glossary["a"]: Input should be a valid string'),
        (json.dumps({**VALID, "q": "\ud800"}).encode(), "a text has half of a surrogate pair"),
    ],
)  # fmt: skip
def test_the_fault_of_a_body_is_named(server: Server, body: bytes, named: str) -> None:
    assert named in server.answer(translation_request(body)).error
