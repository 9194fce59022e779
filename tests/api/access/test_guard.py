"""Safe by default: who is let in, from which page, under which name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.access import login
from api.access.sessions import session_of
from scamp_service.errors import InvalidInput, Refused
from scamp_service.settings import Settings
from tests.services.serving import SPEC, InProcess, settings_in

TOKEN = "0123456789abcdef-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[InProcess]:
    api = InProcess(settings_in(tmp_path, api_token=TOKEN))
    yield api
    api.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.2"])
def test_an_address_that_others_reach_needs_a_token(host: str) -> None:
    with pytest.raises(Refused, match="SCAMP_API_TOKEN"):
        Settings(host=host).expect_access()
    Settings(host=host, api_token=TOKEN).expect_access()
    Settings(host=host).expect_access(has_users=True)


@pytest.mark.parametrize("token", ["short", "x" * 15, "with a space 12345678", "umläute-umläute-umläute"])
def test_a_token_that_is_easily_guessed_or_cannot_be_sent_is_refused(token: str) -> None:
    with pytest.raises(Refused, match="at least 16"):
        Settings(api_token=token).expect_access()


def test_the_loopback_needs_no_token(api: InProcess) -> None:
    assert api.get("/v1/studies").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/v1/studies", "/v1/events", "/metrics", "/openapi.json", "/v1/nothing", "/healthz/"]
)
def test_with_a_token_nothing_but_health_and_the_login_is_open(guarded: InProcess, path: str) -> None:
    answer = guarded.get(path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert guarded.get("/healthz").status_code == 200
    assert guarded.get("/readyz").status_code == 503
    assert guarded.get("/login").status_code == 200


@pytest.mark.parametrize(
    "header", ["Bearer wrong-wrong-wrong-wrong", f"Basic {TOKEN}", TOKEN, "Bearer", f"Bearer {TOKEN}x"]
)
def test_a_wrong_token_is_refused(guarded: InProcess, header: str) -> None:
    assert "is wrong" in guarded.get("/v1/studies", headers={"Authorization": header}).json()["detail"]
    assert "is needed" in guarded.get("/v1/studies").json()["detail"]
    assert guarded.post("/v1/studies", json={"spec": SPEC}, headers={"Authorization": header}).status_code == 401
    assert guarded.store.studies.page() == []


def test_the_right_token_is_let_in(guarded: InProcess) -> None:
    assert guarded.get("/v1/studies", headers=BEARER).status_code == 200


def test_a_browser_logs_in_by_a_form_and_keeps_a_cookie_that_is_not_the_token(guarded: InProcess) -> None:
    away = guarded.get("/studies/3", headers={"Accept": "text/html"})
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=/studies/3")
    page = guarded.get(away.headers["location"])
    assert 'name="next" value="/studies/3"' in page.text
    answer = guarded.post("/login", data={"token": TOKEN, "next": "/studies/3"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/3")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert guarded.get("/v1/studies").status_code == 200  # by the cookie


def test_a_wrong_token_in_the_form_says_so_and_sets_no_cookie(guarded: InProcess) -> None:
    answer = guarded.post("/login", data={"token": "wrong", "next": "/"})
    assert answer.status_code == 401
    assert "This token is wrong" in answer.text and "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "cookie", ["scamp_session=", "scamp_session=wrong", "scamp_session=\xff", "=;;;", "scamp_session"]
)
def test_a_wrong_cookie_is_refused(guarded: InProcess, cookie: str) -> None:
    assert guarded.get("/v1/studies", headers=[(b"Cookie", cookie.encode("latin-1"))]).status_code == 401


@pytest.mark.parametrize(
    "target", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_the_login_goes_on_to_our_own_pages_only(guarded: InProcess, target: str) -> None:
    assert guarded.post("/login", data={"token": TOKEN, "next": target}).headers["location"] == "/"


def test_the_login_page_does_not_run_what_its_address_says(guarded: InProcess) -> None:
    assert "<script>" not in guarded.get('/login?next=/"><script>alert(1)</script>').text


def test_no_login_without_a_token_to_log_in_with(api: InProcess) -> None:
    assert "set-cookie" not in api.post("/login", data={"token": ""}).headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8100", "0.0.0.0", "[::1", "@127.0.0.1x"]
)
def test_another_host_name_is_not_served_on_the_loopback(api: InProcess, host: str) -> None:
    answer = api.get("/v1/studies", headers={"Host": host})
    assert answer.status_code == 421
    assert "127.0.0.1 or localhost" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:8100"])
def test_the_loopback_is_served_by_all_its_names(api: InProcess, host: str) -> None:
    assert api.get("/v1/studies", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://[evil"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:8100"},
    ],
)
def test_a_page_of_another_origin_cannot_write(api: InProcess, headers: dict[str, str]) -> None:
    study_id = api.submit().json()["id"]
    assert api.post("/v1/studies", json={"spec": SPEC}, headers=headers).status_code == 403
    assert api.post(f"/v1/studies/{study_id}:stop", headers=headers).status_code == 403
    assert [study.state for study in api.store.studies.page()] == ["RUNNING"]


def test_our_own_page_can_write(api: InProcess) -> None:
    headers = {"Origin": "http://127.0.0.1:8100", "Sec-Fetch-Site": "same-origin"}
    assert api.post("/v1/studies", json={"spec": SPEC}, headers=headers).status_code == 201


def test_every_answer_has_a_strict_policy(api: InProcess) -> None:
    for path in ("/", "/v1/studies", "/nothing", "/login"):
        headers = api.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers


def test_no_secret_is_logged(guarded: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.get("/v1/studies", headers=BEARER)
    guarded.post("/login", data={"token": TOKEN})
    guarded.get("/v1/nothing", headers=BEARER)
    assert TOKEN not in caplog.text and "scamp_session" not in caplog.text


PROXIED = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "scamp.example", "X-Forwarded-For": "203.0.113.9"}
OWN_PAGE = {"Origin": "https://scamp.example", "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[InProcess]:
    api = InProcess(settings_in(tmp_path, api_token=TOKEN, trusted_proxies="10.0.0.0/8, 127.0.0.1"))
    yield api
    api.close()


@pytest.mark.parametrize("host", [{}, {"Host": "scamp.example"}])
def test_behind_a_trusted_proxy_one_logs_in_with_a_secure_cookie_and_writes(
    proxied: InProcess, host: dict[str, str]
) -> None:
    headers = {**PROXIED, **OWN_PAGE, **host}
    answer = proxied.post("/login", data={"token": TOKEN}, headers=headers)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "Secure" in cookie and "Max-Age=604800" in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    assert proxied.post("/v1/studies", json={"spec": SPEC}, headers={**headers, **session}).status_code == 201


@pytest.mark.parametrize("origin", ["https://evil.example", "http://scamp.example", "https://127.0.0.1:8100", "null"])
def test_behind_a_proxy_a_page_of_another_origin_cannot_write(proxied: InProcess, origin: str) -> None:
    headers = {**PROXIED, **BEARER, "Origin": origin}
    assert proxied.post("/v1/studies", json={"spec": SPEC}, headers=headers).status_code == 403


def test_what_a_browser_invents_before_the_proxy_appends_its_own_does_not_count(proxied: InProcess) -> None:
    headers = {**BEARER, "X-Forwarded-Proto": "https, https", "X-Forwarded-Host": "evil.example, scamp.example"}
    post = {"json": {"spec": SPEC}}
    assert proxied.post("/v1/studies", **post, headers={**headers, "Origin": "https://evil.example"}).status_code == 403
    assert proxied.post("/v1/studies", **post, headers={**headers, **OWN_PAGE}).status_code == 201


def test_headers_of_an_address_that_is_not_trusted_are_ignored(guarded: InProcess) -> None:
    assert guarded.post("/login", data={"token": TOKEN}, headers={**PROXIED, **OWN_PAGE}).status_code == 403
    assert guarded.get("/login", headers={**PROXIED, "Host": "scamp.example"}).status_code == 421


@pytest.mark.parametrize(("proxies", "token"), [("127.0.0.1", ""), ("nowhere", TOKEN)])
def test_a_proxy_needs_a_token_and_an_address(proxies: str, token: str, tmp_path: Path) -> None:
    with pytest.raises((Refused, InvalidInput), match="SCAMP_"):
        settings_in(tmp_path, trusted_proxies=proxies, api_token=token).expect_access()


def test_a_session_ends_with_its_time_and_cannot_be_extended(guarded: InProcess) -> None:
    def status(value: str) -> int:
        return guarded.get("/v1/studies", headers={"Cookie": f"scamp_session={value}"}).status_code

    later = 2**40
    signed = session_of(TOKEN, later)
    assert status(signed) == 200
    assert status(session_of(TOKEN, 1)) == 401
    assert status(signed.replace(str(later), str(later + 1))) == 401
    assert status("9" * 5000 + ".x") == 401


def test_logout_removes_the_cookie(guarded: InProcess) -> None:
    guarded.post("/login", data={"token": TOKEN})
    assert guarded.get("/v1/studies").status_code == 200
    assert guarded.post("/logout").headers["location"] == "/login"
    assert guarded.get("/v1/studies").status_code == 401


def test_every_page_has_a_button_to_log_out_only_where_a_login_is_needed(guarded: InProcess, tmp_path: Path) -> None:
    button = '<form class="logout" method="post" action="/logout"><button type="submit" class="quiet">Log out</button>'
    for path in ("/", "/cluster"):
        assert button in guarded.get(path, headers=BEARER).text
    unguarded = InProcess(settings_in(tmp_path / "open"))
    assert "Log out" not in unguarded.get("/").text
    unguarded.close()


def test_whoever_guesses_has_to_wait_and_others_do_not(proxied: InProcess) -> None:
    def status(token: str, address: str) -> int:
        headers = {**PROXIED, "X-Forwarded-For": address}
        return proxied.post("/login", data={"token": token}, headers=headers).status_code

    assert [status("wrong", "203.0.113.1") for _ in range(login.MOST_FAILED)] == [401] * login.MOST_FAILED
    assert status(TOKEN, "203.0.113.1") == 429
    assert status(TOKEN, "203.0.113.2") == 303
