"""Logging in at a real OpenID Connect provider, which runs in a thread."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.errors import JoseError

from api.access.oidc import Provider
from scamp_service.access.model import Role
from scamp_service.settings import OidcSettings
from tests.services.serving import InProcess, settings_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from oidc_provider_mock import User, run_server_in_thread

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""The provider uses parts of Authlib that will go."""

GROUPS: Any = {"ops": "admin", "ml": {"vision": "editor"}, "guests": {"vision": "viewer"}}
PEOPLE = {"anna": ["ops"], "bob": ["ml", "guests"], "carol": []}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    users = [
        User(sub=name, claims={"preferred_username": name, "email": f"{name}@example.org", "groups": groups})
        for name, groups in PEOPLE.items()
    ]
    users.append(User(sub="impostor", claims={"preferred_username": "anna", "groups": []}))
    users.append(User(sub="nameless"))
    with run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def api(issuer: str, tmp_path: Path) -> Iterator[InProcess]:
    oidc = {"issuer": issuer, "client_id": "scamp", "client_secret": "hidden", "groups": GROUPS}
    api = InProcess(settings_in(tmp_path, oidc=oidc))
    yield api
    api.close()


def log_in(api: InProcess, sub: str, target: str = "/cluster") -> httpx.Response:
    """What the browser of this user gets at the end."""
    begun = api.get(f"/login/oidc?next={target}")
    assert begun.status_code == 303
    at_provider = httpx.post(begun.headers["location"], data={"sub": sub}, follow_redirects=False)
    back = urlsplit(at_provider.headers["location"])
    assert back.path == "/login/oidc/callback"
    return api.get(f"{back.path}?{back.query}")


@pytest.mark.full
def test_people_log_in_at_the_provider_with_the_roles_of_their_groups(api: InProcess) -> None:
    assert api.get("/v1/me").status_code == 401, "with a provider nobody comes in without a login"
    assert "/login/oidc?next=/" in api.get("/login").text
    for sub, is_admin, roles in (("anna", True, {}), ("bob", False, {"vision": "editor"}), ("carol", False, {})):
        answer = log_in(api, sub)
        assert answer.status_code == 200 and "url=/cluster" in answer.text
        me = api.get("/v1/me").json()
        assert (me["name"], me["is_admin"], me["roles"]) == (sub, is_admin, roles)
        api.post("/logout")
    assert [user.email for user in api.store.users.every()] == [f"{name}@example.org" for name in PEOPLE]


@pytest.mark.full
def test_roles_follow_the_groups_at_each_login_and_those_of_other_projects_stay(api: InProcess) -> None:
    log_in(api, "anna")
    log_in(api, "bob")
    assert [(entry.actor, entry.action) for entry in api.store.audit.page(limit=3)] == [
        ("bob", "log in"),
        ("", "grant role"),  # by the provider
        ("", "create user"),
    ]
    api.store.users.grant("bob", "speech", Role.ADMIN)
    api.store.users.grant("bob", "vision", Role.ADMIN)
    log_in(api, "bob")
    assert api.get("/v1/me").json()["roles"] == {"speech": "admin", "vision": "editor"}


def test_a_name_that_the_provider_lets_people_choose_makes_nobody_another_user(api: InProcess) -> None:
    log_in(api, "anna")
    api.post("/logout")
    before = api.store.audit.page()
    answer = log_in(api, "impostor")
    assert api.store.audit.page() == before
    assert answer.status_code == 401 and "names are not given again" in answer.text
    assert api.get("/v1/me").status_code == 401


def test_whoever_comes_first_must_be_an_admin(api: InProcess) -> None:
    answer = log_in(api, "bob")
    assert answer.status_code == 401 and "first user must be" in answer.text
    assert not api.store.users.exist()


def test_who_has_no_name_is_told_which_claim_is_missing(api: InProcess) -> None:
    assert "preferred_username" in log_in(api, "nameless").text


def test_a_login_that_another_browser_began_is_refused(api: InProcess, issuer: str) -> None:
    begun = api.get("/login/oidc")
    location = httpx.post(begun.headers["location"], data={"sub": "anna"}, follow_redirects=False).headers["location"]
    query = urlsplit(location).query
    for cookie in ("", "scamp_login=%7B%7D", "scamp_login=nothing", "scamp_login=%5B%5D"):
        answer = api.get(f"/login/oidc/callback?{query}", headers={"Cookie": cookie})
        assert answer.status_code == 401 and "begin again" in answer.text
    assert api.get("/login/oidc/callback?error=access_denied").status_code == 401
    assert not api.store.users.exist()


def test_a_token_for_another_client_or_login_or_with_another_signature_is_refused(
    issuer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified, seen = Provider._verified, []

    def kept(self: Provider, token: str, nonce: str) -> Any:
        seen.append((token, nonce))
        return verified(self, token, nonce)

    monkeypatch.setattr(Provider, "_verified", kept)
    back = "http://127.0.0.1:8100/login/oidc/callback"
    provider = Provider(OidcSettings(issuer=issuer, client_id="scamp", client_secret="hidden"))
    address, cookie = provider.begin(back, "/")
    location = httpx.post(address, data={"sub": "anna"}, follow_redirects=False).headers["location"]
    query = {name: values[0] for name, values in parse_qs(urlsplit(location).query).items()}
    assert provider.finish(back, cookie, query)[0].name == "anna"
    ((token, nonce),) = seen
    assert verified(provider, token, nonce)["sub"] == "anna"
    other = Provider(OidcSettings(issuer=issuer, client_id="another"))
    unsigned = f"{token.rpartition('.')[0]}."
    for client, forged, login in (
        (other, token, nonce),
        (provider, token, "another"),
        (provider, unsigned, nonce),
        (provider, unsigned + "A" * 342, nonce),
    ):
        with pytest.raises(JoseError):
            verified(client, forged, login)


def test_a_provider_that_is_away_is_said_so(tmp_path: Path) -> None:
    api = InProcess(settings_in(tmp_path, oidc={"issuer": "http://127.0.0.1:9", "client_id": "scamp"}))
    assert "did not answer" in api.get("/login/oidc").text
    api.close()
