"""A browser, the real API over a real database, and pages that fail their test for any complaint."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import fill
from tests.api.dashboard.serving import serving
from tests.conftest import find_chromium
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def store(settings: Settings) -> Iterator[Store]:
    store = Store(settings.url)
    fill(store)
    yield store
    store.close()


@pytest.fixture(scope="module")
def address(settings: Settings, store: Store) -> Iterator[str]:
    with serving(settings) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=1000 * PATIENCE_SECONDS)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Opens a page, and fails the test for any console message, script error, failed answer or foreign request."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def check(good: bool, complaint: str) -> None:
        if not good:
            complaints.append(complaint)

    def watch(page: Page) -> None:
        page.on("console", lambda message: check(False, f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: check(False, f"error: {error}"))
        page.on("request", lambda request: check(request.url.startswith(address), f"foreign: {request.url}"))
        page.on("response", lambda answer: check(answer.ok, f"{answer.status} {answer.url}"))

    def open_(path: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        watch(page)
        page.goto(address + path)
        expect(page.locator("#connection")).to_have_text("Live")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
