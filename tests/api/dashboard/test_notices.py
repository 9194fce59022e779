"""The page of a study that names receivers shows what they were told, and tests them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from scamp_service.notices.notifier import Notifier
from scamp_service.notices.retries import Answer
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import spec
from tests.api.dashboard.serving import serving
from tests.waiting import until


@pytest.mark.browser
def test_receivers_are_tested_on_the_page_of_their_study(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    receiver = {"webhook": "https://hooks.example.org/secret", "on": ["study.ended"], "format": "slack"}
    store.studies.create({**spec("told"), "notify": [receiver]}, now=1.0)
    store.studies.create(spec("silent"), now=1.0)
    notifier = Notifier(store, settings, send=lambda delivery, means: Answer(False, "HTTP 404"), pause_seconds=0.05)
    notifier.start()
    with serving(settings) as address:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/studies/1")
        expect(page.locator("#deliveries")).to_have_text("Nobody was told anything yet.")
        page.get_by_role("button", name="Send a test").click()
        expect(page.locator("#deliveries tr")).to_contain_text("given up: HTTP 404")
        expect(page.locator("#deliveries tr")).to_contain_text("https://hooks.example.org/…")
        page.goto(f"{address}/studies/2")
        expect(page.locator("#file-card")).to_be_visible()
        expect(page.locator("#notices-card")).to_be_hidden()
        assert errors == []
        page.close()
    notifier.close()
    until(lambda: not any(thread.is_alive() for thread in notifier._busy.values()), "nothing is being sent")
    store.close()
