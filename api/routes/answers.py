"""Shared by the routes: the documented problems, and pages that link to the next."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from api.problems import MEDIA_TYPE
from api.views.view import Page


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for these statuses and 503, which every route can answer."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    words = {
        404: "No such study or trial",
        408: "The body did not arrive in time",
        409: "The idempotency key was used for another study, or the study has not ended",
        413: "The body is too large",
        415: "The body is not application/json",
        422: "The study or a parameter is not valid; nothing was stored",
        503: "The database cannot be reached, too much is under way, or the service is ending; try again after "
        "`Retry-After` seconds",
    }
    return {status: {"description": words[status], "content": content} for status in (*statuses, 503)}


def page_of(request: Request, response: Response, rows: list[Any], limit: int, cursor: Any, view: Any) -> Page[Any]:
    """One page of a list, with a ``Link`` header to the next one.

    ``rows`` has up to ``limit`` + 1 items; the extra one only shows that there is a next page. ``cursor`` gives the
    ``after`` of an item, ``view`` its answer.
    """
    items = rows[:limit]
    following = cursor(items[-1]) if len(rows) > limit else None
    if following is not None:
        url = request.url.include_query_params(after=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return Page(items=[view(item) for item in items], next=following)
