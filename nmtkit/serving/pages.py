"""The pages of the server, for translating and about the API; nothing in them is loaded from another host."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from nmtkit.files import nmtkit_version
from nmtkit.page import asset, json_script, live_page, page, plain, table
from nmtkit.serving.http import Response


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


def openapi(summaries: Mapping[tuple[str, str], str], models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """Return a description in the format of OpenAPI; ``models``: of a body, of the answer to it, and of an error."""
    body, answer, error = (
        {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}} for model in models
    )
    paths: dict[str, Any] = {}
    for (method, path), summary in summaries.items():
        is_post = method == "post"
        succeeded = {"description": "Success."} | ({"content": answer} if is_post else {})
        failed = {"description": "A fault.", "content": error}
        paths[path] = {method: {"summary": summary, "responses": {"200": succeeded, "default": failed}}}
        paths[path][method] |= {"requestBody": {"required": True, "content": body}} if is_post else {}
    info = {"title": "nmtkit", "version": nmtkit_version()}
    schemas = {model.__name__: model.model_json_schema() for model in models}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def docs_page(schema: dict[str, Any]) -> Response:
    """Return a description in the format of OpenAPI as a page."""
    calls = [
        [f"<code>{method.upper()} {path}</code>", plain(operation["summary"])]
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    parts = ["<h1>API</h1>", '<p><a href="openapi.json">openapi.json</a></p>', table(["request", ""], calls)]
    for name, model in schema["components"]["schemas"].items():
        fields = model["properties"].items()
        rows = [[f"<code>{field}</code>", plain(details.get("description", ""))] for field, details in fields]
        parts += [f"<h2>{name}</h2>", f"<p>{plain(model['description'])}</p>", table(["field", ""], rows)]
    return _html(page("nmtkit: API", parts))
