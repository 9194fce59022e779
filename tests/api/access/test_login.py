"""Logging in with a password or a token of one's own, and out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.access.login import MOST_FAILED
from scamp_service.access.passwords import hash_password
from tests.services.serving import InProcess, settings_in


@pytest.fixture
def team(tmp_path: Path) -> Iterator[InProcess]:
    api = InProcess(settings_in(tmp_path))
    api.store.users.create("anna", is_admin=True, password=hash_password("correct horse"), now=time.time())
    api.app.state.has_users = True
    yield api
    api.close()


def test_nobody_notices_anything_until_there_is_a_user(tmp_path: Path) -> None:
    api = InProcess(settings_in(tmp_path))
    assert api.get("/v1/me").json()["may_manage"] is True
    assert "Log out" not in api.get("/").text
    made = api.post("/v1/users", json={"name": "anna", "is_admin": True})
    assert made.status_code == 201
    bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
    assert api.get("/v1/me", headers=bearer).json()["name"] == "anna"
    assert api.get("/v1/me").status_code == 401
    assert "Log out" in api.get("/", headers=bearer).text
    api.close()


def test_one_logs_in_by_name_and_password_and_out(team: InProcess) -> None:
    assert 'name="user"' in team.get("/login").text
    answer = team.post("/login", data={"user": "anna", "token": "correct horse", "next": "/cluster"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    assert team.get("/v1/me").json()["name"] == "anna"
    assert [entry.action for entry in team.store.audit.page()] == ["log in"]
    team.post("/logout")
    assert team.get("/v1/me", headers={"Cookie": cookie}).status_code == 401  # ended, not only forgotten


@pytest.mark.parametrize(("user", "secret"), [("anna", "wrong"), ("eve", "correct horse"), ("", "correct horse")])
def test_a_wrong_name_or_password_says_the_same(team: InProcess, user: str, secret: str) -> None:
    answer = team.post("/login", data={"user": user, "token": secret})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert ("Name or password is wrong" in answer.text) is bool(user)


@pytest.mark.full
def test_guesses_at_one_user_wait_wherever_they_come_from(team: InProcess) -> None:
    for _ in range(MOST_FAILED):
        team.post("/login", data={"user": "anna", "token": "wrong"})
    assert team.post("/login", data={"user": "anna", "token": "correct horse"}).status_code == 429


def test_a_token_of_ones_own_logs_in_without_being_the_cookie(team: InProcess) -> None:
    token, secret = team.store.tokens.create("anna", "laptop", now=time.time())
    answer = team.post("/login", data={"user": "", "token": secret})
    assert answer.status_code == 303 and secret not in answer.headers["set-cookie"]
    assert team.get("/v1/me").json()["name"] == "anna"
    team.store.tokens.revoke(token.id, now=time.time())
    assert team.get("/v1/me").status_code == 401
