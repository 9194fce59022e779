"""The gangs are varied, divisible as their plans say, and judged by their worst rank."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.covering import divided
from benchmarks.covering.parts import gangs_part
from benchmarks.covering.parts.gangs_part import Gang, Result
from benchmarks.running.results import Finding
from workloads.function import FunctionWorkload
from workloads.protocol import Spatial, Split


def test_there_are_enough_gangs_of_two_and_four_ranks_with_small_micro_batches() -> None:
    every = gangs_part.cases(False, 0)
    assert len(every) >= 24 and len({str(gang) for gang in every}) == len(every)
    assert {gang.plan.world_size for gang in every} == {2, 4}
    assert {gang.plan.micro_batch for gang in every} == {1, 2, 3, 4}
    assert {gang.params["model"] for gang in every[: -gangs_part.NUM_DRAWN]} == set(divided.MODELS)


def test_only_the_last_gangs_depend_on_the_seed() -> None:
    cases, other = (gangs_part.cases(False, seed) for seed in (0, 1))
    assert cases == gangs_part.cases(False, 0)
    end = -gangs_part.NUM_DRAWN
    assert cases[:end] == other[:end] and cases[end:] != other[end:]


def test_every_drawn_gang_can_be_divided_as_its_plan_says() -> None:
    source = random.Random(3)
    for _ in range(200):
        gang = gangs_part.draw(source)
        allowed = {"tp": divided.TENSOR_PARALLEL, "spatial": divided.SPATIAL}
        for axis, models in allowed.items():
            assert getattr(gang.plan, axis) == 1 or gang.params["model"] in models


@pytest.mark.parametrize("model", divided.MODELS)
def test_every_model_trains_and_says_how_it_is_divided(model: str) -> None:
    workload = FunctionWorkload(divided.make, {"model": model, "width": 16, "depth": 2, "size": 16})
    net = workload.build_model()
    loss = workload.loss(net, workload.train_batch(torch.arange(2)))
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad is not None for parameter in net.parameters())
    blocks = workload.blocks(net)
    assert len(blocks) >= 2
    if model in divided.TENSOR_PARALLEL:
        assert all(isinstance(block.split, Split) for block in blocks)
    if model in divided.SPATIAL:
        assert isinstance(net.spatial, Spatial)


def test_a_gang_reads_back_what_it_wrote() -> None:
    for gang in gangs_part.cases(False, 0):
        assert Gang.from_json(gang.to_json()) == gang


def test_the_worst_rank_counts_whether_too_high_or_too_low() -> None:
    results = [Result([95, 100], [100, 100], [99, 104]), Result([101], [100], [102]), Result([105], [99], [102])]
    assert [round(error, 2) for result in results for error in result.errors_pct] == [-4.04, 0, 0, 2.94]
    values = gangs_part.figures(results)
    assert values["conv_ranks_cases"] == 3 and values["conv_ranks_max_pct"] == pytest.approx(100 * 4 / 99)
    assert values["conv_ranks_by_hook_max_pct"] == pytest.approx(100 * 6 / 99)
    assert results[0].row()[3] == "-4.04 %"


def test_bad_gangs_are_named() -> None:
    values = [{"predicted": [size], "allocated": [100], "counted": [100]} for size in (102, 104)]
    findings = [Finding("gangs", name, ["row"], value) for name, value in zip(("fine", "off"), values, strict=True)]
    assert gangs_part.notes(findings) == ["  off: row"]
