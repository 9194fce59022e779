"""The page of the cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from scamp_service.settings import Settings
from scamp_service.store.recorded_cluster import ContainedError, RecordedCluster, RecordedController
from scamp_service.store.store import Store
from tests.api.dashboard.filler import DEVICES, EVIL
from tests.api.dashboard.serving import serving


@pytest.mark.browser
def test_the_cluster_shows_gangs_by_device_and_links_their_ranks(open_page: Callable[..., Page]) -> None:
    page = open_page("/cluster")
    expect(page.locator(".node")).to_have_count(2)
    shared = page.locator(".device").first
    expect(shared).to_contain_text("1 MiB free of 96 MiB")
    expect(shared.locator(".gang")).to_have_count(2)
    expect(shared.locator(".gang", has_text="S1 #7")).to_have_attribute("title", re.compile("Trial 7 of study 1, "))
    shared.locator(".gang", has_text="#7").hover()
    expect(page.locator(".gang.linked")).to_have_count(2)
    expect(page.locator("#waiting")).to_contain_text("waits for 69 MiB on 2 devices at once")
    shared.locator(".gang", has_text="#7").click()
    expect(page.locator("h1")).to_have_text("Trial 7")


@pytest.mark.browser
def test_a_phone_shows_all_pages_and_every_reason(open_page: Callable[..., Page]) -> None:
    page = open_page("/cluster")
    page.set_viewport_size({"width": 390, "height": 844})
    reasons = [page.locator("#gangs tr td:last-child").last, page.locator("#waiting tr td:last-child").first]
    for seen in [page.get_by_role("link", name="New study"), *reasons]:
        box = seen.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390


@pytest.mark.browser
def test_the_cluster_page_says_who_leads_and_which_errors_were_survived(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    error = ContainedError("propose 4 candidates", f"ValueError: {EVIL}", 3, first_at=10.0, last_at=20.0, times=2)
    leader = RecordedController("head", 17, since=5.0)
    recorded = RecordedCluster("ready", "", DEVICES, controller=leader)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(f"{url}/cluster")
        expect(page.locator("#controller-aside")).to_have_text("none has reported yet")
        expect(page.locator("#errors")).to_contain_text("No error")
        expect(page.locator("#speed")).to_be_empty()
        store.cluster.record(replace(recorded, speed="a CPU was measured in 8 s"), now=time.time() - 60)
        expect(page.locator("#controller-aside")).to_contain_text("process 17 on head led since 1970-01-01")
        expect(page.locator("#speed")).to_contain_text("from the speed of these devices: a CPU was measured in 8 s.")
        store.leases.take("controller", "c", None, now=time.time())
        store.cluster.record(replace(recorded, controller=replace(leader, errors=(error,))), now=time.time())
        row = page.locator("#errors tr")
        expect(row).to_contain_text(f"Could not propose 4 candidates: ValueError: {EVIL}.")
        expect(row.locator("td").nth(1)).to_have_text("2")
        expect(row.get_by_role("link")).to_have_attribute("href", "/studies/3")
        expect(page.locator("#controller-aside")).to_contain_text("process 17 on head leads since 1970-01-01")
        page.close()
    store.close()
