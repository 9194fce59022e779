"""Static files: kept by browsers, published unchanged, loaded at once, and unable to make HTML of data."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from api.dashboard import STATIC, static_version


def test_pages_keep_nothing_and_current_static_files_are_kept_forever(address: str) -> None:
    with httpx.Client(base_url=address) as client:
        page = client.get("/studies/1")
        assert page.headers["cache-control"] == "no-store"
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        kept = client.get(f"/static/{static_version()}/study.js")
        assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert kept.headers["content-type"].startswith("text/javascript")
        assert client.get("/static/0123456789ab/study.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["nothing.js", "..%2fdashboard.py", "vendor/..%2f..%2fapp.py", "/etc/passwd"])
def test_only_files_of_the_front_end_are_served(address: str, path: str) -> None:
    assert httpx.get(f"{address}/static/{static_version()}/{path}").status_code == 404


def test_vendored_files_are_what_was_published() -> None:
    vendor = STATIC / "vendor"
    noted = re.findall(r"([0-9a-f]{64})  (uplot/\S+)", (vendor / "README.md").read_text())
    assert {name for _, name in noted} == {f"uplot/{path.name}" for path in (vendor / "uplot").iterdir()}
    for digest, name in noted:
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == digest


def test_no_module_can_turn_data_into_html() -> None:
    ours = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    assert ours
    for path in ours:
        matches = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        )
        assert not matches, path


@pytest.mark.browser
def test_a_page_asks_for_the_modules_that_it_needs_at_once(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    loaded = "performance.getEntriesByType('resource').map(e => e.name).filter(n => n.endsWith('.js'))"
    preloaded = page.locator("link[rel=modulepreload]").evaluate_all("links => links.map(link => link.href)")
    assert sorted(preloaded) == sorted(set(page.evaluate(loaded)))


@pytest.mark.browser
@pytest.mark.parametrize("query", ["", "?where=lr+%3E+0"])
def test_a_study_is_asked_for_once_before_the_modules_are_there(
    open_page: Callable[..., Page], address: str, query: str
) -> None:
    page = open_page(f"/studies/1{query}")
    expect(page.locator("#trials tr.row").first).to_be_visible()
    requests = page.evaluate("performance.getEntriesByType('resource').map(e => [e.name, e.initiatorType])")
    by = {name.removeprefix(f"{address}/v1/studies/1"): kind for name, kind in requests}
    assert [kind for name, kind in requests if name == f"{address}/v1/studies/1"] == ["link"]
    assert by["/history" if not query else "/history?where=lr+%3E+0"] == ("fetch" if query else "link")
