"""Serves the dashboard's pages and static files. The pages are empty; their modules fetch ``/v1`` and ``/v1/events``.

No data of a study is rendered here: names, parameters and logs reach the browser as JSON and become text there. No
page has an inline script or style or loads anything from another host; the headers of ``api.access.guard`` forbid it.
"""

from __future__ import annotations

import hashlib
import mimetypes
import posixpath
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from api.access.allowed import access_of, only_allowed
from api.routes.parameters import Number, StudyId
from api.views.charts import MOST_CURVES
from scamp_service.access.model import Role
from scamp_service.errors import NotFound, Unavailable

HERE = Path(__file__).resolve().parent
STATIC = HERE / "static"
_IMPORT = re.compile(r'^(?:import|\}) .*"(\.{1,2}/.+)";$', re.MULTILINE)

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse, dependencies=[Depends(only_allowed)])


@router.get("/")
def studies(request: Request) -> HTMLResponse:
    """Page with all studies."""
    return _page(request, "studies")


@router.get("/compare")
def compare(request: Request) -> HTMLResponse:
    """Page that compares studies."""
    return _page(request, "compare")


@router.get("/new")
def new(request: Request) -> HTMLResponse:
    """Page to submit a study."""
    return _page(request, "new")


@router.get("/studies/{study_id}")
def study(request: Request, study_id: StudyId) -> HTMLResponse:
    """Page of one study. Raises ``NotFound``."""
    project = None
    with suppress(Unavailable):  # the page itself says that the database cannot be reached
        project = request.app.state.store.studies.get(study_id).project
    is_filtered = not request.query_params.keys().isdisjoint(("state", "where"))
    ahead = [f"/v1/studies/{study_id}", *([] if is_filtered else [f"/v1/studies/{study_id}/history"])]
    return _page(request, "study", project=project, ahead=ahead, study_id=study_id, most_curves=MOST_CURVES)


@router.get("/studies/{study_id}/trials/{number}")
def trial(request: Request, study_id: StudyId, number: Number) -> HTMLResponse:
    """Page of one trial. Raises ``NotFound``."""
    project = None
    with suppress(Unavailable):
        request.app.state.store.trials.numbered(study_id, number)
        project = request.app.state.store.studies.project(study_id)
    return _page(request, "trial", project=project, study_id=study_id, number=number)


@router.get("/team")
def team(request: Request) -> HTMLResponse:
    """Page of users, roles, tokens and who changed what."""
    return _page(request, "team")


@router.get("/cluster")
def cluster(request: Request) -> HTMLResponse:
    """Page of the cluster."""
    return _page(request, "cluster")


@router.get("/static/{version}/{path:path}")
async def static(version: str, path: str) -> Response:
    """A file of the front end. Its address contains the version of all files, so browsers may cache it forever."""
    if path not in _files():
        raise NotFound(f"the dashboard has no file {path!r}; reload the page to get the current version")
    cache_control = "public, max-age=31536000, immutable" if version == static_version() else "no-cache"
    return Response(_content(path), media_type=_media_type(path), headers={"Cache-Control": cache_control})


def missing_page(request: Request, detail: str) -> HTMLResponse:
    """Page for an address that does not exist."""
    return _page(request, "missing", 404, detail=detail)


@cache
def static_version() -> str:
    """Version of the static files: 12 hex digits of a SHA-256 over their names and contents."""
    digest = hashlib.sha256()
    for name in sorted(_files()):
        digest.update(name.encode() + b"\0" + (STATIC / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def _modules(page: str) -> list[str]:
    """Every module that a page's own module imports, so that the browser asks for all of them at once."""
    modules: list[str] = []
    waiting = [f"{page}.js"] if f"{page}.js" in _files() else []
    while waiting:
        module = waiting.pop()
        if module not in modules:
            modules.append(module)
            folder = posixpath.dirname(module)
            names = _IMPORT.findall((STATIC / module).read_text())
            waiting += [posixpath.normpath(posixpath.join(folder, name)) for name in names]
    return modules


@cache
def _files() -> frozenset[str]:
    return frozenset(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())


def _media_type(path: str) -> str:
    """MIME type of a file. It does not rely on the host's registry: browsers refuse a module that is not JavaScript."""
    media_types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    return media_types.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"


@cache
def _content(path: str) -> bytes:
    """A static file, read once: a page asks for seventy."""
    return (STATIC / path).read_bytes()


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _page(
    request: Request,
    name: str,
    status: int = 200,
    project: str | None = None,
    ahead: Sequence[str] = (),
    **values: Any,
) -> HTMLResponse:
    """A page, about something in ``project`` if it is given. Its style sheet hides what the user may not do.

    The browser asks ``ahead`` for these addresses, while it still loads the modules that will ask for them.
    """
    access = access_of(request)
    template = _templates().get_template(f"{name}.html")
    values = {
        "page": name,
        "static": f"/static/{static_version()}",
        "modules": _modules(name),
        "ahead": ahead,
        **values,
    }
    values["login"] = access.name or bool(request.app.state.settings.api_token)
    values["edits"] = project is not None and access.may(Role.EDITOR, project)
    values["submits"] = any(access.may(Role.EDITOR, each) for each in (access.project or "", *access.roles))
    html = template.render(**values)
    return HTMLResponse(html, status, headers={"Cache-Control": "no-store"})
