"""The API of the server: its paths, and what a request to translate may contain.

POST /translate -> TranslateBody -> Text -> lines -> TranslationQueue -> TranslateAnswer
GET / (the page), /docs, /openapi.json, /languages, /health, /metrics
"""

import dataclasses
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import parse_qs

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmtkit.console import log
from nmtkit.decoding.engine import Engine, TranslationRequest
from nmtkit.errors import DataError
from nmtkit.serving.http import Limits, Request, RequestError, Response, as_json
from nmtkit.serving.pages import docs_page, openapi, translation_page
from nmtkit.serving.texts import Text
from nmtkit.serving.translation_queue import Job, Line, TranslationQueue


@dataclass(frozen=True)
class Direction:
    """A model for a source and a target language.

    Attributes:
        engine: engine for requests without options.
        with_options: engine for the others.
        request: what all requests for this target have in common.
    """

    engine: Engine
    with_options: Engine
    request: TranslationRequest


Directions = dict[tuple[str, str], Direction]


class TranslateBody(BaseModel):
    """Texts to translate, as JSON or as a form."""

    model_config = ConfigDict(extra="forbid", strict=True)

    q: str | list[str] = Field(description="Text, or a list of texts. Line breaks are kept.")
    source: str = Field(description='Language of the text; "auto" if just one is translated into the target.')
    target: str = Field(description="Language of the translation.")
    format: Literal["text", "html"] = Field("text", description="html: tags are kept, the text between is translated.")
    beam: int | None = Field(None, ge=1, description="Beam size; by default the model's.")
    n_best: int = Field(1, ge=1, description="Number of translations of each text, at most the beam size.")
    alternatives: int = Field(0, ge=0, description="The same as n_best - 1.")
    alignment: bool = Field(False, description="Add an alignment.")
    prefix: str | list[str] = Field("", description="Beginning of the translation; a list if q is one.")
    glossary: dict[Annotated[str, Field(min_length=1)], str] = Field(
        {}, description="Terms, and the translations that are required where they occur."
    )
    api_key: str = Field("", description="Key, unless the header `Authorization: Bearer KEY` has it.")


