"""Users, tokens and what they may do, as frozen values; no I/O.

Studies belong to projects, and users have roles in projects. A token may do at most what its user may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Rights in a project, or of a token."""

    VIEWER = "viewer"  # read
    EDITOR = "editor"  # also submit studies, and change and delete them
    ADMIN = "admin"  # also give roles in the project

    def includes(self, other: Role) -> bool:
        """Whether it may do all that ``other`` may."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER = tuple(Role)


class UserKind(StrEnum):
    """A person, or a program. A service has tokens, but no password and no sessions."""

    PERSON = "person"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody with a name, which never changes and is never given to another one."""

    id: int
    name: str
    kind: UserKind
    is_admin: bool  # of the whole service: in all projects, and over users
    email: str
    created_at: float
    disabled_at: float | None = None
    devices: int | None = None  # most at once, as the next three None without a limit
    trials: int | None = None  # most at once
    device_hours: float | None = None  # most in a calendar month
    max_priority: int | None = None  # of studies


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that stands for a user. Only its hash is stored; the secret itself is shown once."""

    id: int
    user: str
    name: str
    role: Role  # at most
    project: str | None  # the only one; None: all of the user's
    created_at: float
    expires_at: float | None  # None: never
    last_used_at: float | None
    revoked_at: float | None
    is_session: bool  # of a browser


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks for a change, and from where."""

    name: str  # empty: whoever has the shared token, or anybody while there are no users
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change that somebody has asked for."""

    id: int
    time: float
    actor: str
    address: str
    action: str
    study_id: int | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Access:
    """The rights of a request: those of its user, limited by its token."""

    name: str = ""
    is_admin: bool = False
    roles: Mapping[str, Role] = field(default_factory=dict)  # by project
    most: Role = Role.ADMIN
    project: str | None = None  # the only one of the token

    def may(self, role: Role, project: str) -> bool:
        """Whether it may do in a project what ``role`` may."""
        if self.project not in (None, project) or not self.most.includes(role):
            return False
        own_role = Role.ADMIN if self.is_admin else self.roles.get(project)
        return own_role is not None and own_role.includes(role)

    @property
    def is_whole(self) -> bool:
        """Whether its token limits nothing."""
        return self.most is Role.ADMIN and self.project is None

    @property
    def sees_all(self) -> bool:
        """Whether it may read everything."""
        return self.is_admin and self.project is None

    @property
    def may_manage(self) -> bool:
        """Whether it may change users and read the audit log."""
        return self.is_admin and self.is_whole

    @property
    def projects(self) -> list[str] | None:
        """The projects that it may read; None: all."""
        if self.sees_all:
            return None
        if self.is_admin:
            return [self.project or ""]
        return sorted(project for project in self.roles if self.may(Role.VIEWER, project))


EVERYTHING = Access(is_admin=True)
"""The rights of whoever has the shared token, and of anybody while there are neither a token nor users."""
