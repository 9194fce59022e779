"""Views of users, tokens, roles and the audit log."""

from __future__ import annotations

from datetime import date, timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field

from api.views.studies import RequestBody
from api.views.view import Time, View
from scamp_service.access.model import Role, UserKind
from scamp_service.access.passwords import MAX_PASSWORD, MIN_PASSWORD

UserName = Annotated[str, Field(max_length=100, examples=["anna"])]
ProjectName = Annotated[str, Field(min_length=1, max_length=200)]
Password = Annotated[str, Field(min_length=MIN_PASSWORD, max_length=MAX_PASSWORD)]


class MeView(View):
    """Who asks, and what they may do."""

    name: Annotated[str, Field(description="empty with the shared token, and where there are no users")]
    is_admin: Annotated[bool, Field(description="of the whole service")]
    may_manage: Annotated[bool, Field(description="may change users and read the audit log")]
    roles: Annotated[dict[str, Role], Field(description="role in each project")]
    most: Annotated[Role, Field(description="what this token may do at most")]
    project: Annotated[str | None, Field(description="the only project of this token; null: all of the user's")]


class Limits(BaseModel):
    """Quotas of a user; null: no limit."""

    devices: Annotated[int | None, Field(ge=1, le=10**6, description="most devices at once, over all trials")] = None
    trials: Annotated[int | None, Field(ge=1, le=10**6, description="most trials that run at once")] = None
    device_hours: Annotated[float | None, Field(gt=0, le=1e9, description="most devices × hours a month")] = None
    max_priority: Annotated[int | None, Field(ge=-100, le=100, description="largest priority of studies")] = None


class UserView(View, Limits):
    """A user."""

    name: str
    kind: UserKind
    is_admin: Annotated[bool, Field(description="of the whole service")]
    email: str
    roles: Annotated[dict[str, Role], Field(description="role in each project")]
    created_at: Time
    disabled_at: Time | None


class NewUser(RequestBody):
    """A user to add."""

    name: UserName
    kind: UserKind = UserKind.PERSON
    is_admin: Annotated[bool, Field(description="of the whole service; the first user must be one")] = False
    email: Annotated[str, Field(max_length=300)] = ""
    password: Annotated[Password | None, Field(description="to log in on the dashboard; not for services")] = None


class NewUserView(View):
    """A new user, and the secret of the first token, which is shown this one time."""

    user: UserView
    secret: str


class ChangedUser(RequestBody, Limits):
    """Changes of a user; what is left out stays. A quota of null is none."""

    is_admin: bool | None = None
    email: Annotated[str | None, Field(max_length=300)] = None
    password: Password | None = None
    is_disabled: Annotated[bool | None, Field(description="whether all tokens of the user are refused")] = None


class MemberView(View):
    """The role of a user in a project."""

    user: str
    project: str
    role: Role


class Grant(RequestBody):
    """A role to give in a project."""

    role: Annotated[Role | None, Field(description="null takes it away")]


class TokenView(View):
    """A token, without its secret."""

    id: int
    user: str
    name: str
    role: Annotated[Role, Field(description="what it may do at most")]
    project: Annotated[str | None, Field(description="null: all projects of the user")]
    created_at: Time
    expires_at: Annotated[Time | None, Field(description="null: never")]
    last_used_at: Annotated[Time | None, Field(description="at most a minute old; null: never used")]
    revoked_at: Time | None


class NewToken(RequestBody):
    """A token to make."""

    name: Annotated[str, Field(min_length=1, max_length=100, description="what it is for", examples=["laptop"])]
    user: Annotated[UserName | None, Field(description="whose; default: yours; only admins name others")] = None
    role: Annotated[Role, Field(description="what it may do at most")] = Role.ADMIN
    project: Annotated[ProjectName | None, Field(description="default: all projects of the user")] = None
    days: Annotated[float | None, Field(gt=0, le=3650, description="until it expires; null: never")] = 90.0


class NewTokenView(View):
    """A token with its secret, which is shown this one time."""

    secret: str
    token: TokenView


class AuditView(View):
    """A change that somebody has asked for."""

    id: int
    time: Time
    actor: Annotated[str, Field(description="user; empty for the shared token, and where there are no users")]
    address: Annotated[str, Field(description="network address that the request came from")]
    action: Annotated[str, Field(examples=["submit"])]
    study_id: int | None
    detail: dict[str, Any]


class UseView(View):
    """Device time that the studies of one owner in one project have held in one period."""

    period: Annotated[date, Field(description="first day of the period (UTC)")]
    project: str
    owner: Annotated[str, Field(description="user; empty where there were no users")]
    device_hours: Annotated[float, Field(description="devices × hours")]
    mib_hours: Annotated[float, Field(description="MiB × hours that were reserved")]
    busy_share: Annotated[
        float | None,
        Field(description="how busy the devices were, from 0 to 1, in the hours that were measured; null: none were"),
    ]


class Period(StrEnum):
    """Periods of time by which use is summed up."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def first_day(self, day: date) -> date:
        """The first day of the period that has this one; a week begins on Monday."""
        match self:
            case Period.DAY:
                return day
            case Period.WEEK:
                return day - timedelta(days=day.weekday())
            case Period.MONTH:
                return day.replace(day=1)
