"""The page of a new study: its examples are accepted, files go along, and a mistake keeps the text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from scamp_service.lifecycle import TrialState
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import Filler
from tests.api.dashboard.serving import serving

pytestmark = pytest.mark.browser


@pytest.mark.usefixtures("warm_traces")
def test_the_examples_are_accepted_and_a_copy_takes_the_files_along(browser: Browser, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    with serving(settings) as url:
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("link", name="New study").first.click()
        submit = page.get_by_role("button", name="Submit study")
        submit.click()
        expect(page.locator("h1")).to_have_text("first study")

        page.goto(f"{url}/new")
        page.get_by_label("Begin with").select_option("a file of mine")
        page.get_by_text("A workload to begin with").click()
        mine = tmp_path / "mine.py"
        mine.write_text(page.locator("#own-code").text_content() or "")
        submit.click()
        expect(page.locator("#wrong")).to_contain_text("'mine.py:Mine' is your own file")
        page.get_by_label("Files", exact=True).set_input_files(mine)
        expect(page.locator("#chosen")).to_contain_text("mine.py (")
        mine.write_text(mine.read_text() + "# changed\n")
        submit.click()
        expect(page.locator("#wrong")).to_have_text("mine.py has changed since you chose it: choose it again.")
        page.get_by_role("button", name="Choose none").click()
        expect(page.locator("#chosen li")).to_have_count(0)
        page.get_by_label("Files", exact=True).set_input_files(mine)
        submit.click()
        expect(page.locator("h1")).to_have_text("my model")

        page.get_by_role("link", name="Copy study").click()
        text = page.locator("#spec")
        expect(text).to_have_value(re.compile("^name: my model\nworkload: mine.py:Mine\n"))
        expect(page.get_by_label("The files of study 2")).to_be_checked()
        text.fill(text.input_value().replace("name: my model", "name: its copy"))
        page.reload()
        expect(text).to_have_value(re.compile("^name: its copy"))
        page.get_by_label("Only predict at first").check()
        submit.click()
        expect(page.locator("h1")).to_have_text("its copy")
        page.close()
    store = Store(settings.url)
    assert store.studies.get(2).code == store.studies.get(3).code is not None
    assert store.studies.get(3).spec == {**store.studies.get(2).spec, "name": "its copy", "paused": True}
    store.close()


@pytest.mark.sample
def test_a_mistake_is_said_beside_the_button_and_the_text_stays(browser: Browser, address: str, store: Store) -> None:
    before = len(store.studies.page(limit=1000))
    page = browser.new_page()
    page.goto(f"{address}/new")
    text, begin = page.locator("#spec"), page.get_by_label("Begin with")
    text.fill(text.input_value().replace("trials: 8", "trails: 8"))
    page.get_by_role("button", name="Submit study").click()
    expect(page.locator("#wrong")).to_contain_text("did you mean trials?")
    begin.select_option("a file of mine")
    begin.select_option("a model of ScaMP")
    assert "trails: 8" in text.input_value(), "what was written is still there"
    text.fill("name: [")
    page.get_by_role("button", name="Submit study").click()
    expect(page.locator("#wrong")).to_contain_text("not valid YAML in line 1")
    assert len(store.studies.page(limit=1000)) == before
    page.close()


def test_a_folder_goes_along_with_its_paths_and_without_what_no_workload_needs(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    for name in ("model.py", "data/table.csv", ".git/config", "__pycache__/model.pyc", "parts/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    page = browser.new_page()
    page.goto(f"{address}/new")
    page.get_by_label("or a folder").set_input_files(folder)
    expect(page.locator("#chosen li")).to_have_text(
        ["data/table.csv (1 byte)", "model.py (1 byte)", "parts/__init__.py (1 byte)"]
    )
    page.get_by_label("Begin with").select_option("a file of mine")
    page.get_by_text("A workload to begin with").click()
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.locator("html").evaluate("e => e.scrollWidth") <= width
    page.close()


def test_a_candidate_is_added_as_a_variant_of_a_trial(open_page: Callable[..., Page], store: Store) -> None:
    study = Filler(store).study("to be varied", [{"depth": 2, "lr": 0.001}], trials=1)
    page = open_page(f"/studies/{study.id}/trials/0")
    page.get_by_role("link", name="Try a variant").click()
    params = page.locator("#candidate-params")
    expect(params).to_have_value('{\n  "depth": 2,\n  "lr": 0.001\n}')
    params.fill("{depth: 4}")
    page.get_by_role("dialog").get_by_role("button", name="Add candidate").click()
    expect(page.locator("#candidate-wrong")).to_contain_text("This is not JSON")
    params.fill('{"depth": 4}')
    page.get_by_role("dialog").get_by_role("button", name="Add candidate").click()
    expect(page.get_by_text("Trial 1 is added")).to_be_visible()
    added = store.trials.page(study.id)[1]
    assert added.params["depth"] == 4 and 1e-4 <= added.params["lr"] <= 1e-2, "what is left out is random"


def test_limits_are_changed_and_failed_trials_run_again(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    study = fill.study("to be extended", [{"depth": 2, "lr": 0.001}], trials=3)
    page = open_page(f"/studies/{study.id}")
    page.get_by_role("button", name="Limits…").click()
    page.get_by_role("spinbutton", name="Trials", exact=True).fill("9")
    page.get_by_label("Trials at once").fill("2")
    store.requests.extend(study.id, {"seconds": 900.0}, now=time.time())  # by somebody else, meanwhile
    page.get_by_role("button", name="Change").click()
    expect(page.locator("#done")).to_have_text("0 of 9")
    assert store.studies.get(study.id).spec["budget"]["seconds"] == 900
    page.get_by_role("button", name="Limits…").click()
    page.get_by_label("Trials at once").fill("")
    page.get_by_role("spinbutton", name="Trials", exact=True).press("Enter")
    expect(page.locator("#limits")).to_be_hidden()
    budget = store.studies.get(study.id).spec["budget"]
    assert (budget["trials"], budget["max_concurrent"]) == (9, None)

    (trial,) = fill.ids(study)
    fill.move(trial, TrialState.WAITING, 0, TrialState.FAILED, reason="KeyError")
    trial_page = open_page(f"/studies/{study.id}/trials/0")
    trial_page.get_by_role("button", name="Retry trial").click()
    expect(trial_page.get_by_text("The trial will run again")).to_be_visible()
    expect(trial_page.locator("#retry")).to_be_hidden()
    fill.move(trial, TrialState.WAITING, 0, TrialState.FAILED, reason="KeyError")
    page.get_by_role("button", name="Retry 1 failed trial").click()
    expect(page.get_by_text("1 trial will run again")).to_be_visible()
    expect(page.locator("#retry")).to_be_hidden()


def test_the_form_of_the_space_and_the_text_change_each_other(open_page: Callable[..., Page]) -> None:
    page = open_page("/new")
    text = page.locator("#spec")
    page.get_by_label("high of lr").fill("1")
    page.get_by_label("high of lr").press("Enter")
    expect(text).to_have_value(re.compile(r"  lr: \{low: 0\.0003, high: 1\.0, log: true\}\n"))
    expect(page.get_by_label("high of lr")).to_have_value("1.0")
    text.fill(text.input_value().replace("[2, 4]", "[2, 6]"))
    expect(page.get_by_label("values of depth")).to_have_value("2, 6")
    page.get_by_label("Kind of depth").select_option("int")
    expect(text).to_have_value(re.compile(r"  depth: \{low: 1, high: 6\}\n"))
    page.locator("#new-parameter").fill("width")
    page.get_by_role("button", name="Add parameter").click()
    page.get_by_label("Kind of width").select_option("choice")
    expect(text).to_have_value(re.compile(r"  width: \{choice: \[0\.0, 1\.0\]\}\n"))
    page.get_by_role("button", name="Remove width").click()
    expect(page.get_by_label("Kind of width")).to_have_count(0)
    assert "width" not in text.input_value()
