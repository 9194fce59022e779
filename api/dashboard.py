"""The dashboard's shells and static files: thin pages whose modules fetch ``/v1`` and follow ``/v1/events``.

Nothing of a study is rendered here, so a page can be cached by nobody and leaks nothing; names, parameters and logs
reach the browser as JSON and become text there. No page has an inline script or style, or asks another host for
anything: the security headers that ``api.auth`` adds to every answer forbid it.
"""

from __future__ import annotations

import hashlib
import mimetypes
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scamp_service.errors import NotFound

HERE = Path(__file__).resolve().parent
STATIC = HERE / "static"

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def studies() -> HTMLResponse:
    return _page("studies")


@router.get("/studies/{study_id}")
def study(study_id: int) -> HTMLResponse:
    return _page("study", study_id=study_id)


@router.get("/studies/{study_id}/trials/{number}")
def trial(study_id: int, number: int) -> HTMLResponse:
    return _page("trial", study_id=study_id, number=number)


@router.get("/cluster")
def cluster() -> HTMLResponse:
    return _page("cluster")


@router.get("/static/{version}/{path:path}")
def static(version: str, path: str) -> Response:
    """A file of the front end. Its address carries the version of all files, so the current one may be kept forever."""
    if path not in _files():
        raise NotFound(f"There is no file {path!r} in the dashboard. Reload the page to get the current version.")
    kept = "public, max-age=31536000, immutable" if version == static_version() else "no-cache"
    return FileResponse(STATIC / path, media_type=_media_type(path), headers={"Cache-Control": kept})


@cache
def static_version() -> str:
    """Twelve hex digits over the names and contents of all static files."""
    digest = hashlib.sha256()
    for name in sorted(_files()):
        digest.update(name.encode() + b"\0" + (STATIC / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def _files() -> frozenset[str]:
    return frozenset(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())


def _media_type(path: str) -> str:
    """Not left to the host's registry of types: a module with another type than JavaScript is refused by browsers."""
    known = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    return known.get(Path(path).suffix) or mimetypes.guess_type(path)[0] or "text/plain"


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _page(name: str, **values: Any) -> HTMLResponse:
    template = _templates().get_template(f"{name}.html")
    html = template.render(page=name, static=f"/static/{static_version()}", **values)
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})
