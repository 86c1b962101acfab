"""Failures as OpenAI's API words them: a status, and one JSON object that says what is wrong."""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pilotfish.errors import (
    BackendError,
    ConfigError,
    ContextLengthExceeded,
    PilotfishError,
    PromptError,
    QueueFull,
    RequestTimedOut,
    ShuttingDown,
)

log = logging.getLogger("pilotfish.server")

# how messages of our own checks begin: the name of the field that is wrong
_FIELD = re.compile(r"([a-z_]+(?:\[\d+\])?)(?: token id| value)?(?: must |: )")
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A failure with everything its answer needs.

    param  the field of the request that is wrong, where it is one
    code   a word for programs to act on
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    @property
    def document(self) -> dict[str, Any]:
        """Return the answer's body as plain JSON values."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": _KINDS.get(self.status, default),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def response(self) -> Response:
        """Return the whole answer."""
        return json_response(self.document, status=self.status, headers=self.headers)


def json_response(
    document: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON answer. All of it is ASCII, so that no text of a client can break it."""
    return Response(
        json.dumps(document, allow_nan=False, separators=(",", ":")),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )


def api_error(error: Exception, *, param: str | None = None) -> ApiError:
    """Return the answer to any failure; one that is not foreseen tells the client nothing of it.

    `param` is the field a prompt came in, named where the message names none.
    """
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, PilotfishError):
        log.error("unexpected %s", type(error).__name__, exc_info=error)
        return ApiError(500, "an error of the server; its log says more", code="internal_error")
    message = f"{error} ({error.hint})" if error.hint else str(error)
    if isinstance(error, QueueFull):
        after = {"Retry-After": str(error.retry_after_seconds)}
        return ApiError(429, message, code="queue_full", headers=after)
    for kind, status, code in (
        (ShuttingDown, 503, "shutting_down"),
        (RequestTimedOut, 504, "request_timed_out"),
        (BackendError, 503, "backend_failed"),
    ):
        if isinstance(error, kind):
            return ApiError(status, message, code=code)
    if not isinstance(error, ConfigError):
        return ApiError(400, message)
    found = _FIELD.match(str(error))
    # what a schema comes in is known to the caller alone
    names_field = found is not None and found[1] != "json_schema"
    is_too_long = isinstance(error, ContextLengthExceeded)
    code = "context_length_exceeded" if is_too_long else "invalid_value"
    return ApiError(400, message, param=found[1] if found and names_field else param, code=code)


@contextmanager
def naming(param: str, kind: type[ConfigError] = PromptError) -> Iterator[None]:
    """Turn what is wrong with a prompt, or with what else is of that kind, into an answer that
    names the field it came in."""
    try:
        yield
    except kind as error:
        raise api_error(error, param=param) from error


def install(app: FastAPI) -> None:
    """Make every failure of the app an answer of this form."""

    async def answer(request: Request, error: Exception) -> Response:
        return api_error(error).response

    async def answer_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path}"
        headers = dict(error.headers or {})
        message, code = str(error.detail), None
        if error.status_code == 404:
            message, code = f"there is no {where}{_meant(app, request.url.path)}", "not_found"
        elif error.status_code == 405:
            headers["Allow"] = _methods(headers)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=headers)
            message, code = f"there is no {where}: the path has another method", "wrong_method"
        return ApiError(error.status_code, message, code=code, headers=headers).response

    app.add_exception_handler(PilotfishError, answer)
    app.add_exception_handler(ApiError, answer)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(Exception, answer)


def _meant(app: FastAPI, path: str) -> str:
    """Return a hint at the path that was meant: clients leave out `/v1`, or have it twice."""
    known = [known for known in app.openapi()["paths"] if "{" not in known]
    close = difflib.get_close_matches(path[:100], known, n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""


def _methods(headers: Mapping[str, str]) -> str:
    """Return the methods of a path: what can be read has HEAD, and all have OPTIONS."""
    methods = {"OPTIONS", *(name.strip() for name in headers.get("Allow", "").split(","))} - {""}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
