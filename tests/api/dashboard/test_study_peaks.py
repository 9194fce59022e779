"""Predicted against measured memory and step times on the page of a study."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from estimators.model import Plan
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.model import TrialChanges
from scamp_service.store.store import Store
from tests.api.dashboard.filler import Filler
from tests.api.dashboard.serving import plot_in

T = TrialState


def point_at_peak(page: Page, predicted: float, measured: float, top: float) -> None:
    """Point at a place of the plot of peaks, in MiB; ``top`` ends both axes."""
    plot = plot_in(page, "#memory")
    page.mouse.move(
        plot["x"] + plot["width"] * predicted / top, plot["y"] + plot["height"] * (1 - measured / top), steps=3
    )


@pytest.mark.browser
def test_predicted_is_plotted_against_measured_and_an_out_of_memory_as_a_lower_bound(
    open_page: Callable[..., Page],
) -> None:
    page = open_page("/studies/1")
    top = 70 * 1.12
    point_at_peak(page, 70, 67.9, top)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#memory .tip")).to_contain_text("predicted 70.0, measured 67.9 MiB (-3.0 %)")
    point_at_peak(page, 40, 43, top)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 5 completed, attempt 1 out of memory")
    expect(page.locator("#memory .tip")).to_contain_text("predicted 40.0, needs more than 43.0 MiB (+8 %)")
    point_at_peak(page, 53, 60, top)
    expect(page.locator("#memory .tip")).to_contain_text("attempt 2")
    words = "Attempts that had enough memory: median error 3.1 %, worst 11.7 %, by tensors."
    expect(page.locator("#memory-errors")).to_have_text(words)
    expect(page.locator("#memory-failures")).to_have_text(
        "1 attempt out of memory: the worst needed at least 8 % more than predicted."
    )
    expect(page.locator("#memory-learned")).to_have_text(
        "Learned: +13.0 MiB from 5 trials of a family with layout single (study 1); "
        "+7.0 MiB from 3 trials of a family with layout fsdp2+recompute+accumulate (study 1)."
    )


@pytest.mark.browser
def test_a_peak_appears_as_soon_as_it_is_measured(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("peaks", [{"depth": 2, "lr": 0.001}], trials=1))
    page = open_page(f"/studies/{store.trials.get(trial).study_id}")
    expect(page.locator("#memory .blank")).to_contain_text("once its peak memory has been measured")
    expect(page.locator("#memory-errors")).to_be_empty()
    expect(page.locator("#memory-learned")).to_be_empty()
    fill.plan(trial, Plan(32), 30)
    fill.begin(trial, 1, ("node-a/1",))
    fill.report(trial, 1, 10, 0.5, 36)
    expect(page.locator("#memory .blank")).to_be_hidden()
    expect(page.locator("#memory-errors")).to_have_text("Median error 16.7 %, worst 16.7 %, by tensors.")
    point_at_peak(page, 30, 36, 36 * 1.12)
    expect(page.locator("#memory .tip")).to_contain_text("Trial 0 running")


@pytest.mark.browser
def test_predicted_step_times_are_plotted_against_measured_ones(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#steps-errors")).to_have_text(
        re.compile(r"^Median error 18 %, worst 26 %\. Predictions are for a gang alone on its host\.$")
    )
    low, high = 0.020 / 1.4, 0.0875 * 1.4  # the first prediction, and the last measurement of trial 2
    plot = plot_in(page, "#steps")

    def place(seconds: float) -> float:
        return math.log(seconds / low) / math.log(high / low)

    x, y = place(0.070), 1 - place(67.9 / 800)
    page.mouse.move(plot["x"] + plot["width"] * x, plot["y"] + plot["height"] * y, steps=3)
    expect(page.locator("#steps .tip")).to_contain_text("Trial 2 completed")
    expect(page.locator("#steps .tip")).to_contain_text("predicted 70 ms, measured 84.9 ms (× 1.21)")


@pytest.mark.browser
def test_where_the_speed_of_devices_is_not_known_the_pages_say_so(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("speed", [{"depth": 2, "lr": 0.001}], trials=1))
    fill.plan(trial, Plan(32), 30, is_timed=False)
    fill.begin(trial, 1, ("node-a/1",))
    study = open_page(f"/studies/{store.trials.get(trial).study_id}")
    expect(study.locator("#steps .blank")).to_contain_text("once its steps have been timed")
    expect(study.locator("#steps-errors")).to_be_empty()
    fill.report(trial, 1, 10, 0.5, 36)
    expect(study.locator("#steps-errors")).to_contain_text("Measured: 45 ms. None was predicted, as the speed")
    expect(study.locator("#steps .body")).to_be_hidden()
    page = open_page(f"/studies/{store.trials.get(trial).study_id}/trials/0")
    expect(page.locator("#step-time")).to_have_text("– / 45 ms")
    expect(page.locator("#plan-time")).to_contain_text("It is measured when no study runs, or by “scamp calibrate”")


@pytest.mark.browser
def test_healed_counts_trials_that_ended_well_after_an_out_of_memory(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    study = fill.study("healing", [{"depth": 2, "lr": 0.001}], trials=1)
    (trial,) = fill.ids(study)
    fill.plan(trial, Plan(32), 10)
    fill.begin(trial, 1, ("node-b/1",))
    fill.end(trial, 1, Outcome.OUT_OF_MEMORY)
    fill.move(trial, T.RUNNING, 1, T.QUEUED, changes=TrialChanges(num_oom=1))
    fill.begin(trial, 2, ("node-b/1",))
    page, trial_page = open_page(f"/studies/{study.id}"), open_page(f"/studies/{study.id}/trials/0")
    expect(page.locator("#trials tr.row")).to_contain_text("2 · 1 OOM")
    expect(page.locator("#healed")).to_have_text("0")
    expect(trial_page.locator("#attempts-aside")).to_have_text("2 attempts, 1 out-of-memory failure")
    fill.end(trial, 2, Outcome.DONE)
    fill.move(trial, T.RUNNING, 2, T.COMPLETED)
    expect(page.locator("#healed")).to_have_text("1")
    expect(trial_page.locator("#attempts-aside")).to_have_text(
        "2 attempts, 1 out-of-memory failure healed by a new plan"
    )
