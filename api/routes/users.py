"""Users, their roles and tokens, and the audit log."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.access.allowed import TheAccess, expect, expect_to_manage
from api.routes.answers import page_of, problems
from api.routes.parameters import LARGEST_ID, After, StudyId, TheStore, Whole
from api.views.users import (
    AuditView,
    ChangedUser,
    Grant,
    MemberView,
    MeView,
    NewToken,
    NewTokenView,
    NewUser,
    NewUserView,
    Period,
    TokenView,
    UserView,
    UseView,
)
from api.views.view import Page
from placement.packing.device_time import DeviceTime, day_of
from scamp_service.access.model import Access, AuditEntry, Role, Token, User, UserKind
from scamp_service.access.passwords import hash_password
from scamp_service.errors import Forbidden, InvalidInput
from scamp_service.store.access.users import LIMITS
from scamp_service.store.store import Store

router = APIRouter(prefix="/v1", tags=["users"])

DAY_SECONDS = 86_400.0
DAYS = 90
"""How long the first token of a user is valid."""
AT_ONCE = 1000
UserName = Annotated[str, Path(max_length=100, description="the user's name")]
Project = Annotated[str, Path(max_length=200, description="the project's name")]
TokenId = Annotated[Whole, Path(ge=1, le=LARGEST_ID, description="the token's id")]


@router.get("/me", responses=problems())
def get_me(access: TheAccess) -> MeView:
    """Get who you are, and what you may do."""
    return MeView(
        name=access.name,
        is_admin=access.is_admin,
        may_manage=access.may_manage,
        roles=dict(access.roles),
        most=access.most,
        project=access.project,
    )


@router.get("/users", responses=problems())
def list_users(store: TheStore, access: TheAccess) -> list[UserView]:
    """List the users by name: all for admins, yourself otherwise."""
    users = store.users.every() if access.may_manage else [store.users.get(access.name)] if access.name else []
    roles = _roles(store)
    return [_user_view(user, roles.get(user.name, {})) for user in users]


@router.post("/users", status_code=201, responses=problems(409, 422))
def create_user(new: NewUser, request: Request, store: TheStore, access: TheAccess) -> NewUserView:
    """Add a user. From the first one on, everybody needs a token or a password. Only for admins."""
    expect_to_manage(access)
    if new.password is not None and new.kind is UserKind.SERVICE:
        raise InvalidInput("a service has tokens, but no password")
    hashed = hash_password(new.password) if new.password is not None else None
    now = time.time()
    user, secret = store.users.create(
        new.name,
        new.kind,
        is_admin=new.is_admin,
        email=new.email,
        password=hashed,
        token_until=now + DAYS * DAY_SECONDS,
        now=now,
    )
    request.app.state.has_users = True
    return NewUserView(user=_user_view(user, {}), secret=secret)


@router.patch("/users/{name}", responses=problems(404, 409, 422))
def change_user(name: UserName, changed: ChangedUser, store: TheStore, access: TheAccess) -> UserView:
    """Change a user. Only for admins, but everybody may change one's own address and password."""
    fields = changed.model_dump(exclude_none=True, exclude=set(LIMITS))
    limits = changed.model_dump(exclude_unset=True, include=set(LIMITS))
    is_own = name == access.name and access.is_whole
    if limits or not (is_own and fields.keys() <= {"email", "password"}):
        expect_to_manage(access)
    if "password" in fields:
        if store.users.get(name).kind is UserKind.SERVICE:
            raise InvalidInput("a service has tokens, but no password")
        fields["password"] = hash_password(fields["password"])
    user = store.users.change(name, **fields, limits=limits, now=time.time())
    return _user_view(user, _roles(store).get(name, {}))


@router.get("/projects/{project}/members", responses=problems())
def list_members(project: Project, store: TheStore, access: TheAccess) -> list[MemberView]:
    """List who has which role in a project, besides the admins of the service."""
    expect(access, Role.VIEWER, project)
    return [MemberView(user=user, project=name, role=role) for user, name, role in store.users.members(project)]


@router.put("/projects/{project}/members/{name}", status_code=204, responses=problems(404))
def grant_role(project: Project, name: UserName, grant: Grant, store: TheStore, access: TheAccess) -> None:
    """Give a user a role in a project, or take it away. For admins of the project and of the service."""
    expect(access, Role.ADMIN, project)
    store.users.grant(name, project, grant.role)


@router.get("/tokens", responses=problems())
def list_tokens(
    store: TheStore,
    access: TheAccess,
    every: Annotated[bool, Query(description="those of all users; only for admins")] = False,
) -> list[TokenView]:
    """List your tokens, without their secrets."""
    if every:
        expect_to_manage(access)
    return [_token_view(token) for token in store.tokens.every(None if every else access.name)]


