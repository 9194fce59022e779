"""Says who may see and change which study: one rule for all addresses of a study, by the role in its project."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from api.access.guard import ACCESS, SAFE_METHODS
from scamp_service.access.model import EVERYTHING, Access, Actor, Role
from scamp_service.errors import Forbidden
from scamp_service.store.parts.part import no_study
from scamp_service.store.store import Store


def access_of(request: Request) -> Access:
    """The rights of this request."""
    access: Access = request.scope.get(ACCESS, EVERYTHING)  # health checks are open
    return access


def store_of(request: Request) -> Store:
    """The store, which records this request's changes in the audit log."""
    store: Store = request.app.state.store
    return store.acting(Actor(access_of(request).name, request.client.host if request.client else ""))


def only_allowed(request: Request) -> None:
    """Raise ``NotFound`` for a study whose project one may not read, and ``Forbidden`` for a change by a viewer."""
    access, study_id = access_of(request), request.path_params.get("study_id", "")
    if access.sees_all and access.most is not Role.VIEWER:
        return
    changes = request.method not in SAFE_METHODS
    if not (study_id.isascii() and study_id.isdecimal() and len(study_id) < 20):
        return  # no address of a study
    project = request.app.state.store.studies.project(int(study_id))
    if not access.may(Role.VIEWER, project):
        raise no_study(int(study_id))
    if changes:
        expect(access, Role.EDITOR, project)


def expect(access: Access, role: Role, project: str) -> None:
    """Raise ``Forbidden`` unless a request may do in a project what ``role`` may."""
    if access.may(role, project):
        return
    if access.project not in (None, project):
        why = f"this token is for the project {access.project!r}"
    elif not access.most.includes(role):
        why = f"this token has the role {access.most.value}; take one with the role {role.value}"
    else:
        why = f"{access.name} needs the role {role.value} in it, which its admins and those of the service give"
    raise Forbidden(f"no permission for this in the project {project!r}: {why}")


def expect_to_manage(access: Access) -> None:
    """Raise ``Forbidden`` unless a request may change users and read the audit log."""
    if not access.may_manage:
        raise Forbidden("only an admin of the service may do this, with a token that is not limited")


TheAccess = Annotated[Access, Depends(access_of)]
