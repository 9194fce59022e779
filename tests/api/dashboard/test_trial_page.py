"""The page of one trial: its plan, attempts and times, and one step of its pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from estimators.model import MIB, Plan, Prediction
from placement.option import Option
from placement.pipelining.timeline import PassTime, PipelineStep, StageStep
from scamp_service.lifecycle import Outcome, TrialState
from scamp_service.model import RecordedPipeline, TrialChanges
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from tests.api.dashboard.filler import DEVICES, Filler
from tests.values import changed, sized
from workloads.trial import ARTIFACTS, TrialContext

T = TrialState


@pytest.mark.browser
def test_a_trial_shows_how_an_out_of_memory_was_healed(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1")
    expect(page.locator("#memory canvas")).to_be_visible()  # what is drawn above the table moves it
    page.locator("#trials tr.row", has_text="1 OOM").click()
    expect(page.locator("h1")).to_have_text("Trial 5")
    expect(page.locator("#plan")).to_have_text("FSDP over 2 ranks, micro-batch 2 × 8, recompute; effective batch 32")
    first = page.locator("#attempts tbody").last
    expect(first).to_contain_text("Out of memory")
    expect(first).to_contain_text("can't allocate memory")
    expect(first.locator("td.num").nth(2)).to_have_text("> 43.0")
    expect(page.locator("#predicted")).to_have_text("53 MiB −11.7 %")
    expect(page.locator("#measured")).to_have_text("60 MiB")
    expect(page.locator("#attempts-aside")).to_have_text("2 attempts, 1 out-of-memory failure healed by a new plan")
    expect(page.locator("#curves figure")).to_have_count(2)
    expect(page.locator("#log li").last).to_contain_text("step 120 accuracy")
    page.get_by_label("Search the log").fill("STEP 120")
    expect(page.locator("#log-card")).to_contain_text("1 line with it")
    expect(page.locator("#log")).to_be_hidden()
    page.get_by_label("Search the log").fill("")
    expect(page.locator("#log")).to_be_visible()


@pytest.mark.browser
def test_a_trial_shows_the_step_time_of_its_plan_and_of_each_attempt(
    open_page: Callable[..., Page], store: Store
) -> None:
    page = open_page("/studies/1/trials/0")
    expect(page.locator("#step-time")).to_have_text("20 ms / 24.2 ms × 1.21")
    expect(page.locator("#plan-time")).to_contain_text("20 ms with the gang alone on its host")
    cells = page.locator("#attempts tbody td.num")
    expect(cells.nth(3)).to_have_text("20 ms")
    expect(cells.nth(4)).to_have_text("24.2 ms")


@pytest.mark.browser
def test_a_trial_says_that_its_step_time_is_corrected_by_earlier_trials(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill = Filler(store)
    (trial,) = fill.ids(fill.study("learned", [{"depth": 2, "lr": 0.001}], trials=1))
    sized_trial = changed(sized(Plan(32)), step_seconds=0.026, step_factor=1.3)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=sized_trial, reason="fits", changes=TrialChanges(family="vit"))
    page = open_page(f"/studies/{store.trials.get(trial).study_id}/trials/0")
    expect(page.locator("#step-time")).to_have_text("26 ms / –")
    expect(page.locator("#plan-time")).to_contain_text("26 ms, which is × 1.30 as in earlier trials of its family")


@pytest.mark.browser
def test_a_trial_lists_the_plans_that_were_compared_and_which_was_chosen(
    open_page: Callable[..., Page], store: Store
) -> None:
    fill, wide = Filler(store), Plan(16, dp_shard=2)
    (trial,) = fill.ids(fill.study("compared", [{"depth": 2, "lr": 0.001}], trials=1))
    options = (Option(Plan(32), Prediction(97 * MIB), 96), Option(wide, Prediction(60 * MIB), 96))
    sized_trial = replace(sized(wide), options=options)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=sized_trial, reason="fits", changes=TrialChanges(family="vit"))
    page = open_page(f"/studies/{store.trials.get(trial).study_id}/trials/0")
    expect(page.locator("#options-aside")).to_have_text("the first plan that fits was chosen")
    expect(page.locator("#options-rows tr").first).to_contain_text("over 96 MiB")
    expect(page.locator("#options-rows tr").nth(1)).to_contain_text("chosen")


@pytest.mark.browser
def test_a_plan_on_any_axis_is_shown_with_its_ranks_and_batch(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    study = fill.study("axes", [{"depth": 2, "lr": 0.001}, {"depth": 4, "lr": 0.001}], trials=2)
    runs, waits = fill.ids(study)
    plan = Plan(4, 4, tp=2, pp=2)
    fill.plan(runs, plan, 10)
    fill.begin(runs, 1, tuple(each.device.id for each in DEVICES))
    fill.plan(waits, Plan(4, dp_replicate=4), 10)
    page = open_page(f"/studies/{study.id}")
    row = page.locator("#trials tr.row").first
    for column, text in [(4, "2"), (5, "0.001"), (6, "TP ×2 · PP ×2"), (7, "16")]:
        expect(row.locator("td").nth(column)).to_have_text(text)
    expect(page.locator("#running")).to_have_text("1 on 4 ranks")
    page = open_page(f"/studies/{study.id}/trials/0")
    words = "tensor parallel over 2 ranks × 1f1b pipeline of 2 stages, micro-batch 4 × 4; effective batch 16"
    expect(page.locator("#plan")).to_have_text(words)
    expect(page.locator("#attempts")).to_contain_text("TP ×2 · PP ×2")
    waiting = open_page("/cluster").locator("#waiting tr", has_text="axes")
    expect(waiting.locator("td").nth(3)).to_have_text("4")
    fill.end(runs, 1, Outcome.DONE)


def plan_pipeline(fill: Filler, num_micro_batches: int = 4) -> int:
    """A waiting trial with a pipeline of two stages, each of two ranks."""
    (trial,) = fill.ids(fill.study("pipeline", [{"depth": 2, "lr": 0.001}], trials=1))
    first = StageStep(PassTime(0.010, sending_seconds=0.002), PassTime(0.020), 0.001, 40 * MIB, 5 * MIB, 2 * MIB)
    last = StageStep(PassTime(0.010), PassTime(0.020, sending_seconds=0.002), 0.001, 40 * MIB, 5 * MIB, 2 * MIB)
    step = PipelineStep(Plan(4, num_micro_batches, pp=2, dp_shard=2), (first, last))
    pipeline = RecordedPipeline(step, "s", communicates=True, offered_mib=96)
    sized_trial = replace(sized(step.plan), pipeline=pipeline)
    fill.move(trial, T.WAITING, 0, T.QUEUED, sized=sized_trial, reason="fits", changes=TrialChanges(family="vit"))
    return trial


@pytest.mark.browser
def test_a_trial_draws_a_step_of_its_pipeline(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    trial = plan_pipeline(fill)
    page = open_page(f"/studies/{store.trials.get(trial).study_id}/trials/0")
    step = page.locator("#timeline svg.step")
    expect(page.locator("#timeline-aside")).to_have_text(
        "predicted 161 ms · on average 20 % bubble · 5.0 % communication"
    )
    expect(
        page.get_by_role("img", name="One optimizer step of a pipeline of 2 stages and 4 micro-batches")
    ).to_be_visible()
    expect(step.locator("desc")).to_contain_text("Stage 0 on ranks 0, 2: at most 52 MiB; the device offers 96 MiB")
    expect(page.locator("#timeline .names span")).to_have_text(
        ["Stage 0", "Stage 1", "Memory held", "Stage 052 MiB of 96 MiB", "Stage 147 MiB of 96 MiB"]
    )
    for kind, num in [("forward", 8), ("backward", 8), ("update", 2)]:
        expect(step.locator(f".pass.{kind}")).to_have_count(num)
    expect(step.locator(".pass.forward text").first).to_have_text("0")
    expect(step.locator(".pass .sending")).to_have_count(8)
    expect(step.locator(".message")).to_have_count(8)
    expect(step.locator(".memory .limit")).to_have_count(2)
    title = step.locator(".pass.forward title").first
    expect(title).to_have_text(
        "Forward pass of micro-batch 0 on stage 0\n0 ms to 12 ms, 12 ms long\ncommunicates for the last 2 ms of it"
    )
    again = sized(Plan(8, 2, dp_shard=2))
    fill.move(trial, T.QUEUED, 0, T.QUEUED, sized=again, reason="planned anew")
    expect(page.locator("#timeline-card")).to_be_hidden()


@pytest.mark.browser
def test_a_long_step_scrolls_in_its_figure_and_the_page_does_not(open_page: Callable[..., Page], store: Store) -> None:
    trial = plan_pipeline(Filler(store), num_micro_batches=16)
    page = open_page(f"/studies/{store.trials.get(trial).study_id}/trials/0")
    plot = page.locator("#timeline .plot")
    expect(plot).to_be_visible()
    assert plot.evaluate("e => e.scrollWidth <= e.clientWidth"), "a wide window shows all of it"
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("#timeline .names")).to_be_visible()
    page.wait_for_function("() => { const e = document.querySelector('.plot'); return e.scrollWidth > e.clientWidth; }")
    assert page.locator("html").evaluate("e => e.scrollWidth") <= 390
    narrowest = "e => Math.min(...[...e.querySelectorAll('.pass.forward .box')].map(b => b.getBBox().width))"
    assert page.locator("#timeline svg.step").evaluate(narrowest) >= 9.5


@pytest.mark.browser
def test_a_trial_without_a_pipeline_has_no_empty_figure(open_page: Callable[..., Page]) -> None:
    page = open_page("/studies/1/trials/5")
    expect(page.locator("#plan")).to_contain_text("FSDP over 2 ranks")
    expect(page.locator("#timeline-card")).to_be_hidden()


@pytest.mark.browser
def test_one_trial_is_paused_started_first_stopped_and_deleted(open_page: Callable[..., Page], store: Store) -> None:
    fill = Filler(store)
    study = fill.study("handled", [{"depth": 2, "lr": 0.001}], trials=1).id
    page = open_page(f"/studies/{study}/trials/0")
    page.on("dialog", lambda dialog: dialog.accept())
    expect(page.get_by_role("button", name="Delete trial")).to_be_hidden()
    page.get_by_role("button", name="Start first").click()
    expect(page.get_by_role("button", name="Start in turn")).to_be_visible()
    page.get_by_role("button", name="Pause trial").click()
    expect(page.get_by_role("button", name="Resume trial")).to_be_visible()
    trial = store.trials.numbered(study, 0)
    assert trial.paused and trial.priority == 100
    page.get_by_role("button", name="Stop trial").click()
    expect(page.locator("#state")).to_have_text("Cancelled")
    page.get_by_role("button", name="Delete trial").click()
    page.wait_for_url(f"**/studies/{study}")
    expect(page.locator("#trials")).to_contain_text("No trial")


@pytest.mark.browser
def test_pictures_that_a_trial_keeps_are_shown_and_their_scripts_do_not_run(
    open_page: Callable[..., Page], store: Store, settings: Settings
) -> None:
    trial = store.trials.numbered(1, 0)
    kept = TrialContext(folder=settings.checkpoints / str(trial.id) / ARTIFACTS)
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='30'><script>top.document.title='bad'</script></svg>"
    )
    kept.keep("samples/1.svg", svg.encode())
    kept.keep("samples/1.html", b"<script>document.title='bad'</script>")
    page = open_page("/studies/1/trials/0")
    picture = page.locator("#pictures img")
    expect(picture).to_have_count(1)
    picture.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('#pictures img').naturalWidth === 40")
    assert "bad" not in page.title()
