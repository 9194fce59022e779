"""The dashboard behind a reverse proxy that ends TLS, in a real browser: what docs/deploy.md says works."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect, sync_playwright

from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.conftest import ROOT, find_chromium
from tests.services.serving import fill, free_port, full_spec, served, settings_in
from tests.services.tls_proxy import TlsProxy, certificate
from tests.waiting import PATIENCE_SECONDS, until

NAME = "scamp.example"
TOKEN = "the-token-of-this-service"
COOKIE = "scamp_session"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path, port=free_port(), api_token=TOKEN, trusted_proxies="127.0.0.1")


@pytest.fixture
def served_store(settings: Settings) -> Iterator[Store]:
    with served(settings) as (_, store):
        fill(store)
        yield store


@contextmanager
def browsing() -> Iterator[BrowserContext]:
    """A browser for which ``NAME`` is this machine, and which takes a certificate that nobody vouches for."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        arguments.append(f"--host-resolver-rules=MAP {NAME} 127.0.0.1")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        yield browser.new_context(ignore_https_errors=True)
        browser.close()


def check_in_the_browser(address: str, store: Store) -> None:
    """Log in, follow events and write, as a user does; fail for anything that the browser complains about."""
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    complaints: list[str] = []
    with browsing() as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text} {message.location}"))
        page.goto(f"{address}/cluster")
        assert page.url == f"{address}/login?next=/cluster"
        page.get_by_label("API token").fill(TOKEN)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Cluster")
        assert page.url == f"{address}/cluster"
        (cookie,) = context.cookies()
        assert {"name": COOKIE, "secure": True, "httpOnly": True, "sameSite": "Strict"}.items() <= cookie.items()
        page.goto(f"{address}/")
        expect(page.locator("#connection")).to_have_text("Live")
        expect(page.locator("#rows tr")).to_have_count(1)
        store.studies.create(full_spec(), now=time.time())
        expect(page.locator("#rows tr")).to_have_count(2)  # by an event: nothing is loaded again
        stopped = page.evaluate("async () => (await fetch('/v1/studies/1:stop', {method: 'POST'})).status")
        assert stopped == 200
    assert complaints == []


def is_served(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", verify=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.browser
def test_behind_a_tls_proxy_one_logs_in_follows_events_and_writes(
    settings: Settings, served_store: Store, tmp_path: Path
) -> None:
    with TlsProxy(settings.port, certificate(tmp_path, NAME)).serving() as proxy:
        address = f"https://{NAME}:{proxy.port}"
        check_in_the_browser(address, served_store)
    login = next(number for number, head in enumerate(proxy.received) if head.startswith("POST /login "))
    assert f"\r\nOrigin: {address}\r\n" in proxy.received[login]
    assert f"\r\nHost: 127.0.0.1:{settings.port}\r\n" in proxy.sent[login], "Origin and Host differ"
    assert any(head.startswith("GET /v1/events?") for head in proxy.received)
    assert not any(COOKIE in head for head in proxy.received[: login + 1])


def test_a_proxy_that_is_not_named_as_trusted_cannot_be_logged_in_through(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, port=free_port(), api_token=TOKEN)
    with served(settings), TlsProxy(settings.port, certificate(tmp_path, NAME)).serving() as proxy:
        address = f"https://127.0.0.1:{proxy.port}"
        answer = httpx.post(f"{address}/login", data={"token": TOKEN}, headers={"Origin": address}, verify=False)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_lines_for_nginx_in_the_docs_work(settings: Settings, served_store: Store, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    (server,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    port, file = free_port(), certificate(tmp_path, NAME)
    for documented, ours in [
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/scamp.example.pem", str(file)),
        ("/etc/ssl/private/scamp.example.key", str(file)),
        ("127.0.0.1:8100", f"127.0.0.1:{settings.port}"),
    ]:
        assert documented in server
        server = server.replace(documented, ours)
    paths = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = tmp_path / "nginx.conf"
    configuration.write_text(
        f"daemon off;\npid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{paths}{server}}}\n"
    )
    nginx = subprocess.Popen(["nginx", "-p", tmp_path, "-c", configuration])
    try:
        address = f"https://127.0.0.1:{port}"
        until(lambda: is_served(address), "nginx")
        check_in_the_browser(f"https://{NAME}:{port}", served_store)
    finally:
        nginx.terminate()
        nginx.wait(PATIENCE_SECONDS)
