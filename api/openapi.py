"""Describes the API as OpenAPI: FastAPI's schema, and what FastAPI cannot find by itself.

That is the body that we parse ourselves, the events, the ways to show the token, and the answers of the middleware.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.problems import MEDIA_TYPE
from api.views.events import EventView
from api.views.studies import NewStudy, NewStudyForm
from api.views.view import Problem

_REFERENCE = "#/components/schemas/{model}"
_ADDED = {
    "400": "A query parameter is not known; the answer names those that are",
    "401": "A token is needed, or it is wrong",
    "403": "You may not do this, or a page of another origin may not write",
    "404": "There is nothing at this address",
    "421": "This server does not answer for this host name",
    "422": "A parameter is not valid; nothing was changed",
    "429": "Too many requests; try again after `Retry-After` seconds",
}
"""Answers that the routes do not name: those of the middleware and those to parameters that are not valid."""


def describe(app: FastAPI, cookie: str, *, needs_token: bool) -> dict[str, Any]:
    """OpenAPI document of the app, whose session cookie has this name. ``needs_token``: it was started with a token."""
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description="Tune models that may not fit on one GPU. Errors are application/problem+json (RFC 9457).",
        routes=app.routes,
    )
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _add_answers(operation, path, method, needs_token)
            if not path.startswith("/v1/"):
                operation["security"] = []  # health checks are open
    _add_models(schema["components"]["schemas"])
    schema["components"]["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "SCAMP_API_TOKEN of the service"},
        "session": {"type": "apiKey", "in": "cookie", "name": cookie, "description": "set by the page /login"},
    }
    schema["security"] = [{"token": []}, {"session": []}] if needs_token else []
    return schema


def _add_answers(operation: dict[str, Any], path: str, method: str, needs_token: bool) -> None:
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]  # FastAPI's answer to an invalid parameter, which ours below replaces
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    statuses = {"421"}
    if path.startswith("/v1/"):
        statuses |= {"400", "429"} | ({"401", "403"} if needs_token else set())
    if method != "get":
        statuses.add("403")
    if "path" in places:
        statuses.add("404")
    if "query" in places or "requestBody" in operation:
        statuses.add("422")
    for status in sorted(statuses - responses.keys()):
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        responses[status] = {"description": _ADDED[status], "content": content}


def _add_models(components: dict[str, Any]) -> None:
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    for model in (NewStudy, NewStudyForm, EventView, Problem):
        schema = model.model_json_schema(ref_template=_REFERENCE)
        components.update(schema.pop("$defs", {}))
        components[model.__name__] = schema