class TranslateAnswer(BaseModel):
    """Translations; if q is a list, each value is a list with an entry for each text."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] = Field([], description="Other translations, best first, if requested.")
    alignment: list[list[int]] | list[list[list[int]]] = Field(
        [],
        description="If requested, for each subword of the translation: start and end of the subword of the source "
        "that it attends to most, and its own start and end, in characters (code points).",
    )


class Api:
    """The answers of a server."""

    def __init__(
        self, directions: Directions, queue: TranslationQueue, limits: Limits, keys: Sequence[str],
        registry: CollectorRegistry,
    ) -> None:  # fmt: skip
        """Prepare the pages; a request needs one of the ``keys``, if there are any."""
        self._directions, self._queue, self._limits, self._registry = directions, queue, limits, registry
        self._keys = [key.encode() for key in keys]
        self._seconds = Histogram(
            "nmtkit_request_seconds", "Time to the answer.", ["path", "status"], registry=registry
        )
        settings = {
            "directions": [[*pair, *_offered(one.with_options)] for pair, one in directions.items()],
            "maxCharacters": limits.characters,
            "needsKey": bool(keys),
        }
        schema = openapi(TranslateBody, TranslateAnswer)
        languages = [
            {"code": code, "name": code, "targets": [target for source, target in directions if source == code]}
            for code in dict.fromkeys(source for source, _ in directions)
        ]
        # Of each path: method, whether a key is needed, and the answer or the function that returns it.
        self._routes: dict[str, tuple[str, bool, Response | Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", False, translation_page(settings)),
            "/docs": ("GET", False, docs_page(schema)),
            "/openapi.json": ("GET", False, as_json(schema)),
            "/health": ("GET", False, as_json({"status": "ok"})),
            "/languages": ("GET", True, as_json(languages)),
            "/metrics": ("GET", True, self._metrics),
            "/translate": ("POST", False, self._translate),  # checks the key itself, which may be a field
        }

    async def respond(self, request: Request) -> Response:
        """Return the answer to a request; errors are answers, too."""
        begun = time.monotonic()
        try:
            response = await self._respond(request)
        except RequestError as error:
            response = error.response
        except Exception:  # a bug ends neither the server nor other requests
            log.exception("%s %s failed", request.method, request.path)
            response = as_json({"error": "internal error; see the log of the server"}, 500)
        path = request.path if request.path in self._routes else "other"
        self._seconds.labels(path, response.status).observe(time.monotonic() - begun)
        return response

    async def _respond(self, request: Request) -> Response:
        if request.path not in self._routes:
            raise RequestError(404, f"no such path; there are {', '.join(self._routes)}")
        method, needs_key, answer = self._routes[request.path]
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            raise RequestError(405, f"use {method}", {"Allow": method if method == "POST" else "GET, HEAD"})
        if needs_key:
            self._check_key(request)
        return answer if isinstance(answer, Response) else await answer(request)

    def _check_key(self, request: Request, stated: object = "") -> None:
        scheme, _, key = request.headers.get(b"authorization", b"").partition(b" ")
        shown = key.strip() if scheme.lower() == b"bearer" else str(stated).encode("utf-8", "replace")
        matches = [hmac.compare_digest(shown, known) for known in self._keys]  # all of them, each in constant time
        if self._keys and not any(matches):
            raise RequestError(401, "a valid API key is needed", {"WWW-Authenticate": "Bearer"})

    async def _metrics(self, request: Request) -> Response:
        return Response(200, generate_latest(self._registry), CONTENT_TYPE_LATEST)

    async def _translate(self, request: Request) -> Response:
        if request.headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise RequestError(403, "pages of other sites may not use this server")
        fields, is_form = _fields(request)
        self._check_key(request, fields.get("api_key", ""))
        try:
            body = TranslateBody.model_validate(fields, strict=not is_form)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            raise RequestError(400, f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
        direction = self._direction(body)
        texts = self._texts(body)
        num_best = max(body.n_best, body.alternatives + 1)
        needs_torch = num_best > 1 or body.alignment or body.beam or body.glossary or body.prefix
        engine = direction.with_options if needs_torch else direction.engine
        blank = [Line("")] * bool(engine.tokenizer.context)  # ends a document
        lines = [line for text in texts for line in (*text.lines, *blank)]
        options = dataclasses.replace(direction.request, n_best=num_best, attention=body.alignment)
        job = Job(engine, body.beam or engine.decoding.beam, options, lines, request.is_gone)
        found = iter(await self._queue.translate(job, self._limits.seconds))
        answers = [text.answer([next(found) for _ in (*text.lines, *blank)][: len(text.lines)]) for text in texts]
        names = ["translatedText", *["alternatives"] * (num_best > 1), *["alignment"] * body.alignment]
        return as_json(
            {name: answers[0][name] if isinstance(body.q, str) else [one[name] for one in answers] for name in names}
        )

    def _direction(self, body: TranslateBody) -> Direction:
        pairs = [pair for pair in self._directions if body.source in ("auto", pair[0]) and body.target == pair[1]]
        if len(pairs) == 1:
            return self._directions[pairs[0]]
        known = ", ".join(f"{source} to {target}" for source, target in pairs or self._directions)
        raise RequestError(400, f"source and target: this server translates {known}")

    def _texts(self, body: TranslateBody) -> list[Text]:
        """Return the texts of a request; raise RequestError if it is beyond the limits."""
        texts = [body.q] if isinstance(body.q, str) else body.q
        prefixes = [body.prefix] if isinstance(body.prefix, str) else body.prefix
        if body.prefix and (len(prefixes) != len(texts) or isinstance(body.prefix, str) != isinstance(body.q, str)):
            raise RequestError(400, "prefix: give a text if q is a text, and a list of as many texts if q is a list")
        if body.format == "html" and (body.prefix or body.alignment):
            raise RequestError(400, "format: prefix and alignment need text, not html")
        given = [*texts, *prefixes, *body.glossary, *body.glossary.values()]
        if sum(len(text) + 1 for text in given) - 2 > self._limits.characters:
            raise RequestError(413, f"more than {self._limits.characters:,} characters; send several requests")
        if max(body.beam or 0, body.n_best, body.alternatives + 1) > self._limits.beam:
            raise RequestError(400, f"beam, n_best: at most {self._limits.beam} on this server")
        prefixes = prefixes if body.prefix else [""] * len(texts)
        return [
            Text(text, prefix, body.glossary, is_html=body.format == "html")
            for text, prefix in zip(texts, prefixes, strict=True)
        ]


def _offered(engine: Engine) -> tuple[int, bool]:
    """Return the number of translations that an engine can give, and whether it can give an alignment."""
    possible = []
    for request in (TranslationRequest(n_best=engine.decoding.beam), TranslationRequest(attention=True)):
        try:
            engine.check(request)
            possible.append(True)
        except DataError:
            possible.append(False)
    return engine.decoding.beam if possible[0] else 1, possible[1]


def _fields(request: Request) -> tuple[dict[str, Any], bool]:
    """Return the fields of a request, and whether it is a form, in which all values are text."""
    kind = request.headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    try:
        text = request.body.decode("utf-8")
        if kind == b"application/x-www-form-urlencoded":
            lists = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=1000)
            return {name: values if len(values) > 1 else values[0] for name, values in lists.items()}, True
        fields = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        json.dumps(fields, ensure_ascii=False).encode()  # raises an error for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not valid: {error}") from None
    if kind != b"application/json":
        raise RequestError(415, "send JSON, with the header Content-Type: application/json")
    if not isinstance(fields, dict):
        raise RequestError(400, "the body is not a JSON object")
    return fields, False


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Of a name that occurs twice, another reader might take the other value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name occurs twice in an object")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
