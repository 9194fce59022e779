"""Common to the answers of all resources: the problems that are documented, and pages that link to the next one."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from api.problems import MEDIA_TYPE
from api.views.view import Page


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    words = {
        404: "No such study or trial",
        409: "The idempotency key was used for another study",
        413: "The body is too large",
        415: "The body is not application/json",
        422: "The study or a parameter is not valid; nothing was stored",
        503: "The database cannot be reached",
    }
    return {status: {"description": words[status], "content": content} for status in (*statuses, 503)}


def page_of(request: Request, response: Response, found: list[Any], limit: int, cursor: Any, view: Any) -> Page[Any]:
    """``found`` has one item more than asked for when there is a next page."""
    items = found[:limit]
    following = cursor(items[-1]) if len(found) > limit else None
    if following is not None:
        url = request.url.include_query_params(after=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Page(items=[view(item) for item in items], next=following)
