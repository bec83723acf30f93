"""The pages of the server, for translating and about the API; nothing in them is loaded from another host."""

import base64
import hashlib
import re
from typing import Any

from pydantic import BaseModel

from nmtkit.files import nmtkit_version
from nmtkit.page import asset, json_script, live_page, page, plain, table
from nmtkit.serving.http import Response

SUMMARIES = {
    ("get", "/"): "A page on which to translate.",
    ("get", "/docs"): "This page.",
    ("get", "/openapi.json"): "This description in the format of OpenAPI.",
    ("get", "/health"): "200 if the server takes requests, 503 if it is stopping.",
    ("get", "/languages"): "The languages, and into which each is translated.",
    ("get", "/metrics"): "Metrics as text for Prometheus.",
    ("post", "/translate"): "Translate a text or a list of texts.",
}


def html_response(content: str) -> Response:
    """Return a page whose policy allows its own styles and scripts and requests to this server, and nothing else."""
    allowed = {}
    for kind in ("style", "script"):
        blocks = re.findall(f"<{kind}>(.*?)</{kind}>", content, re.DOTALL)
        sums = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
        allowed[kind] = " ".join(f"'sha256-{each}'" for each in sums) or "'none'"
    policy = (
        f"default-src 'none'; style-src {allowed['style']}; script-src {allowed['script']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(200, content.encode(), "text/html; charset=utf-8", {"Content-Security-Policy": policy})


def translation_page(settings: dict[str, Any]) -> Response:
    """Return the page on which to translate; page.js describes its settings."""
    body = [json_script("settings", settings), asset("nmtkit.serving", "page.html")]
    files = (asset("nmtkit.serving", name) for name in ("page.css", "page.js"))
    style, script = files
    return html_response(live_page("nmtkit", body, style=style, scripts=[script]))


def openapi(body: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    """Return the description of the API in the format of OpenAPI."""
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    schemas = {"Error": error, **{model.__name__: model.model_json_schema() for model in (body, answer)}}

    def content(name: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    paths: dict[str, Any] = {}
    for (method, path), summary in SUMMARIES.items():
        refused = {"description": "The fault, in one line of JSON.", "content": content("Error")}
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {"200": {"description": "OK"}, "default": refused},
        }
        if method == "post":
            operation["requestBody"] = {"required": True, "content": content(body.__name__)}
            operation["responses"]["200"]["content"] = content(answer.__name__)
        paths[path] = {method: operation}
    info = {"title": "nmtkit", "version": nmtkit_version()}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def docs_page(schema: dict[str, Any]) -> Response:
    """Return the description of the API as a page."""
    rows = [[f"<code>{method.upper()} {path}</code>", SUMMARIES[method, path]] for method, path in SUMMARIES]
    parts = ["<h1>API</h1>", table(["request", ""], rows)]
    for name, model in schema["components"]["schemas"].items():
        fields = model["properties"].items()
        described = [[f"<code>{field}</code>", plain(str(about.get("description", "")))] for field, about in fields]
        parts += [f"<h2>{name}</h2>", f"<p>{plain(model.get('description', ''))}</p>", table(["field", ""], described)]
    return html_response(page("nmtkit: API", parts))
