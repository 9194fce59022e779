"""`scamp plan` has the candidates, memory and seconds of `scamp estimate`, and pipelines besides."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.axes import Spread
from estimators.devices.catalogue import gpu
from estimators.devices.kind import FLOP_COUNTER, DeviceKind, Figure, Rate
from estimators.model import MIB, Plan, Prediction
from placement.exact.plan_words import ways_in_words
from placement.option import Option
from placement.planning.step_seconds import comparable_step, predicted_step
from placement.pricing.unit_costs import ModelCosts
from scamp_service.cli.plan_json import comparison_json
from scamp_service.cli.tables.plan import footnotes, picture, reason, shortage_lines
from scamp_service.sizing.comparison import Comparison, compare
from scamp_service.sizing.estimate import Estimator, equal_devices
from scamp_service.sizing.tracing.options import Tracing
from scamp_service.sizing.tracing.trace_pool import TracePool

pytestmark = pytest.mark.full

SMALL = {"depth": 4, "width": 64, "heads": 4, "batch": 4}
SLOW = DeviceKind("slow", {"matmul": Rate(0.0, 1e-6, 0.0)}, "made up")
NOT_A_CHAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.square().mean()

def make():
    return Net(), lambda batch: torch.zeros(batch, 64)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture(scope="module")
def pool(warm_traces: None) -> Iterator[TracePool]:
    with TracePool(2) as started:
        yield started


def compared(folder: Path, pool: TracePool, kind: DeviceKind | None, mib: int = 1000) -> Comparison:
    estimator = Estimator("vit_digits", None, Tracing(folder, pool=pool), kind)
    name = kind.name if kind and kind.memory else "virtual"
    comparison = compare(estimator, SMALL, equal_devices(2, mib, name))
    assert list(comparison.estimate.options) == list(estimator.estimate(SMALL, equal_devices(2, mib, name)).options)
    return comparison


def of_estimate(comparison: Comparison) -> list[Option]:
    """The options whose plans are those of the estimate."""
    plans = [option.plan for option in comparison.estimate.options]
    return [option for option in comparison.options if option.trained in plans]


def pipelines_of(comparison: Comparison) -> list[Option]:
    return [option for option in comparison.options if option.refinement.pipeline is not None]


def searched_of(comparison: Comparison) -> list[Option]:
    return [option for option in comparison.options if option.refinement.is_searched]


def makespan_seconds(option: Option) -> float:
    assert option.refinement.pipeline is not None
    return option.refinement.pipeline.simulation.makespan_seconds


def test_options_have_the_memory_and_seconds_of_the_estimate(folder: Path, pool: TracePool) -> None:
    on_gpu = compared(folder, pool, gpu("V100-16"), 8000)
    options = of_estimate(on_gpu)
    assert sorted(map(str, options)) == sorted(map(str, on_gpu.estimate.options))
    for listed in options:
        (known_option,) = [option for option in on_gpu.estimate.options if option.plan == listed.plan]
        time = on_gpu.estimate.step_time(known_option)
        assert time is not None and listed.seconds == time.seconds
        assert listed.prediction == known_option.prediction and listed.is_traced
    assert on_gpu.links_are_known and not on_gpu.by_flops


def test_the_best_come_first(folder: Path, pool: TracePool) -> None:
    for kind in (None, SLOW):
        seconds = [float(f"{option.seconds or 0:.6g}") for option in compared(folder, pool, kind).options]
        assert seconds == sorted(seconds) and all(seconds)


def test_pipelines_on_shared_cores_take_longer_than_simulated(folder: Path, pool: TracePool) -> None:
    one_core = replace(SLOW, cores=Figure(1, "assumed", "made up"))
    shared, alone = (pipelines_of(compared(folder, pool, kind)) for kind in (one_core, SLOW))
    assert shared and alone
    for option in shared:
        assert option.seconds is not None and option.seconds > 1.2 * makespan_seconds(option)
    for option in alone:
        assert option.seconds == pytest.approx(makespan_seconds(option))


def test_flops_stand_for_seconds_where_no_speed_is_known(folder: Path, pool: TracePool) -> None:
    by_flops, slow = compared(folder, pool, None), compared(folder, pool, SLOW)
    assert by_flops.by_flops
    assert not slow.by_flops
    assert not slow.links_are_known
    alone = next(option for option in by_flops.options if option.plan.world_size == 1 and not option.plan.recompute)
    work = by_flops.estimate.profile.work[alone.plan.layout]
    assert alone.seconds == pytest.approx(work.step(4, 1).flops)
    assert {"step_flops"} == {name for name in comparison_json(by_flops)["alternatives"][0] if name.startswith("step_")}
    assert {"step_seconds"} == {name for name in comparison_json(slow)["alternatives"][0] if name.startswith("step_")}


def test_the_pipeline_that_ranks_can_train_is_traced_and_the_units_were_nearly_right(
    folder: Path, pool: TracePool
) -> None:
    comparison = compared(folder, pool, None)
    pipelines = pipelines_of(comparison)
    (traced,) = [pipeline for pipeline in pipelines if pipeline.is_traced]
    assert traced.trained is not None and traced.fits
    stages = Estimator("vit_digits", None, Tracing(folder, pool=pool)).predict(SMALL, traced.plan)
    assert traced.prediction.reserved_mib == max(stage.reserved_mib for stage in stages)
    assert traced.refinement.pipeline is not None
    by_units = max(traced.refinement.pipeline.simulation.peak_bytes)
    assert by_units == pytest.approx(traced.prediction.peak_bytes, rel=0.2)
    trained = {ways_in_words(pipeline) for pipeline in pipelines if pipeline.trained is not None}
    assert trained >= {"PP ×2 1f1b", "PP ×2 zb-h1", "PP ×2 zbv"}


def test_plans_of_the_search_stand_beside_the_others_once_and_the_best_that_ranks_can_train_is_traced(
    folder: Path, pool: TracePool
) -> None:
    comparison = compared(folder, pool, gpu("V100-16"), 8000)
    assert {option.plan.world_size for option in comparison.searched} == {1, 2}
    plans = [option.trained for option in comparison.options if option.trained is not None]
    assert len(plans) == len(set(plans)), "no plan has two rows"
    new = searched_of(comparison)
    assert all(option in comparison.searched for option in new)
    trained = [option for option in new if option.trained is not None]
    assert not trained or min(trained, key=lambda option: option.comparable_seconds).is_traced
    best = comparison.best_of_search
    assert best is not None and best.seconds == min(option.seconds or 0.0 for option in comparison.searched)
    assert (comparison.shortage is None) and comparison_json(comparison)["reason"][-1].startswith(
        ("computation", "communication", "bub")
    )
    assert "fastest plan of the search: " in "\n".join(reason(comparison)) and list(shortage_lines(comparison)) == []


class LargeByTrace(Estimator):
    """Its traces show that every plan needs far more than its units say."""

    def predict(self, params: Mapping[str, Any], plan: Plan) -> tuple[Prediction, ...]:
        return tuple(replace(stage, margin_bytes=10_000 * MIB) for stage in super().predict(params, plan))


def test_where_a_trace_shows_that_a_plan_of_the_search_does_not_fit_the_next_one_is_traced(
    folder: Path, pool: TracePool
) -> None:
    comparison = compare(
        LargeByTrace("vit_digits", None, Tracing(folder, pool=pool)), {**SMALL, "batch": 1}, equal_devices(4, 1000)
    )
    new = [option for option in searched_of(comparison) if option.trained is not None]
    assert {option.plan.world_size for option in new} == {2, 4}
    assert all(option.is_traced and not option.fits for option in new)
    assert comparison.best_of_search is not None and comparison.best_of_search.plan.world_size == 1


@pytest.mark.parametrize(
    ("plan", "low", "high"),
    [
        (Plan(2, 2, recompute=True, selective=True), 0.92, 1.08),
        (Plan(1, 2, dp_shard=2), 0.92, 1.08),
        (Plan(2, dp_shard=2, recompute=True), 0.95, 1.2),  # with one micro-batch, gradients come after activations
    ],
    ids=str,
)
def test_memory_added_up_from_units_is_near_that_of_traces(
    folder: Path, pool: TracePool, plan: Plan, low: float, high: float
) -> None:
    model = {"depth": 6, "width": 128, "heads": 4, "batch": 4}
    estimator = Estimator("vit_digits", None, Tracing(folder, pool=pool))
    traced = max(stage.peak_bytes for stage in estimator.predict(model, plan))
    costs = ModelCosts(estimator.estimate(model, equal_devices(1, 1000)).profile, FLOP_COUNTER)
    added = costs.stage_bytes(Spread(**plan.values), costs.counted, plan.micro_batch, 1)
    assert low < added / traced < high


def test_if_nothing_fits_the_closest_plan_and_its_categories_are_named(folder: Path, pool: TracePool) -> None:
    comparison = compared(folder, pool, gpu("V100-16"), 5)
    missing = comparison.shortage
    assert missing is not None and missing.needed_mib > missing.offered_mib == 5
    total = sum(missing.num_bytes.values())
    assert total == pytest.approx(missing.needed_mib * MIB, abs=2 * MIB)
    assert {"parameters", "gradients and optimizer", "activations", "transient", "margin"} == set(missing.num_bytes)
    assert comparison.searched == []
    assert comparison.best_of_search is None
    assert list(reason(comparison)) == []
    lines = list(shortage_lines(comparison))
    assert lines[0].startswith("no plan fits. The closest one, ") and max(map(len, lines)) <= 79
    assert comparison_json(comparison)["shortage"]["needed_mib"] == missing.needed_mib


def test_an_option_that_does_not_fit_has_no_time_as_a_single_sample_may_stand_for_its_batch(
    folder: Path, pool: TracePool
) -> None:
    comparison = compared(folder, pool, SLOW, 12)
    options = of_estimate(comparison)
    assert any(option.is_traced and option.plan.batch < SMALL["batch"] for option in options)
    assert {(option.fits, option.seconds is None) for option in options} == {(True, False), (False, True)}
    bounds = [
        alternative
        for alternative in comparison_json(comparison)["alternatives"]
        if not alternative["fits"] and alternative["schedule"] is None
    ]
    assert bounds and {bound["step_seconds"] for bound in bounds} == {None}


def test_a_pipeline_that_does_not_fit_is_drawn_as_such(folder: Path, pool: TracePool) -> None:
    for mib, verdict in ((10, "does not fit"), (1000, "ranks can train it")):
        assert next(picture(compared(folder, pool, SLOW, mib))).endswith(f"; {verdict}")


def test_a_model_that_cannot_be_cut_says_why_and_its_pipelines_are_only_planned(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("nets.py", NOT_A_CHAIN)
    with Estimator("nets.py:make", packed.getvalue(), Tracing(folder, pool=pool)) as estimator:
        comparison = compare(estimator, {}, equal_devices(2, 1000))
    assert "Net does not say where a pipeline may cut it" in comparison.refusal
    pipelines = pipelines_of(comparison)
    assert pipelines and {pipeline.trained for pipeline in pipelines} == {None}
    undivided = replace(comparison, estimate=replace(comparison.estimate, refused="FSDP expects one type"))
    assert "no FSDP plans: FSDP expects one type" in list(footnotes(undivided))
    assert not any("no plans" in line for line in footnotes(comparison))


HINTED = """
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.protocol import hints

