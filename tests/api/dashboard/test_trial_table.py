"""The table of trials on the page of a study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from scamp_service.store.store import Store
from tests.api.dashboard.filler import Filler
from tests.api.dashboard.serving import trial_numbers


@pytest.mark.sample
@pytest.mark.browser
def test_trials_are_sorted_by_a_click_and_filtered_by_state(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#trials tr.row")).to_have_count(11)
    expect(page.get_by_role("columnheader", name="Value")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("2")  # the best comes first
    page.get_by_role("button", name="#", exact=True).click()
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("0")
    assert trial_numbers(page) == list(range(11))
    page.get_by_role("button", name="Meas. MiB").click()
    page.get_by_role("button", name="Meas. MiB").click()
    expect(page.get_by_role("columnheader", name="Meas. MiB")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("#trials tr.row td:first-child").first).to_have_text("2")
    assert trial_numbers(page)[-4:] == [4, 8, 9, 10], "what was not measured comes last"
    page.get_by_role("button", name="Pruned 2").click()
    expect(page.locator("#trials tr.row")).to_have_count(2)
    assert sorted(trial_numbers(page)) == [1, 3]
    page.get_by_role("button", name="Pruned 2").click()
    expect(page.locator("#trials tr.row")).to_have_count(11)
    infeasible = page.locator("#trials tr.row", has_text="Infeasible")
    expect(infeasible).to_contain_text("needs 131.4 MiB on each of 2 ranks")


@pytest.mark.browser
def test_a_filter_and_chosen_columns_are_in_the_address(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    page.get_by_label("Filter", exact=True).fill("depth == 4 and number < 5")
    page.keyboard.press("Enter")
    expect(page.locator("#trials-aside")).to_have_text("2 of 11")
    assert sorted(trial_numbers(page)) == [1, 4]
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("checkbox", name="Batch").uncheck()
    dialog.get_by_role("checkbox", name="Recomp.").check()
    dialog.get_by_role("button", name="Move lr up").press("Enter")
    dialog.get_by_role("button", name="Done").click()
    page.reload()
    expect(page.locator("#trials-aside")).to_have_text("2 of 11")
    heads = page.locator("#trials thead th").all_text_contents()
    assert heads[:6] == ["#", "State", "Value", "Reason", "lr", "depth"]
    assert "Batch" not in heads and heads[-1] == "Recomp."
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("number,state,value,params.depth,params.lr,")


@pytest.mark.browser
def test_a_thousand_trials_scroll_while_only_the_visible_rows_exist(
    open_page: Callable[..., Page], store: Store
) -> None:
    many = [{"depth": 2, "lr": 0.001 + n * 1e-6} for n in range(1000)]
    study = Filler(store).study("many", many, trials=1000)
    page = open_page(f"/studies/{study.id}")
    expect(page.locator("#trials-aside")).to_have_text("1,000 trials")
    assert page.locator("#trials tr.row").count() < 80
    page.locator("#trials").focus()
    page.keyboard.press("End")
    expect(page.locator("#trials").get_by_role("link", name="999", exact=True)).to_be_visible()
    assert page.locator("#trials tr.row").count() < 80


@pytest.mark.browser
def test_rows_come_whichever_column_is_first(open_page: Callable[..., Page], store: Store) -> None:
    study = Filler(store).study("by state", [{"depth": 2, "lr": 0.001}])
    page = open_page(f"/studies/{study.id}?columns=params.lr,number")
    expect(page.locator("#trials tr.row td")).to_have_text(["0.001", "0"])
