"""A service with users of every kind, and all the addresses that it answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
from fastapi.routing import iter_route_contexts

from api.access.sessions import COOKIE, session_of
from scamp_service.access.model import Role, UserKind
from scamp_service.store.store import Store
from tests.services.serving import InProcess, fill, settings_in

SHARED = "0123456789abcdef-shared"


def secret_of(store: Store, user: str, *, role: Role = Role.ADMIN, project: str | None = None, **options: Any) -> str:
    return store.tokens.create(user, "a test", role, project, now=time.time(), **options)[1]


class Team:
    """A service with users of every kind, and a study in each of two projects."""

    def __init__(self, folder: Path) -> None:
        self.api = InProcess(settings_in(folder, api_token=SHARED))
        self.store = store = self.api.store
        now = time.time()
        store.users.create("root", is_admin=True, now=now)
        for name, project, role in (
            ("viewer", "vision", Role.VIEWER),
            ("editor", "vision", Role.EDITOR),
            ("keeper", "vision", Role.ADMIN),
            ("other", "speech", Role.ADMIN),
        ):
            store.users.create(name, now=now)
            store.users.grant(name, project, role)
        store.users.create("robot", UserKind.SERVICE, now=now)
        store.users.grant("robot", "vision", Role.EDITOR)
        store.users.create("nobody", now=now)
        self.study, self.others = fill(store, project="vision"), fill(store, project="speech")
        self.secrets = {name: secret_of(store, name) for name in ("root", "viewer", "editor", "keeper", "other")}
        self.secrets |= {name: secret_of(store, name) for name in ("robot", "nobody")} | {"shared": SHARED}
        self.secrets["reader"] = secret_of(store, "editor", role=Role.VIEWER)
        self.secrets["elsewhere"] = secret_of(store, "root", project="speech")
        token, self.secrets["revoked"] = store.tokens.create("root", "lost", now=now)
        store.tokens.revoke(token.id, now=now)
        self.secrets["expired"] = store.tokens.create("root", "old", expires_at=now - 10, now=now - 20)[1]
        store.users.create("gone", is_admin=True, now=now)
        self.secrets["disabled"] = secret_of(store, "gone")
        store.users.change("gone", is_disabled=True, now=now)
        self.secrets["wrong"] = "scamp_" + "x" * 43

    def ask(self, who: str, method: str, path: str, *, by_cookie: bool = False, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}
        if who and by_cookie:
            secret = session_of(SHARED, 2**40) if who == "shared" else self.secrets[who]
            headers = {"Cookie": f"{COOKIE}={secret}"}
        return self.api.request(method, path, headers=headers | options.pop("headers", {}), **options)


def addresses(team: Team, study_id: int | None = None) -> list[tuple[str, str, str]]:
    """(method, route, address) of everything that the app answers, about the study of the team or another one."""
    values = {
        "study_id": study_id or team.study.id,
        "number": 0,
        "name:path": "a.txt",
        "name": "editor",
        "project": "vision",
        "file_format": "csv",
    }
    values |= {"token_id": 1, "version": "current", "path:path": "style.css"}
    of_all: list[tuple[str, str, str]] = []
    for route in iter_route_contexts(team.api.app.routes):
        template = path = route.path or ""
        for name, value in values.items():
            path = path.replace("{" + name + "}", str(value))
        query = "?add=1xA100-40" if "what-if" in path else ""
        of_all += [(method, template, path + query) for method in sorted(route.methods or ()) if method != "HEAD"]
    return of_all
