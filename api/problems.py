"""Answers every error as RFC 9457 ``application/problem+json``: our errors, FastAPI's, and unexpected ones.

The answer to an unexpected error reveals no internals. Also reads a request's body up to a size limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scamp_service.errors import ScampError

log = logging.getLogger("scamp.api")

BODY_SECONDS = 120.0
MEDIA_TYPE = "application/problem+json"
_DETAILS = {
    404: "there is nothing at this address; GET /openapi.json lists all addresses",
    405: "this address does not support that method; GET /openapi.json lists the methods of each address",
}


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """A problem as an answer; ``more`` are further members of its body."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **more}
    return Response(json.dumps(body), status, dict(headers or {}), MEDIA_TYPE)


def install_problem_handlers(app: FastAPI, missing_page: Callable[[Request, str], Response]) -> None:
    """Make the app answer every ``ScampError``, invalid parameter and ``HTTPException`` with a problem.

    A browser that asks for a page which does not exist gets ``missing_page`` with the detail of the problem.
    """
    app.state.missing_page = missing_page
    app.add_exception_handler(ScampError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid_parameter)
    app.add_exception_handler(HTTPException, _http)


def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, ScampError)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(error.status)
    if error.status == 404:
        return _missing(request, str(error))
    return problem(error.status, str(error), headers)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = _DETAILS.get(error.status_code, error.detail)
    if error.status_code == 404:
        return _missing(request, detail)
    headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
    return problem(error.status_code, detail, headers)


def _missing(request: Request, detail: str) -> Response:
    is_page = not request.url.path.startswith(("/v1/", "/static/")) and "text/html" in request.headers.get("accept", "")
    if is_page:
        page: Response = request.app.state.missing_page(request, detail)
        return page
    return problem(404, detail)


def _allowed(request: Request) -> str:
    """Methods of this address. Starlette names only those of the first of several routes with the same path."""
    methods: set[str] = set()
    for route in iter_route_contexts(request.app.routes):
        if route.path_regex.match(request.url.path):
            methods |= route.methods or set()
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [(str(detail["loc"][-1]), detail["loc"][0], detail["msg"]) for detail in error.errors()]
    if any(where == "path" for _, where, _ in errors):
        return _missing(request, _DETAILS[404])
    words = "; ".join(f"{where} parameter {name}: {message}" for name, where, message in errors)
    fields = [{"field": name, "message": message} for name, _, message in errors]
    return problem(422, words, errors=fields)


class Unexpected:
    """Middleware that answers 500 to an exception without a handler. The traceback goes to the log, not the client.

    It answers 503 to a request that uvicorn cancels because the service ends, so that clients repeat it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, note_start)
        except ClientDisconnect:
            return  # nobody waits for an answer
        except asyncio.CancelledError:
            if scope["type"] != "http" or started:
                raise
            detail = "the service is ending and may have done what was asked for; send the same request again"
            await problem(503, detail, {"Retry-After": "1"})(scope, receive, send)
        except Exception:
            if scope["type"] != "http" or started:
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            answer = problem(500, "ScaMP failed on this request; see the log of the API for the reason")
            await answer(scope, receive, send)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises ``HTTPException`` 413 as soon as it is known to be larger than ``limit`` bytes.

    Raises ``HTTPException`` 408 when the body has not arrived after ``BODY_SECONDS``.
    """
    declared = request.headers.get("content-length", "0")
    body = bytearray()
    if declared.isdecimal() and (len(declared) > 20 or int(declared) > limit):
        raise _too_large(limit)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise HTTPException(408, f"the body did not arrive within {BODY_SECONDS:g} s; send it again") from None
    return bytes(body)


def _too_large(limit: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {limit} bytes, the limit at this address")
