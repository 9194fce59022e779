"""Every address of the API, asked with every kind of credentials: who is let in, and who is kept out."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scamp_service.access.model import Role
from tests.services.serving import full_spec
from tests.services.team import Team, addresses

TITLE = "Credentials"
HEADER = ("requests", "let in", "kept out", "credentials")
ABOUT = """\
A service has users with each role in the project *vision*, users of another project and of none, an admin, and a study
in each of two projects. Every method of every address, the pages too, is asked with the credentials of each, as a
bearer and as the cookie of a browser: of the study of *vision*, of that of *speech*, and of one that does not exist.
*Let in*: answered though whoever asks may not do this. *Kept out*: refused though whoever asks may. What each may do
is written down here, not read from the API."""

ROLES: Mapping[str, Mapping[str, Role]] = {
    "viewer": {"vision": Role.VIEWER},
    "reader": {"vision": Role.VIEWER},  # a token of an editor
    "editor": {"vision": Role.EDITOR},
    "robot": {"vision": Role.EDITOR},
    "keeper": {"vision": Role.ADMIN},
    "other": {"speech": Role.ADMIN},
    "elsewhere": {"speech": Role.ADMIN},  # a token of an admin, for one project
    "nobody": {},
    "root": {"vision": Role.ADMIN, "speech": Role.ADMIN},
    "shared": {"vision": Role.ADMIN, "speech": Role.ADMIN},
}
"""The role of each in each project."""
INVALID = ("", "wrong", "expired", "revoked", "disabled")
MANAGERS = ("root", "shared")
OPEN = (
    "/healthz",
    "/readyz",
    "/login",
    "/login/oidc",
    "/login/oidc/callback",
    "/logout",
    "/static/{version}/{path:path}",
)
OF_MANAGERS = {
    ("GET", "/metrics"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/audit.csv"),
    ("GET", "/v1/deliveries"),
    ("POST", "/v1/deliveries:test"),
    ("POST", "/v1/users"),
    ("PATCH", "/v1/users/{name}"),
    ("POST", "/v1/tokens"),  # for another user
    ("DELETE", "/v1/tokens/{token_id}"),  # of another user
}
IN_VISION = {
    ("POST", "/v1/studies"): Role.EDITOR,
    ("POST", "/v1/studies:screen"): Role.EDITOR,
    ("GET", "/v1/projects/{project}/members"): Role.VIEWER,
    ("PUT", "/v1/projects/{project}/members/{name}"): Role.ADMIN,
}
BODIES: Mapping[tuple[str, str], Any] = {
    ("POST", "/v1/users"): {"name": "mallory"},
    ("PATCH", "/v1/users/{name}"): {"is_admin": True},
    ("POST", "/v1/tokens"): {"name": "t", "user": "gone"},
    ("PUT", "/v1/projects/{project}/members/{name}"): {"role": "editor"},
    ("POST", "/v1/studies"): {"spec": full_spec(project="vision")},
    ("POST", "/v1/studies:screen"): {"spec": full_spec(project="vision")},
    ("POST", "/v1/deliveries:test"): {"receiver": {"webhook": "http://127.0.0.1:9/"}},
}


@dataclass(frozen=True)
class Case:
    """One kind of credentials, sent as a bearer or by a browser; empty: none."""

    who: str
    by_cookie: bool = False

    def __str__(self) -> str:
        return f"{self.who or 'none'}{', by cookie' if self.by_cookie else ''}"


@dataclass(frozen=True, slots=True)
class Result:
    """Numbers of one case, and the requests that were answered wrongly."""

    num_requests: int
    let_in: list[str]
    kept_out: list[str]

    def row(self) -> list[str]:
        return [str(self.num_requests), ", ".join(self.let_in) or "0", ", ".join(self.kept_out) or "0"]


def cases(quick: bool, seed: int) -> Sequence[Case]:
    return [Case(who, by_cookie) for by_cookie in (False, True) for who in (*ROLES, *INVALID) if who or not by_cookie]


def figures(results: Sequence[Result]) -> Mapping[str, Any]:
    """Sums over the cases."""
    return {
        "credential_cases": sum(result.num_requests for result in results),
        "let_in": sum(len(result.let_in) for result in results),
        "kept_out": sum(len(result.kept_out) for result in results),
    }


def measure(case: Case, seconds: float) -> Result:
    """Ask for everything, on a service of its own."""
    with tempfile.TemporaryDirectory(prefix="scamp-credentials-") as folder:
        team = Team(Path(folder))
        try:
            requests = [
                (_refusal(case.who, method, route, project), method, route, path)
                for study_id, project in ((team.study.id, "vision"), (team.others.id, "speech"), (999, ""))
                if project or case.who not in MANAGERS
                for method, route, path in addresses(team, study_id)
                if "{study_id}" in route or project == "vision"
            ]
            answers = [(*each, _status(team, case, *each[1:])) for each in requests]
        finally:
            team.api.close()
    wrong = [(due, f"{method} {path}: {status}") for due, method, _, path, status in answers if status != due]
    let_in, kept_out = ([words for due, words in wrong if bool(due) is refused] for refused in (True, False))
    return Result(len(answers), let_in, kept_out)


def _refusal(who: str, method: str, route: str, project: str) -> int:
    """The status of the refusal that is due; 0: the request is allowed."""
    if route in OPEN:
        return 0
    if who in INVALID:
        return 401
    if (method, route) in OF_MANAGERS:
        return 0 if who in MANAGERS else 403
    if (method, route) in IN_VISION:
        held = ROLES[who].get("vision")
        return 0 if held is not None and held.includes(IN_VISION[method, route]) else 403
    if "{study_id}" not in route:
        return 0
    held = ROLES[who].get(project)
    if held is None:
        return 404
    return 403 if method != "GET" and held is Role.VIEWER else 0


def _status(team: Team, case: Case, method: str, route: str, path: str) -> int:
    """The status of a refusal, also of a study that one does not learn of; 0 for any other answer."""
    options = {"json": BODIES[method, route]} if (method, route) in BODIES else {}
    asked_method = "HEAD" if route == "/v1/events" else method  # its stream has no end
    answer = team.ask(case.who, asked_method, path, by_cookie=case.by_cookie, **options)
    is_missing = answer.status_code == 404 and "there is no study" in answer.text
    is_refused = "www-authenticate" in answer.headers or answer.status_code == 403 or is_missing
    return answer.status_code if is_refused else 0
