"""Users, and their roles in projects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from placement.packing.projects import Quota
from scamp_service.access.model import Role, User, UserKind
from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.store import schema
from scamp_service.store.access.tokens import insert_token
from scamp_service.store.parts.part import WritingPart
from scamp_service.store.rows import select_fields

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_U, _M = schema.users, schema.members
_USERS = select_fields(_U, User).order_by(_U.c.name)
_USER = _USERS.where(_U.c.name == bindparam("name"))
_ANY = select(_U.c.id).limit(1)
_PASSWORD = select(_U.c.password).where(_U.c.name == bindparam("name"), _U.c.disabled_at.is_(None))
_ADMINS = select(func.count()).where(_U.c.is_admin, _U.c.disabled_at.is_(None))
_MEMBERS = select(_U.c.name, _M.c.project, _M.c.role).join(_U, _U.c.id == _M.c.user_id)
_MEMBERS = _MEMBERS.order_by(_M.c.project, _U.c.name)
_LEAVE = sa.delete(_M).where(_M.c.user_id == bindparam("_user_id"), _M.c.project == bindparam("_project"))
_OF_SUBJECT = select(_U.c.name).where(_U.c.subject == bindparam("subject"))
LIMITS = ("devices", "trials", "device_hours", "max_priority")
_LIMITED = select(_U.c.name, *(_U.c[name] for name in LIMITS)).where(
    sa.or_(*(_U.c[name].is_not(None) for name in ("devices", "trials", "device_hours")))
)
_MAX_PRIORITY = select(_U.c.max_priority).where(_U.c.name == bindparam("name"))
NO_LIMITS: Mapping[str, float | None] = {}
NO_ROLES: Mapping[str, Role | None] = {}
_END_SESSIONS = (
    sa.update(schema.tokens)
    .where(schema.tokens.c.user_id == bindparam("_user_id"), schema.tokens.c.is_session)
    .where(schema.tokens.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("_now"))
)


class Users(WritingPart):
    """Reads and writes of users."""

    def exist(self) -> bool:
        """Whether there are any."""
        return self._value(_ANY) is not None

    def every(self) -> list[User]:
        """All users by name, also those that are disabled."""
        return self._all(User, _USERS)

    def get(self, name: str) -> User:
        """The user with this name. Raises ``NotFound``."""
        user = self._first(User, _USER, name=name)
        if user is None:
            raise NotFound(f"there is no user {name!r}; `scamp users list` shows all")
        return user

    def quotas(self) -> dict[str, Quota]:
        """User → quota, of those who have one."""
        return {row.name: Quota(row.devices, row.trials, row.device_hours) for row in self._rows(_LIMITED)}

    def expect_priority(self, name: str, priority: int) -> None:
        """Raise ``InvalidInput`` for a priority that a user may not give to studies."""
        most = self._value(_MAX_PRIORITY, name=name) if name else None
        if most is not None and priority > most:
            raise InvalidInput(f"priority is {priority}, but {name} may give studies at most {most}")

    def password(self, name: str) -> str | None:
        """The hash of a user's password; None if there is no such user, no password, or the user is disabled."""
        hashed: str | None = self._value(_PASSWORD, name=name)
        return hashed

    def create(
        self,
        name: str,
        kind: UserKind = UserKind.PERSON,
        *,
        is_admin: bool = False,
        email: str = "",
        password: str | None = None,
        subject: str | None = None,
        token_until: float | None = None,
        now: float,
    ) -> tuple[User, str]:
        """Add a user, and return it with the secret of a first token, valid until ``token_until``; ``password`` is a
        hash, and ``subject`` the name that an OpenID Connect provider has for the user.

        The first user must be an admin who is a person: from then on nobody is let in without a token.

        Raises ``InvalidInput``, and ``Conflict`` if the name is taken.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name[:100]!r} is no name of a user: write letters, digits and . _ @ + -, at most 100")
        row = {"name": name, "kind": kind, "is_admin": is_admin, "email": email, "password": password}
        row["subject"] = subject
        with self._write() as connection:
            self._database.order_commits(connection)
            if not (is_admin and kind is UserKind.PERSON) and not connection.execute(_ANY).first():
                raise InvalidInput("the first user must be a person and an admin, or nobody could add others")
            insert = self._insert_new(_U, "name", returns="id")
            user_id = connection.execute(insert, {**row, "created_at": now}).scalar()
            if user_id is None:
                raise Conflict(f"there is a user {name!r} already; names are not given again")
            limits = {"role": Role.ADMIN, "project": None, "expires_at": token_until}
            _, secret = insert_token(connection, user_id, "first", **limits, is_session=False, created_at=now)
            self._record(connection, "create user", user=name, kind=kind.value, is_admin=is_admin)
        return self.get(name), secret

    def change(
        self,
        name: str,
        *,
        is_admin: bool | None = None,
        email: str | None = None,
        password: str | None = None,
        is_disabled: bool | None = None,
        limits: Mapping[str, float | None] = NO_LIMITS,
        now: float,
    ) -> User:
        """Change what is not None. The tokens of a user who is disabled are not valid meanwhile; a new ``password``
        (its hash) ends the sessions. ``limits`` are new values of ``LIMITS``, None for no limit.

        Raises ``NotFound``, and ``Conflict`` if no admin would be left.
        """
        user = self.get(name)
        changes: dict[str, Any] = {"is_admin": is_admin, "email": email, "password": password}
        changes = {key: value for key, value in changes.items() if value is not None}
        shown: dict[str, Any] = {key: "***" if key == "password" else value for key, value in changes.items()}
        if is_disabled is not None:
            shown["is_disabled"] = is_disabled
            changes["disabled_at"] = (user.disabled_at or now) if is_disabled else None
        changes |= limits
        shown |= limits
        if not changes:
            return user
        with self._write() as connection:
            self._database.order_commits(connection)
            connection.execute(sa.update(_U).where(_U.c.name == name).values(**changes))
            if not connection.execute(_ADMINS).scalar():
                raise Conflict(f"{name} is the last admin: make somebody else one first")
            if password is not None:
                connection.execute(_END_SESSIONS, {"_user_id": user.id, "_now": now})
            self._record(connection, "change user", user=name, **shown)
        return self.get(name)

    def log_in(
        self,
        subject: str,
        name: str,
        *,
        email: str = "",
        roles: Mapping[str, Role | None] = NO_ROLES,
        is_admin: bool | None = None,
        now: float,
    ) -> str:
        """The name of the user whom an OpenID Connect provider calls ``subject``; a new user if there is none yet.

        ``roles`` take the place of those in these projects. The last admin stays one. Raises ``Conflict`` if the new
        user's name is taken: a provider must not make somebody the user of another one.
        """
        known_name: str | None = self._value(_OF_SUBJECT, subject=subject)
        if known_name is None:
            self.create(name, is_admin=bool(is_admin), email=email, subject=subject, token_until=now, now=now)
        known_name = known_name or name
        if is_admin is not None and is_admin is not self.get(known_name).is_admin:
            with suppress(Conflict):
                self.change(known_name, is_admin=is_admin, now=now)
        before = {project: role for user, project, role in self.members() if user == known_name}
        for project, role in roles.items():
            if before.get(project) is not role:
                self.grant(known_name, project, role)
        return known_name

    def members(self, project: str | None = None) -> list[tuple[str, str, Role]]:
        """(user, project, role) of one project or all, by project and name."""
        statement = _MEMBERS if project is None else _MEMBERS.where(_M.c.project == project)
        return [(row.name, row.project, row.role) for row in self._rows(statement)]

    def grant(self, name: str, project: str, role: Role | None) -> None:
        """Give a user a role in a project instead of any other; None: take it away. Raises ``NotFound``."""
        with self._write() as connection:
            self._database.order_commits(connection)
            user_id = connection.execute(select(_U.c.id).where(_U.c.name == name)).scalar()
            if user_id is None:
                raise NotFound(f"there is no user {name!r}; `scamp users list` shows all")
            connection.execute(_LEAVE, {"_user_id": user_id, "_project": project})
            if role is not None:
                connection.execute(sa.insert(_M), {"user_id": user_id, "project": project, "role": role})
            self._record(connection, "grant role", user=name, project=project, role=role.value if role else None)
