"""The API of the server: its paths, and what a request to translate may contain.

POST /translate -> TranslateBody -> RequestText -> lines -> TranslationQueue -> ANSWER
"""

import dataclasses
import hmac
import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NoReturn
from urllib.parse import parse_qs

from prometheus_client import CONTENT_TYPE_LATEST, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nmtkit.config.recipe import nearest
from nmtkit.console import log
from nmtkit.decoding.ctranslate2_engine import CTranslate2Translator
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.request import TranslationRequest
from nmtkit.errors import DataError, NmtkitError
from nmtkit.serving.http import Limits, Request, RequestError, Response, as_json
from nmtkit.serving.pages import docs_page, openapi, translation_page
from nmtkit.serving.texts import RequestText
from nmtkit.serving.translation_queue import Job, TranslationQueue
from nmtkit.text.terms import Glossary

Directions = dict[tuple[str, str], tuple[Engine, TranslationRequest]]
"""The engine for each source and target language, and what all requests for this direction have in common."""


_LOCAL = re.compile(rb"(localhost|127(\.\d+){3}|\[::1\])(:\d*)?", re.IGNORECASE)
_JSON, _FORM = b"application/json", b"application/x-www-form-urlencoded"


class TranslateBody(BaseModel):
    """A request to translate, as JSON or as a form."""

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
    glossary: dict[str, str] = Field(
        {}, description="Terms, and the translations required where they occur; not in a form."
    )
    api_key: str = Field("", description="Key, unless it is in the header `Authorization: Bearer KEY`.")


ANSWER = {
    "translatedText": "The translation; if q is a list, this and each other value is a list with an entry per text.",
    "alternatives": "If requested: other translations, best first.",
    "alignment": "If requested: for each subword of the translation, start and end of the subword of the source that "
    "it attends to most, then its own start and end, counted in characters (code points).",
}


