"""Who may read and change what: every address of the API, asked with every kind of credentials."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pytest

from tests.services.serving import full_spec
from tests.services.team import Team, addresses

OPEN = {
    "/healthz",
    "/readyz",
    "/login",
    "/login/oidc",
    "/login/oidc/callback",
    "/logout",
    "/static/{version}/{path:path}",
}
OF_ALL = {"/metrics", "/v1/users", "/v1/audit", "/v1/audit.csv", "/v1/deliveries", "/v1/deliveries:test"}
"""Only for those who may read everything, or partly."""
ANYBODY = {
    "/",
    "/new",
    "/compare",
    "/cluster",
    "/team",
    "/openapi.json",
    "/v1/me",
    "/v1/cluster",
    "/v1/cluster/what-if",
    "/v1/studies:check",
    "/v1/studies:screen",
}
ANYBODY |= {"/v1/studies", "/v1/tokens", "/v1/users", "/v1/events", "/v1/usage"}
"""What everybody with credentials may read, each the own part."""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    team = Team(tmp_path_factory.mktemp("team"))
    yield team
    team.api.close()


BAD = ("", "wrong", "expired", "revoked", "disabled")


def test_nothing_but_health_and_the_login_is_open_without_valid_credentials(team: Team) -> None:
    for who in BAD:
        for method, route, path in addresses(team):
            answer = team.ask(who, method, path)
            is_refused = answer.status_code == 401 and "www-authenticate" in answer.headers
            assert is_refused is (route not in OPEN), (who, method, path, answer.status_code)


@pytest.mark.parametrize("who", ["nobody", "other", "elsewhere"])
def test_whoever_has_no_role_in_a_project_does_not_learn_of_its_studies(team: Team, who: str) -> None:
    of_study = [entry for entry in addresses(team) if "{study_id}" in entry[1]]
    assert len(of_study) > 30
    for method, _, path in of_study:
        answer = team.ask(who, method, path)
        assert answer.status_code == 404, (method, path)
        assert answer.json()["detail"] == f"there is no study {team.study.id}; `scamp list` shows all studies"
    assert team.study.id not in [study["id"] for study in team.ask(who, "GET", "/v1/studies").json()["items"]]
    assert team.ask(who, "GET", "/v1/studies?project=vision").json()["items"] == []
    cluster = team.ask(who, "GET", "/v1/cluster").json()
    assert team.study.id not in [trial["study_id"] for trial in cluster["waiting"]]
    hidden = [gang for gang in cluster["gangs"] if gang["study_id"] != team.others.id]
    assert [(gang["study_id"], gang["study_name"], gang["plan_text"]) for gang in hidden] == [(0, "", "")] * len(hidden)
    assert hidden
    body = {"spec": full_spec(project="vision")}
    assert team.ask(who, "POST", "/v1/studies", json=body).status_code == 403
    with_code = {"spec": full_spec(project="speech"), "code_of": team.study.id}
    assert team.ask(who, "POST", "/v1/studies", json=with_code).status_code in (403, 404)


@pytest.mark.parametrize("who", ["viewer", "reader"])
def test_a_viewer_reads_all_of_a_project_and_changes_nothing(team: Team, who: str) -> None:
    for method, route, path in addresses(team):
        if "{study_id}" not in route:
            continue
        status = team.ask(who, method, path).status_code
        assert (status == 403) is (method != "GET"), (method, path, status)
    assert team.ask(who, "POST", "/v1/studies", json={"spec": full_spec(project="vision")}).status_code == 403
    assert [study["id"] for study in team.ask(who, "GET", "/v1/studies").json()["items"]] == [team.study.id]


@pytest.mark.parametrize("who", ["viewer", "reader", "editor", "robot", "other", "nobody"])
def test_only_admins_of_the_service_manage_users_and_read_the_audit_log(team: Team, who: str) -> None:
    new = {"name": "mallory", "is_admin": True}
    assert team.ask(who, "POST", "/v1/users", json=new).status_code == 403
    assert team.ask(who, "PATCH", "/v1/users/keeper", json={"password": "a new password"}).status_code == 403
    assert team.ask(who, "PATCH", f"/v1/users/{who}", json={"is_admin": True}).status_code in (403, 404)
    assert team.ask(who, "POST", "/v1/tokens", json={"name": "t", "user": "root"}).status_code == 403
    assert team.ask(who, "GET", "/v1/tokens?every=true").status_code == 403
    for path in ("/v1/audit", "/v1/audit.csv", "/metrics", "/v1/deliveries"):
        assert team.ask(who, "GET", path).status_code == 403
    assert team.ask(who, "POST", "/v1/deliveries:test").status_code == 403
    assert team.ask(who, "PUT", f"/v1/projects/vision/members/{who}", json={"role": "admin"}).status_code == 403
    assert {user["name"] for user in team.ask(who, "GET", "/v1/users").json()} <= {who, "editor"}


def test_an_admin_of_a_project_gives_roles_in_it_alone(team: Team) -> None:
    grant = {"role": "viewer"}
    assert team.ask("keeper", "PUT", "/v1/projects/vision/members/other", json=grant).status_code == 204
    assert team.ask("other", "GET", f"/v1/studies/{team.study.id}").status_code == 200
    assert team.ask("keeper", "PUT", "/v1/projects/vision/members/other", json={"role": None}).status_code == 204
    assert team.ask("other", "GET", f"/v1/studies/{team.study.id}").status_code == 404
    assert team.ask("keeper", "PUT", "/v1/projects/speech/members/keeper", json=grant).status_code == 403


@pytest.mark.parametrize("who", ["shared", "root"])
def test_an_admin_and_the_shared_token_may_read_all(team: Team, who: str) -> None:
    for method, route, path in addresses(team):
        if method == "GET" and route != "/v1/events":
            assert team.ask(who, method, path).status_code not in (401, 403), path


def test_every_address_that_is_not_of_a_study_is_known_here(team: Team) -> None:
    routes = {route for _, route, _ in addresses(team) if "{study_id}" not in route}
    managed = {"/v1/users/{name}", "/v1/projects/{project}/members", "/v1/projects/{project}/members/{name}"}
    assert routes == OPEN | OF_ALL | ANYBODY | managed | {"/v1/tokens/{token_id}"}


def test_a_limited_token_makes_no_other(team: Team) -> None:
    for who in ("reader", "elsewhere"):
        assert team.ask(who, "POST", "/v1/tokens", json={"name": "more"}).status_code == 403
    answer = team.ask("editor", "POST", "/v1/tokens", json={"name": "less", "role": "viewer", "days": 1})
    assert answer.status_code == 201
    assert answer.json()["token"]["role"] == "viewer"


def test_an_idempotency_key_is_ones_own(team: Team) -> None:
    body, headers = {"spec": full_spec(project="vision")}, {"Idempotency-Key": "nightly"}
    first = team.ask("editor", "POST", "/v1/studies", json=body, headers=headers).json()
    same = team.ask("editor", "POST", "/v1/studies", json=body, headers=headers).json()
    others = team.ask("robot", "POST", "/v1/studies", json=body, headers=headers).json()
    assert same["id"] == first["id"] != others["id"]
    assert (first["owner"], others["owner"]) == ("editor", "robot")
    owned = team.ask("viewer", "GET", "/v1/studies?owner=robot").json()["items"]
    assert [study["id"] for study in owned] == [others["id"]]
    for study in (first, others):
        assert team.ask("editor", "POST", f"/v1/studies/{study['id']}:stop").json()["reason"] == "stopped by editor"
    changes = team.ask("viewer", "GET", f"/v1/studies/{others['id']}/changes").json()["items"]
    assert [(change["actor"], change["action"], change["address"]) for change in changes] == [
        ("editor", "stop", ""),
        ("robot", "submit", ""),
    ]


def test_the_use_of_devices_is_summed_up_by_owner_and_project_that_one_may_read(team: Team) -> None:
    use = {"by": "month", "first": "2020-01-01"}
    (vision,) = team.ask("viewer", "GET", "/v1/usage", params=use).json()
    assert (vision["project"], vision["period"]) == ("vision", date.today().replace(day=1).isoformat())
    assert vision["device_hours"] > 0 and vision["mib_hours"] > 0
    every = team.ask("root", "GET", "/v1/usage", params=use).json()
    assert {row["project"] for row in every} > {"vision"}
    assert team.ask("nobody", "GET", "/v1/usage", params=use).json() == []
    assert team.ask("root", "GET", "/v1/usage", params={"by": "year"}).status_code == 422


def test_only_admins_set_quotas(team: Team) -> None:
    limits = {"devices": 4, "device_hours": 2.5, "max_priority": 0}
    assert team.ask("editor", "PATCH", "/v1/users/editor", json=limits).status_code == 403
    assert team.ask("root", "PATCH", "/v1/users/editor", json=limits).json()["device_hours"] == 2.5
    study = {"spec": full_spec(project="vision", priority=1)}
    refused = team.ask("editor", "POST", "/v1/studies", json=study)
    assert refused.status_code == 422 and "editor may give studies at most 0" in refused.json()["detail"]
    path = f"/v1/studies/{team.study.id}:prioritize"
    assert team.ask("editor", "POST", path, json={"priority": 1}).status_code == 422
    lifted = team.ask("root", "PATCH", "/v1/users/editor", json={"max_priority": None, "device_hours": None}).json()
    assert (lifted["max_priority"], lifted["device_hours"], lifted["devices"]) == (None, None, 4)
    assert team.ask("root", "PATCH", "/v1/users/editor", json={"devices": 0}).status_code == 422