class Hinted(StdlibGpt):
    def build_model(self):
        return hints.pipeline(super().build_model(), stages=2, micro_batches=4)
"""


def test_all_alternatives_obey_the_hints_which_a_footnote_names(folder: Path, pool: TracePool) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("hinted.py", HINTED)
    with Estimator("hinted.py:Hinted", packed.getvalue(), Tracing(folder, pool=pool)) as estimator:
        comparison = compare(estimator, {"batch": 8}, equal_devices(2, 1000))
        none = compare(estimator, {"batch": 8}, equal_devices(1, 1000))
    assert {option.plan.world_size for option in comparison.options} == {2}
    assert {option.plan.num_micro_batches for option in comparison.options} == {4}
    assert any(
        "a pipeline of 2 stages and 4 micro-batches (hint pipeline at the model)" in w for w in footnotes(comparison)
    )
    assert ["PP ×2" in ways_in_words(option) for option in of_estimate(comparison)] == [True]
    plans = [option.trained for option in comparison.options if option.trained is not None]
    assert len(plans) == len(set(plans)), "the choice is one of the pipelines, which has one row"
    assert not none.options and none.shortage is None
    assert any("this takes 2 devices, and there are 1" in line for line in footnotes(none))


@pytest.mark.parametrize("kind", [None, replace(SLOW, links=gpu("H100").links)], ids=["FLOPs", "linked"])
def test_a_chosen_pipeline_takes_as_long_as_a_study_predicts_and_is_drawn(
    kind: DeviceKind | None, folder: Path, pool: TracePool
) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("hinted.py", HINTED)
    with Estimator("hinted.py:Hinted", packed.getvalue(), Tracing(folder, pool=pool), kind) as estimator:
        comparison = compare(estimator, {"batch": 8}, equal_devices(2, 1000))
    (chosen,), (known_option,) = of_estimate(comparison), comparison.estimate.options
    assert chosen.trained is not None and chosen.plan.pp == 2
    step, time = (
        comparable_step(comparison.estimate.profile, chosen.plan, kind),
        comparison.estimate.step_time(known_option),
    )
    assert step is not None and (chosen.seconds, chosen.bubble_share) == (step.seconds, step.bubble_share)
    assert chosen.bubble_share
    assert chosen.bubble_share > 0.1
    assert chosen.refinement.pipeline is not None
    predicted = predicted_step(comparison.estimate.profile, chosen.plan, kind)
    seconds = [each.seconds if each else None for each in (time, predicted)]
    assert seconds == [step.seconds if kind and kind.links else None] * 2


def test_json_has_every_interval_of_the_best_pipeline(folder: Path, pool: TracePool) -> None:
    comparison = compared(folder, pool, SLOW)
    data = json.loads(json.dumps(comparison_json(comparison)))
    best = comparison.best_pipeline
    assert best is not None and best.refinement.pipeline is not None
    schedule = best.refinement.pipeline.schedule
    assert [len(rank) for rank in data["best_pipeline"]["computing"]] == [len(order) for order in schedule.orders]
    start, end, stage, micro_batch, kind = data["best_pipeline"]["computing"][0][0]
    assert (start, stage, micro_batch, kind) == (0.0, 0, 0, "forward")
    assert end > 0
