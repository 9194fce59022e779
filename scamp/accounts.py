"""The parts of the SDK about users, their roles in projects, and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import quote

from scamp.connection import Connection, JsonObject


class Users:
    """Users of a service, and their roles in projects; ``Client.users``. Only admins may change most of it."""

    def __init__(self, http: Connection) -> None:
        self._http = http

    def list(self) -> Sequence[JsonObject]:
        """All users by name, or only yourself if you are no admin."""
        return cast(Sequence[JsonObject], self._http.request("GET", "/v1/users"))

    def add(
        self,
        name: str,
        *,
        is_admin: bool = False,
        is_service: bool = False,
        email: str = "",
        password: str | None = None,
        role: str | None = None,
        project: str = "default",
    ) -> JsonObject:
        """Add a user, and return it with the secret of its first token, which nothing shows again.

        With a ``role`` the user gets it in the project. The first user must be an admin. Raises ``InvalidInput`` and
        ``Conflict``.
        """
        kind = "service" if is_service else "person"
        body = {"name": name, "kind": kind, "is_admin": is_admin, "email": email, "password": password}
        made = self._http.request("POST", "/v1/users", json=body)
        if role is not None:
            self.grant(name, role, project)
        return made

    def change(self, name: str, **changes: Any) -> JsonObject:
        """Change is_admin, email, password, is_disabled, or the quotas devices, trials, device_hours (a month) and
        max_priority of a user, None for no limit. Raises ``NotFound`` and ``Conflict``."""
        return self._http.change("PATCH", f"/v1/users/{quote(name, safe='')}", json=changes)

    def grant(self, name: str, role: str | None, project: str = "default") -> None:
        """Give a user the role viewer, editor or admin in a project, or none. Raises ``NotFound``."""
        path = f"/v1/projects/{quote(project, safe='')}/members/{quote(name, safe='')}"
        self._http.change("PUT", path, json={"role": role})

    def members(self, project: str = "default") -> Sequence[JsonObject]:
        """Who has which role in a project, besides the admins of the service."""
        path = f"/v1/projects/{quote(project, safe='')}/members"
        return cast(Sequence[JsonObject], self._http.request("GET", path))


class Tokens:
    """Tokens of a user; ``Client.tokens``."""

    def __init__(self, http: Connection) -> None:
        self._http = http

    def list(self, *, every: bool = False) -> Sequence[JsonObject]:
        """Your tokens, or those of all users, without their secrets."""
        params = {"every": "true"} if every else {}
        return cast(Sequence[JsonObject], self._http.request("GET", "/v1/tokens", params=params))

    def create(
        self,
        name: str,
        *,
        user: str | None = None,
        role: str = "admin",
        project: str | None = None,
        days: float | None = 90.0,
    ) -> JsonObject:
        """Make a token, and return it with its secret, which nothing shows again. ``days``: until it expires."""
        body = {"name": name, "user": user, "role": role, "project": project, "days": days}
        return self._http.request("POST", "/v1/tokens", json=body)

    def revoke(self, token_id: int) -> None:
        """Make a token invalid for ever. Raises ``NotFound``."""
        self._http.change("DELETE", f"/v1/tokens/{token_id}")
