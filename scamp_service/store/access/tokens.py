"""Tokens and sessions: a secret of 256 random bits, of which the database holds the hash."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, select

from scamp_service.access.model import Access, Actor, Role, Token
from scamp_service.errors import InvalidInput, NotFound
from scamp_service.store import schema
from scamp_service.store.parts.part import WritingPart

PREFIX = "scamp_"
"""Begins every secret, so that scanners for leaked secrets know one."""
NOTED_SECONDS = 60.0
"""How often the time at which a token was last used is written."""

_T, _U, _M = schema.tokens, schema.users, schema.members
_TOKEN = select(
    *(_T.c[name] for name in Token.__slots__ if name != "user"), _U.c.name.label("user")
).join(_U, _U.c.id == _T.c.user_id)  # fmt: skip
_ALL = _TOKEN.where(sa.not_(_T.c.is_session)).order_by(_T.c.id)
_OF_USER = _ALL.where(_U.c.name == bindparam("user"))
_VALID = (
    select(_T.c.id, _T.c.role, _T.c.project, _T.c.last_used_at, _T.c.expires_at, _U.c.id.label("user_id"))
    .add_columns(_U.c.name, _U.c.is_admin, _T.c.is_session)
    .join(_U, _U.c.id == _T.c.user_id)
    .where(_T.c.sha256 == bindparam("sha256"), _T.c.revoked_at.is_(None), _U.c.disabled_at.is_(None))
    .where(sa.or_(_T.c.expires_at.is_(None), _T.c.expires_at > bindparam("now", type_=schema.Real())))
)
_ROLES = select(_M.c.project, _M.c.role).where(_M.c.user_id == bindparam("user_id"))
_NOTE_USED = sa.update(_T).where(_T.c.id == bindparam("_id")).values(last_used_at=bindparam("_now"))
_REVOKE = (
    sa.update(_T)
    .where(sa.or_(_T.c.id == bindparam("_id"), _T.c.parent_id == bindparam("_id")), _T.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("_now"))
    .returning(_T.c.name)
)
_REVOKE_SECRET = (
    sa.update(_T)
    .where(_T.c.sha256 == bindparam("_sha256"), _T.c.is_session, _T.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("_now"))
)
_OLD_SESSIONS = sa.delete(_T).where(_T.c.is_session, _T.c.expires_at < bindparam("_now", type_=schema.Real()))


class Tokens(WritingPart):
    """Reads and writes of tokens."""

    def create(
        self,
        user: str,
        name: str,
        role: Role = Role.ADMIN,
        project: str | None = None,
        *,
        expires_at: float | None = None,
        is_session: bool = False,
        parent_id: int | None = None,
        now: float,
    ) -> tuple[Token, str]:
        """A new token of a user who is not disabled, and its secret. Raises ``NotFound`` and ``InvalidInput``.

        It is revoked together with the token ``parent_id``.
        """
        if expires_at is not None and expires_at <= now:
            raise InvalidInput("a token must expire later than now")
        with self._write() as connection:
            owner = connection.execute(
                select(_U.c.id).where(_U.c.name == user, _U.c.disabled_at.is_(None)).with_for_update(read=True)
            ).scalar()
            if owner is None:
                raise NotFound(f"there is no user {user!r} who may log in; `scamp users list` shows all")
            if is_session:
                connection.execute(_OLD_SESSIONS, {"_now": now})
            limits = {"role": role, "project": project, "expires_at": expires_at}
            token_id, secret = insert_token(
                connection, owner, name, **limits, is_session=is_session, parent_id=parent_id, created_at=now
            )
            action = "log in" if is_session else "create token"
            self._record(connection, action, user=user, token=name, role=role.value, project=project)
        return self.get(token_id), secret

    def begin_session(self, secret: str, address: str, *, expires_at: float, now: float) -> str | None:
        """The secret of a session that may do what the token with this ``secret`` may, at most until it expires; None
        if the token is not valid."""
        row = self._row(_VALID, sha256=_sha256(secret), now=now)
        if row is None or row.is_session:
            return None
        parent = {"role": row.role, "project": row.project, "parent_id": row.id}
        ends_at = min(expires_at, row.expires_at or expires_at)
        tokens = Tokens(self._database, actor=Actor(row.name, address))
        return tokens.create(row.name, "browser", **parent, expires_at=ends_at, is_session=True, now=now)[1]

    def get(self, token_id: int) -> Token:
        """The token with this id. Raises ``NotFound``."""
        token = self._first(Token, _TOKEN.where(_T.c.id == bindparam("id")), id=token_id)
        if token is None:
            raise NotFound(f"there is no token {token_id}; `scamp tokens list` shows all of yours")
        return token

    def every(self, user: str | None = None) -> list[Token]:
        """Tokens by id, without sessions: those of one user, or all."""
        return self._all(Token, _ALL) if user is None else self._all(Token, _OF_USER, user=user)

    def access_of(self, secret: str, *, now: float) -> Access | None:
        """The rights that go with this secret; None if it is not valid now. Notes that the token was used."""
        if not secret.startswith(PREFIX):
            return None
        row = self._row(_VALID, sha256=_sha256(secret), now=now)
        if row is None:
            return None
        if row.last_used_at is None or now - row.last_used_at >= NOTED_SECONDS:
            with self._write() as connection:
                connection.execute(_NOTE_USED, {"_id": row.id, "_now": now})
        roles = {entry.project: entry.role for entry in self._rows(_ROLES, user_id=row.user_id)}
        return Access(row.name, row.is_admin, roles, row.role, row.project)

    def revoke(self, token_id: int, *, now: float) -> None:
        """Make a token invalid for ever; no effect if it is. Raises ``NotFound``."""
        token = self.get(token_id)
        with self._write() as connection:
            if connection.execute(_REVOKE, {"_id": token_id, "_now": now}).first():
                self._record(connection, "revoke token", user=token.user, token=token.name)

    def log_out(self, secret: str, *, now: float) -> None:
        """End the session with this secret, if there is one."""
        with self._write() as connection:
            connection.execute(_REVOKE_SECRET, {"_sha256": _sha256(secret), "_now": now})


def insert_token(connection: sa.Connection, user_id: int, name: str, **fields: Any) -> tuple[int, str]:
    """(id, secret) of a new token of a user."""
    secret = PREFIX + secrets.token_urlsafe(32)
    row = {"user_id": user_id, "name": name, "sha256": _sha256(secret), **fields}
    return int(connection.execute(sa.insert(_T).returning(_T.c.id), row).scalar_one()), secret


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()