class Api:
    """The answers of a server.

    Args:
        keys: a request needs one of them, if there are any.
        is_local: refuse requests that call this machine by another name than its own.
    """

    def __init__(
        self, directions: Directions, queue: TranslationQueue, limits: Limits, keys: Sequence[str], *, is_local: bool
    ) -> None:
        self._is_local = is_local
        self._directions, self._queue, self._limits, self._keys = directions, queue, limits, [*map(str.encode, keys)]
        self._seconds = Histogram(
            "nmtkit_request_seconds", "Time to the answer.", ["path", "status"], registry=queue.registry
        )
        offered = [
            [*pair, self._most_translations(engine), engine.has_alignments] for pair, (engine, _) in directions.items()
        ]
        settings = {"directions": offered, "maxCharacters": limits.characters, "needsKey": bool(keys)}
        targets: dict[str, list[str]] = {}
        for source, target in directions:
            targets.setdefault(source, []).append(target)
        languages = [{"code": code, "name": code, "targets": codes} for code, codes in targets.items()]
        schema = openapi(TranslateBody, ANSWER)
        # Of each path: method, whether a key is needed, and the answer or the function that returns it.
        self._routes: dict[str, tuple[str, bool, Response | Callable[[Request], Awaitable[Response]]]] = {
            "/": ("GET", False, translation_page(settings)),
            "/docs": ("GET", False, docs_page(schema)),
            "/openapi.json": ("GET", False, as_json(schema)),
            "/health": ("GET", False, as_json({"status": "ok"})),
            "/languages": ("GET", True, as_json(languages)),
            "/metrics": ("GET", True, self._metrics),
            "/translate": ("POST", False, self._translate),  # where the key may be a field
        }

    def _most_translations(self, engine: Engine) -> int:
        """Return how many translations the page offers; 0: not even a choice, as CTranslate2 has only the best."""
        if isinstance(engine, CTranslate2Translator):
            return 0
        return 1 if "target" in engine.tokenizer.context_sides else min(engine.decoding.beam, self._limits.beam)

    async def respond(self, request: Request) -> Response:
        """Return the answer to a request; errors are answers, too."""
        begun = time.monotonic()
        try:
            # A page of another site whose name leads to this machine (DNS rebinding) is of the same site to a browser.
            if self._is_local and not _LOCAL.fullmatch(request.headers.get(b"host", b"localhost")):
                raise RequestError(403, "without --api-key or --no-api-key, the server answers to localhost only")
            if request.path not in self._routes:
                raise RequestError(404, f"no such path; there are {', '.join(self._routes)}")
            method, needs_key, answer = self._routes[request.path]
            if request.method not in (method, "HEAD" if method == "GET" else method):
                raise RequestError(405, f"use {method}", Allow=method if method == "POST" else "GET, HEAD")
            if needs_key:
                self._check_key(request)
            response = answer if isinstance(answer, Response) else await answer(request)
        except RequestError as error:
            response = error.response
        except DataError as error:
            response = as_json({"error": str(error)}, 400)
        except NmtkitError as error:  # damaged weights, or too little memory
            log.error("%s %s failed: %s", request.method, request.path, error)
            response = as_json({"error": str(error)}, 500)
        except Exception:  # a bug ends neither the server nor other requests
            log.exception("%s %s failed", request.method, request.path)
            response = as_json({"error": "internal error; see the log of the server"}, 500)
        path = request.path if request.path in self._routes else "other"
        self._seconds.labels(path, response.status).observe(time.monotonic() - begun)
        return response

    def _check_key(self, request: Request, stated: object = "") -> None:
        scheme, _, key = request.headers.get(b"authorization", b"").partition(b" ")
        shown = key.strip() if scheme.lower() == b"bearer" else str(stated).encode()
        matches = [hmac.compare_digest(shown, known) for known in self._keys]  # all of them, each in constant time
        if self._keys and not any(matches):
            raise RequestError(401, "a valid API key is needed", WWW_Authenticate="Bearer")

    async def _metrics(self, request: Request) -> Response:
        return Response(200, generate_latest(self._queue.registry), CONTENT_TYPE_LATEST)

    async def _translate(self, request: Request) -> Response:
        site, origin, host = map(request.headers.get, (b"sec-fetch-site", b"origin", b"host"))
        if site is None and origin is not None:  # browsers name the site only at addresses with TLS or on localhost
            site = b"same-origin" if origin.lower().partition(b"://")[2] == (host or b"").lower() else b"cross-site"
        if site not in (None, b"none", b"same-origin"):
            raise RequestError(403, "pages of other sites may not use this server")
        fields, is_form = _fields(request)
        self._check_key(request, fields.get("api_key", ""))
        try:
            body = TranslateBody.model_validate(fields, strict=not is_form)
        except ValidationError as error:
            raise RequestError(400, _described(error)) from None
        pairs = [pair for pair in self._directions if body.source in ("auto", pair[0]) and body.target == pair[1]]
        if len(pairs) != 1:
            count = "several models translate" if pairs else "no model translates"
            known = ", ".join(map("-".join, itertools.islice(pairs or self._directions, 10)))
            asked = f"source {body.source[:40]!r}, target {body.target[:40]!r}"
            raise RequestError(400, f"{asked}: {count} this; choose one of {known} (/languages lists all)")
        (engine, shared), texts = self._directions[pairs[0]], self._texts(body)
        num_best = max(body.n_best, body.alternatives + 1)
        blank = [("", "")] * bool(engine.tokenizer.context)  # ends a document
        lines = [line for text in texts for line in (*text.lines, *blank)]
        glossary = Glossary(body.glossary.items()) if body.glossary else None
        options = dataclasses.replace(shared, n_best=num_best, attention=body.alignment, glossary=glossary)
        job = Job(engine, body.beam or engine.decoding.beam, options, lines, request.is_gone)
        found = iter(await self._queue.translate(job) if lines else [])
        mark = engine.tokenizer.segment_mark
        answers = [text.answer([next(found) for _ in (*text.lines, *blank)][: len(text.lines)], mark) for text in texts]
        wanted = {"translatedText": True, "alternatives": num_best > 1, "alignment": body.alignment}
        columns = {name: [answer[name] for answer in answers] for name, is_wanted in wanted.items() if is_wanted}
        is_one = isinstance(body.q, str)
        return as_json({name: of_texts[0] if is_one else of_texts for name, of_texts in columns.items()})

    def _texts(self, body: TranslateBody) -> list[RequestText]:
        """Return the texts of a request; raise RequestError if it is beyond the limits."""
        texts = [body.q] if isinstance(body.q, str) else body.q
        prefixes = [body.prefix] if isinstance(body.prefix, str) else body.prefix
        if body.prefix and (len(prefixes) != len(texts) or isinstance(body.prefix, str) != isinstance(body.q, str)):
            raise RequestError(400, "prefix: give a text if q is a text, and a list of as many texts if q is a list")
        if (is_html := body.format == "html") and (body.prefix or body.alignment):
            raise RequestError(400, "format: prefix and alignment need text, not html")
        given = [*texts, *prefixes, *body.glossary, *body.glossary.values()]
        for number, unit in ((len(texts), "texts"), (sum(map(len, given)), "characters")):
            if number > self._limits.characters:
                raise RequestError(413, f"more than {self._limits.characters:,} {unit}; send several requests")
        if max(body.beam or 0, body.n_best, body.alternatives + 1) > self._limits.beam:
            raise RequestError(400, f"beam, n_best: at most {self._limits.beam} on this server")
        prefixes = prefixes if body.prefix else [""] * len(texts)
        return [RequestText(*pair, is_html=is_html) for pair in zip(texts, prefixes, strict=True)]


