"""The description of the API in OpenAPI's form, at `/openapi.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pilotfish.server.answers import ErrorAnswer
from pilotfish.server.schema import ChatRequest, CompletionRequest

_REFERENCE = "#/components/schemas/{model}"
_MEANINGS = {
    400: "the request is wrong; param names the field",
    401: "the API key is missing or wrong",
    403: "the Host header names another machine, or the page is of another origin",
    404: "there is no such model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too many requests wait; Retry-After says when to come back",
    503: "the server is shutting down or too busy, or its model failed",
    504: "the request took too long",
}
_OF_REPLIES = tuple(_MEANINGS)


def responses(
    answer: type[BaseModel], *, errors: Sequence[int] = (401, 403), streams: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the answers of a route: the success, and failures by status."""
    success: dict[str, Any] = {"model": answer, "description": "the answer"}
    if streams:
        success["content"] = {"text/event-stream": {}}
    failures: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": _MEANINGS[status]} for status in errors
    }
    return {200: success, **failures}


def reply_route(body: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    """Return the options of a route that replies: it reads its body itself."""
    schema = {"$ref": _REFERENCE.format(model=body.__name__)}
    content = {"application/json": {"schema": schema}}
    return {
        "responses": responses(answer, errors=_OF_REPLIES, streams=True),
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def install(app: FastAPI, *, needs_key: bool) -> None:
    """Have the app describe the bodies that its routes read themselves, and its key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app, needs_key)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _described(app: FastAPI, needs_key: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    _, bodies = models_json_schema(
        [(ChatRequest, "validation"), (CompletionRequest, "validation")],
        ref_template=_REFERENCE,
    )
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(bodies["$defs"])
    # wrong paths are no models here, and wrong bodies are told in our own form
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    operations = [one for path in document["paths"].values() for one in path.values()]
    for operation in operations:
        operation["responses"].pop("422", None)
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        for operation in operations:
            operation["security"] = [{"key": []}]
        document["paths"]["/health"]["get"]["security"] = []
    return document
