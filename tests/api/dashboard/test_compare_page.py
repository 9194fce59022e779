"""The page that compares studies."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from scamp_service.store.store import Store
from tests.api.dashboard.filler import Filler


@pytest.mark.browser
def test_chosen_studies_are_drawn_and_named_in_the_address(open_page: Callable[..., Page], store: Store) -> None:
    Filler(store).study("to be compared", [{"depth": 2, "lr": 0.001}], trials=1)
    page = open_page("/")
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page.get_by_role("checkbox", checked=True)).to_have_count(2)
    digits = page.get_by_role("checkbox", name="compare digits", exact=True)
    row = page.locator("#choice-card tr", has=digits)
    if not digits.is_checked():
        digits.check()
    expect(page).to_have_url(re.compile(r"/compare\?.*study=1\b"))
    expect(page.locator("#best-lines canvas")).to_be_visible()
    expect(row).to_contain_text("0.9522")
    expect(row.locator(".swatch.g0")).to_be_visible()
    expect(page.locator("#differences-card")).to_contain_text("What differs")
    page.goto(page.url + "&study=99")
    expect(digits).to_be_checked()
    expect(page.locator("#summary")).to_contain_text(f"{page.get_by_role('checkbox', checked=True).count()} chosen")
    checked = page.get_by_role("checkbox", checked=True)
    while checked.count():
        checked.first.uncheck()
    expect(page.get_by_text("Lines appear here")).to_be_visible()
