"""Charts of the objective and of parameters on the page of a study."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect

from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import Filler
from tests.api.dashboard.serving import plot_in, serving
from tests.services.serving import fill_several

T = TrialState


@pytest.mark.browser
def test_charts_of_parameters_are_reached_by_keyboard_and_read_as_tables(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    page.locator("#parallel").focus()  # it is drawn once it is seen
    expect(page.locator("#parallel-aside")).to_contain_text("trials")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#parallel .tip")).to_contain_text("Trial 2")
    page.locator("#parallel-card summary").click()
    expect(page.locator("#parallel-card tbody tr")).to_have_count(2)
    expect(page.locator("#parallel-card tbody")).to_contain_text("depth")
    page.get_by_label("Parameter", exact=True).select_option("lr")
    page.locator("#slice").focus()
    expect(page.locator("#slice")).to_have_attribute("aria-label", re.compile("trials by lr"))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#slice .tip")).to_contain_text("Trial 0")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/studies/1/trials/0$"))


@pytest.mark.browser
def test_the_best_trial_is_named_with_its_parameters(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#best")).to_have_text("0.9522")
    expect(page.locator("#best-box")).to_contain_text("trial 2")
    expect(page.locator("#best-box")).to_contain_text("FSDP over 2 ranks")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy parameters").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert '"depth": 6' in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.browser
def test_a_point_of_the_history_names_its_trial_and_opens_it(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    plot = plot_in(page, "#history")
    x = plot["x"] + plot["width"] * 4.5 / 11  # trial 4 of -0.5 … 10.5; infeasible: on the rail at the bottom
    page.mouse.move(x, plot["y"] + plot["height"] - 9)
    expect(page.locator("#history .tip")).to_contain_text("Trial 4 infeasible")
    page.mouse.down()
    page.mouse.up()
    expect(page.locator("h1")).to_have_text("Trial 4")
    expect(page.locator("#attempts")).to_contain_text("has used no device")


def hover_best_curve(page: Page) -> FloatRect:
    """Point at the last step of study 1's best curve; returns where the plot is."""
    plot = plot_in(page, "#curves")
    page.mouse.move(plot["x"] + plot["width"] - 2, plot["y"] + plot["height"] * 0.06)
    return plot


@pytest.mark.browser
def test_a_curve_under_the_pointer_is_named_and_its_row_marked(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    hover_best_curve(page)
    expect(page.locator("#curves .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#curves .tip")).to_contain_text("accuracy 0.9522 at step 120")
    expect(page.locator("#trials tr.lit td:first-child")).to_have_text("2")
    page.select_option("#metric", "loss")
    plot = plot_in(page, "#curves")  # what has come since above it may have moved it
    page.mouse.move(plot["x"] + plot["width"] - 2, plot["y"] + plot["height"] * 0.94)
    expect(page.locator("#curves .tip")).to_contain_text("loss 0.1099 at step 120")


@pytest.mark.sample
@pytest.mark.browser
def test_what_ranks_report_is_seen_without_a_reload(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    running = fill.ids(store.studies.get(1))[6]
    study, trial, cluster = open_page("/studies/1"), open_page("/studies/1/trials/6"), open_page("/cluster")
    row = study.locator("#trials tr.row", has=study.get_by_role("link", name="6", exact=True))
    expect(row).to_contain_text("0.8301")
    expect(cluster.locator(".gang", has_text="#6")).to_have_count(1)
    fill.report(running, 1, 70, 0.8765, 28.5)
    expect(row).to_contain_text("0.8765")
    expect(row).to_contain_text("28.5")
    expect(trial.locator("#value")).to_have_text("0.8765")
    expect(trial.locator("#log li").last).to_contain_text("step 70 accuracy 0.8765")
    hover_best_curve(study)
    fill.end(running, 1, Outcome.DONE)
    fill.move(running, T.RUNNING, 1, T.COMPLETED, reason="trained all 120 steps")
    expect(row).to_contain_text("Completed")
    expect(trial.locator("#state")).to_have_text("Completed")
    expect(cluster.locator(".gang", has_text="#6")).to_have_count(0)
    expect(study.locator("#curves .tip")).to_contain_text("Trial 2")  # the chart was drawn anew under the pointer


@pytest.mark.browser
def test_several_objectives_have_a_front_in_place_of_a_best_trial(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store(settings.url)
    fill_several(store)
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(f"{url}/studies/1")
        expect(page.locator("#front-aside")).to_have_text("2 on the front, 3 trials")
        expect(page.locator("#front-card tbody tr")).to_have_count(2)
        expect(page.locator("#best-label")).to_have_text("On the Pareto front")
        expect(page.locator("#best-card")).to_be_hidden()
        page.locator("#front").focus()
        page.keyboard.press("Home")
        expect(page.locator("#front .tip")).to_contain_text("predicted.peak_mib 10")
        expect(page.get_by_role("columnheader", name="predicted.peak_mib").last).to_be_visible()
        page.close()
    store.close()