def _described(error: ValidationError) -> str:
    """Return the first fault of a request: the field and what is wrong."""
    faults = error.errors(include_url=False)
    name = str(faults[0]["loc"][0])
    if faults[0]["type"] == "extra_forbidden":
        return f"{name}: unknown field{nearest(name, TranslateBody.model_fields)}"
    # Of a text or a list of texts, pydantic names what each of the two lacks.
    (*_, place), text = next((fault["loc"], fault["msg"]) for fault in reversed(faults) if fault["loc"][0] == name)
    if place == "list[str]":
        return f"{name}: give a text or a list of texts"
    return f"{name}: {text}" if place == name else f"{name}[{json.dumps(place)}]: {text}"


def _fields(request: Request) -> tuple[dict[str, Any], bool]:
    """Return the fields of a request, and whether it is a form, in which all values are text."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(fields := dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice in an object")
        return fields

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    kind = request.headers.get(b"content-type", _JSON).partition(b";")[0].strip().lower()
    if kind not in (_JSON, _FORM):
        received = kind[:80].decode("latin-1")
        raise RequestError(415, f"Content-Type is {received!r}; send {_JSON.decode()} or {_FORM.decode()}")
    if (coding := request.headers.get(b"content-encoding", b"identity")).strip().lower() != b"identity":
        received = coding[:80].decode("latin-1")
        raise RequestError(415, f"Content-Encoding is {received!r}; send the body without a content coding")
    try:
        text = request.body.decode()
        if kind == _FORM and not text.lstrip().startswith("{"):  # the type that curl -d states for JSON, too
            lists = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=1000)
            return {name: values if len(values) > 1 else values[0] for name, values in lists.items()}, True
        fields = json.loads(text, object_pairs_hook=without_duplicates, parse_constant=refuse)
        json.dumps(fields, ensure_ascii=False).encode()  # raises an error for half of a surrogate pair
    except UnicodeEncodeError:
        raise RequestError(400, "the body is not valid: a text has half of a surrogate pair") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not valid: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body is not a JSON object")
    return fields, False
