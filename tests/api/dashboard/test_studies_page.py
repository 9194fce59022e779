"""The list of studies, and what all pages share: they fit the window, show text as text, and say what is wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.settings import Settings
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.store import Store
from tests.api.dashboard.filler import DEVICES, EVIL, TRACEBACK, Filler
from tests.api.dashboard.serving import serving

T = TrialState


@pytest.mark.browser
@pytest.mark.parametrize(
    ("path", "heading"),
    [
        ("/", "Studies"),
        ("/studies/1", "digits"),
        ("/studies/1/trials/5", "Trial 5"),
        ("/cluster", "Cluster"),
        ("/new", "New study"),
        ("/compare", "Compare studies"),
    ],
)
def test_every_page_fits_the_window_in_both_themes(
    open_page: Callable[..., Page], tmp_path: Path, path: str, heading: str
) -> None:
    page = open_page(path)
    expect(page.locator("h1")).to_have_text(heading)
    colours = set()
    for width, height in [(1280, 800), (390, 844)]:
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
            assert page.locator("html").evaluate("e => e.scrollWidth") <= width, path
            colours.add(page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"))
    assert len(colours) == 2, "light and dark differ"


@pytest.mark.sample
@pytest.mark.browser
def test_studies_are_listed_with_progress_best_and_devices(open_page: Callable[..., Page]) -> None:
    page = open_page("/")
    row = page.locator("#rows tr", has_text="digits").last
    expect(row.locator(".c-state")).to_have_text("Running")
    expect(row.locator(".c-best")).to_have_text("0.9522")
    expect(row.locator(".c-devices")).to_have_text("2")
    expect(row.locator(".progress")).to_have_attribute("aria-label", re.compile("^12 trials: 3 completed,"))
    row.get_by_role("link", name="digits").click()
    expect(page.locator("h1")).to_have_text("digits")


@pytest.mark.browser
def test_names_that_look_like_html_stay_text(open_page: Callable[..., Page]) -> None:
    for path in ("/", "/studies/2", "/studies/2/trials/0"):
        page = open_page(path)
        expect(page.get_by_text(EVIL).first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        assert page.title() != "owned"
    expect(page.locator(".trace")).to_have_text(TRACEBACK)


@pytest.mark.browser
def test_a_new_study_appears_and_is_stopped_only_when_confirmed(open_page: Callable[..., Page], store: Store) -> None:
    page = open_page("/")
    fill = Filler(store)
    fill.now = time.time()
    study = fill.study("to be stopped", [{"depth": 2, "lr": 0.001}])
    page.get_by_role("link", name="to be stopped").click()
    page.get_by_role("button", name="Stop study").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 trial of “to be stopped”")
    page.get_by_role("button", name="Keep running").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert store.studies.get(study.id).state == "RUNNING"
    page.get_by_role("button", name="Stop study").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop study").click()
    expect(page.locator("#state")).to_have_text("Stopping")
    assert store.studies.get(study.id).state == "STOPPING"


@pytest.mark.browser
def test_an_ended_study_is_deleted_only_when_confirmed(open_page: Callable[..., Page], store: Store) -> None:
    study = Filler(store).study("to be deleted", [{"depth": 2, "lr": 0.001}], trials=1)
    page = open_page(f"/studies/{study.id}")
    expect(page.get_by_role("button", name="Delete study")).to_be_hidden()
    (trial,) = Filler(store).ids(study)
    Filler(store).move(trial, T.WAITING, 0, T.CANCELLED)
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=time.time())
    page.get_by_role("button", name="Delete study").click()
    expect(page.get_by_role("dialog")).to_contain_text("“to be deleted” with its 1 trial")
    page.get_by_role("button", name="Keep it").click()
    assert store.studies.get(study.id).state == "COMPLETED"
    page.get_by_role("button", name="Delete study").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete study").click()
    expect(page.get_by_role("heading", name="Studies")).to_be_visible()
    expect(page.locator("#rows")).not_to_contain_text("to be deleted")
    assert study.id not in [study_row.id for study_row in store.studies.page(limit=1000)]


@pytest.mark.browser
def test_a_completed_study_without_a_completed_trial_is_not_shown_as_a_success(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    study = fill.study("nothing trained", [{"depth": 2, "lr": 0.001}], trials=1, warnings=["no candidate", EVIL])
    (trial,) = fill.ids(study)
    pages = [open_page(f"/studies/{study.id}"), open_page("/")]
    fill.move(trial, T.WAITING, 0, T.INFEASIBLE, reason="needs 400 MiB; the largest device offers 96 MiB")
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=fill.tick())
    marks = [pages[0].locator("#state"), pages[1].locator("#rows tr", has_text="nothing trained").locator(".c-state")]
    for mark in marks:
        expect(mark).to_have_text("Completed, no trial succeeded")
        expect(mark.locator(".state-completed")).to_have_count(0)  # which is green
        assert mark.evaluate("e => e.scrollWidth <= e.clientWidth"), "the words stay within their cell"
    expect(pages[0].locator("#best-box")).to_have_text("No trial succeeded.")
    expect(pages[0].locator("#warnings")).to_have_text(f"Warning: no candidate; {EVIL}")


@pytest.mark.browser
def test_every_page_says_that_it_is_a_rehearsal(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, lease_seconds=3600)
    store = Store(settings.url)
    store.cluster.record(RecordedCluster("ready", "this is a rehearsal", DEVICES), now=time.time())
    with serving(settings) as url:
        page = browser.new_page()
        for address in ("", "/compare", "/new", "/cluster", "/team"):
            page.goto(url + address)
            expect(page.locator("#banner")).to_have_text("This is a rehearsal.")
    store.close()


@pytest.mark.browser
def test_trouble_is_shown_with_what_to_do(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(url)
        expect(page.get_by_role("heading", name="No studies yet")).to_be_visible()
        expect(page.locator("#cli")).to_have_text(f"scamp submit examples/digits.yaml --address {url}")
        expect(page.locator("#banner")).to_contain_text("cluster is starting")
        store.cluster.record(RecordedCluster("ready", "", DEVICES), now=time.time() - 60)
        page.goto(f"{url}/cluster")
        expect(page.locator("#banner")).to_contain_text("The controller has been silent for 1 m ")
        page.goto(f"{url}/studies/77")
        expect(page.locator("#main")).to_contain_text("there is no study 77")
        page.goto(f"{url}/cluster")
        expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#connection")).to_have_text("Reconnecting…")
    with serving(settings, port=int(url.rsplit(":", 1)[1])):
        expect(page.locator("#connection")).to_have_text("Live")
    page.close()
    store.close()


@pytest.mark.browser
def test_the_submission_that_the_empty_page_shows_is_accepted(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(url)
        command = page.locator("#curl").text_content() or ""
        body = command.partition("-d '")[2].removesuffix("'")
        answer = page.request.post(f"{url}/v1/studies", data=body, headers={"Content-Type": "application/json"})
        assert answer.status == 201, answer.text()
        expect(page.get_by_role("link", name="first study")).to_be_visible()
        page.close()