@router.post("/tokens", status_code=201, responses=problems(404, 422))
def create_token(new: NewToken, store: TheStore, access: TheAccess) -> NewTokenView:
    """Make a token. Its secret is shown this one time. A token that is limited makes none."""
    user = new.user or access.name
    if user != access.name:
        expect_to_manage(access)
    elif not access.is_whole:
        raise Forbidden("this token is limited, so it makes no others: log in, or take one that is not")
    if not user:
        raise InvalidInput("say whose token it is (user): this request is nobody's")
    now = time.time()
    expires_at = now + new.days * DAY_SECONDS if new.days is not None else None
    token, secret = store.tokens.create(user, new.name, new.role, new.project, expires_at=expires_at, now=now)
    return NewTokenView(secret=secret, token=_token_view(token))


@router.delete("/tokens/{token_id}", status_code=204, responses=problems(404))
def revoke_token(token_id: TokenId, store: TheStore, access: TheAccess) -> None:
    """Make a token invalid for ever, and end the sessions that began with it. A token that is limited revokes none."""
    if store.tokens.get(token_id).user != access.name or not access.is_whole:
        expect_to_manage(access)
    store.tokens.revoke(token_id, now=time.time())


@router.get("/studies/{study_id}/changes", responses=problems(404))
def list_changes(
    study_id: StudyId,
    request: Request,
    response: Response,
    store: TheStore,
    access: TheAccess,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
) -> Page[AuditView]:
    """List who has submitted and changed a study, the newest change first. Only admins see network addresses."""
    store.studies.get(study_id)
    rows = store.audit.page(after=after, limit=limit + 1, study_id=study_id)
    return page_of(request, response, rows, limit, lambda row: row.id, lambda row: _audit_view(row, access))


@router.get("/usage", responses=problems(422))
def get_usage(
    store: TheStore,
    access: TheAccess,
    first: Annotated[
        date | None, Query(description="first day (UTC); default: the first of this month, or of its week")
    ] = None,
    last: Annotated[date | None, Query(description="last day (UTC); default: today")] = None,
    by: Annotated[Period, Query(description="periods by which it is summed up")] = Period.MONTH,
) -> list[UseView]:
    """Get the devices × hours of each owner in each project that you may read, by period; also of deleted studies."""
    now = time.time()
    last = last or day_of(now)
    sums: dict[tuple[date, str, str], DeviceTime] = {}
    for use in store.usage.of_days(first or by.first_day(last.replace(day=1)), last, now=now):
        if access.projects is None or use.project in access.projects:
            key = by.first_day(use.day), use.project, use.owner
            sums[key] = sums.get(key, DeviceTime()) + use.time
    return [
        UseView(
            period=period,
            project=project,
            owner=owner,
            device_hours=held.device_seconds / 3600,
            mib_hours=held.mib_seconds / 3600,
            busy_share=held.busy_share,
        )
        for (period, project, owner), held in sorted(sums.items())
    ]


@router.get("/audit", responses=problems())
def list_audit(
    request: Request,
    response: Response,
    store: TheStore,
    access: TheAccess,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    actor: Annotated[str | None, Query(description="only changes by this user")] = None,
    study_id: Annotated[Whole | None, Query(ge=1, le=LARGEST_ID, description="only changes of this study")] = None,
) -> Page[AuditView]:
    """List every change that somebody has asked for, the newest first. Only for admins."""
    expect_to_manage(access)
    rows = store.audit.page(after=after, limit=limit + 1, actor=actor, study_id=study_id)
    return page_of(request, response, rows, limit, lambda row: row.id, lambda row: _audit_view(row, access))


@router.get(
    "/audit.csv",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}, **problems()},
)
def download_audit(store: TheStore, access: TheAccess) -> StreamingResponse:
    """Download the audit log as CSV, the newest change first. Only for admins."""
    expect_to_manage(access)
    headers = {"Content-Disposition": 'attachment; filename="audit.csv"'}
    return StreamingResponse(_csv(store), media_type="text/csv", headers=headers)


def _csv(store: Store) -> Iterator[str]:
    yield "id,time,actor,address,action,study_id,detail\r\n"
    after = 0
    while rows := store.audit.page(after=after, limit=AT_ONCE):
        text = io.StringIO()
        writer = csv.writer(text)
        for row in rows:
            study_id = "" if row.study_id is None else row.study_id
            writer.writerow(
                [row.id, row.time, row.actor, row.address, row.action, study_id, json.dumps(dict(row.detail))]
            )
        yield text.getvalue()
        after = rows[-1].id


def _roles(store: Store) -> dict[str, dict[str, Role]]:
    roles: dict[str, dict[str, Role]] = {}
    for user, project, role in store.users.members():
        roles.setdefault(user, {})[project] = role
    return roles


def _user_view(user: User, roles: dict[str, Role]) -> UserView:
    fields = asdict(user)
    del fields["id"]
    return UserView(**fields, roles=roles)


def _token_view(token: Token) -> TokenView:
    fields = asdict(token)
    del fields["is_session"]
    return TokenView(**fields)


def _audit_view(entry: AuditEntry, access: Access) -> AuditView:
    shown = {**asdict(entry), "detail": dict(entry.detail)}
    return AuditView(**(shown if access.may_manage else {**shown, "address": ""}))
