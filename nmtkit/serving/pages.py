"""The pages of the server, for translating and about the API; nothing in them is loaded from another host."""

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from nmtkit.page import asset, json_script, live_page, page, plain, table
from nmtkit.serving.http import Response
from nmtkit.versions import nmtkit_version

_SUMMARIES = {
    ("get", "/"): "A page to translate on.",
    ("get", "/health"): "200 while requests are taken, 503 when stopping.",
    ("get", "/languages"): "The languages, and into which each is translated.",
    ("get", "/metrics"): "Metrics as text for Prometheus.",
    ("post", "/translate"): "Translate a text or several; the request is JSON or a form.",
}


def _html(content: str) -> Response:
    """Return a page whose policy allows its own styles and scripts, requests to this server, and nothing else."""
    policy = "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    for kind in ("style", "script"):
        blocks = re.findall(f"<{kind}>(.*?)</{kind}>", content, re.DOTALL)
        sums = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        policy += f"; {kind}-src " + " ".join(f"'sha256-{each}'" for each in sums) if sums else ""
    headers = {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    return Response(200, content.encode(), "text/html; charset=utf-8", headers)


def translation_page(settings: dict[str, Any]) -> Response:
    """Return the page on which to translate."""
    body, style, script = (asset("nmtkit.serving", f"page.{kind}") for kind in ("html", "css", "js"))
    return _html(live_page("nmtkit", [json_script("settings", settings), body], style=style, scripts=[script]))


def openapi(body: type[BaseModel], answer: Mapping[str, str]) -> dict[str, Any]:
    """Return a description of the API in the format of OpenAPI; ``answer``: the fields of a translation's answer."""
    fields = {name: {"description": description} for name, description in answer.items()}
    error = {"error": {"type": "string", "description": "The fault, in one line."}}
    schemas = {"Request": body.model_json_schema(), "Answer": {"properties": fields}, "Error": {"properties": error}}
    content = {name: {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}} for name in schemas}
    paths: dict[str, Any] = {}
    for (method, path), summary in _SUMMARIES.items():
        answers = {
            "200": {"description": "Success."},
            "default": {"description": "A fault.", "content": content["Error"]},
        }
        paths[path] = {method: {"summary": summary, "responses": answers}}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    content["Request"] = dict.fromkeys(kinds, content["Request"]["application/json"])
    paths["/translate"]["post"]["requestBody"] = {"required": True, "content": content["Request"]}
    paths["/translate"]["post"]["responses"]["200"]["content"] = content["Answer"]
    info = {"title": "nmtkit", "version": nmtkit_version()}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def docs_page(schema: dict[str, Any]) -> Response:
    """Return a description in the format of OpenAPI as a page."""
    parts = ["<h1>API</h1>", '<p>For programs: <a href="openapi.json">openapi.json</a></p>']
    rows = {"Paths": [(f"{method.upper()} {path}", summary) for (method, path), summary in _SUMMARIES.items()]}
    for name, model in schema["components"]["schemas"].items():
        rows[name] = [(field, about.get("description", "")) for field, about in model["properties"].items()]
    for name, cells in rows.items():
        parts += [f"<h2>{name}</h2>", table(["", ""], [[f"<code>{one}</code>", plain(other)] for one, other in cells])]
    return _html(page("nmtkit: API", parts))
