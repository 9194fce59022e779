"""Amounts of work add up, are affine in the micro-batch, and survive JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple

import numpy as np
import pytest
from pydantic import TypeAdapter

from estimators.devices.kind import DeviceKind, Rate
from estimators.work import OP_KINDS, Collectives, StepWork, Work, WorkCounter
from workloads.calibration.measure import _fit


def counted(*operations: tuple[str, float, float]) -> Work:
    counter = WorkCounter()
    for kind, flops, num_bytes in operations:
        counter.add(kind, flops, num_bytes)
    return counter.work


def only(*amounts: float) -> tuple[float, ...]:
    """Operations, FLOPs and bytes, and none of the other amounts."""
    return (*amounts, 0, 0)


def test_work_adds_up_by_kind() -> None:
    work = counted(("matmul", 8, 3), ("copy", 0, 5), ("matmul", 2, 1))
    assert work.of("matmul") == only(2, 10, 4) and work.of("copy") == only(1, 0, 5)
    assert work.of("other") == only(0, 0, 0)
    assert work + work - work == work
    assert work * 2 == work + work
    assert (work * 3).flops == 30


def test_a_step_is_its_micro_batches_and_the_update() -> None:
    step = StepWork(counted(("copy", 0, 7)), counted(("matmul", 10, 2)), counted(("other", 0, 100)))
    work = step.step(micro_batch=4, num_micro_batches=3)
    assert work.of("matmul") == only(12, 120, 24)
    assert work.of("copy") == only(3, 0, 21) and work.of("other") == only(1, 0, 100)


def talking(kind: str, *sizes: float, dimension: str = "dp", overlaps: bool = False) -> Work:
    counter = WorkCounter()
    for num_bytes in sizes:
        counter.communicate(kind, dimension, num_bytes, overlaps=overlaps)
    return counter.work


def test_collectives_add_up_by_kind_dimension_and_whether_ranks_wait() -> None:
    gathers = talking("all_gather", 8, 2)
    assert gathers.collectives == (Collectives("all_gather", "dp", False, 2, 10),)
    assert (
        (gathers + gathers).collectives == (gathers * 2).collectives == (Collectives("all_gather", "dp", False, 4, 20),)
    )
    others = [
        talking("all_reduce", 1),
        talking("all_gather", 1, dimension="tp"),
        talking("all_gather", 1, overlaps=True),
    ]
    assert len(sum(others, gathers).collectives) == 4
    assert gathers + others[0] - gathers == others[0] and gathers - gathers == Work()
    assert (Work() + gathers).collectives == (gathers + counted(("copy", 0, 1))).collectives == gathers.collectives
    with pytest.raises(ValueError, match=r"kind must be one of all_gather, .*, got 'shout'"):
        Collectives("shout", "dp", False, 1, 1)


def test_collectives_of_a_step_are_affine_in_the_micro_batch() -> None:
    two, four = talking("message", 20, 20), talking("message", 40, 40)
    per_sample = (four - two) * (1 / 2)
    step = StepWork(two - per_sample * 2, per_sample, talking("broadcast", 5)).step(3, 2)
    assert step.collectives == (
        Collectives("message", "dp", False, 4, 120),
        Collectives("broadcast", "dp", False, 1, 5),
    )


def test_what_is_written_is_read_again_and_anything_else_is_refused() -> None:
    step = StepWork(counted(("copy", 0, 7)), counted(("matmul", 10, 2)), talking("all_reduce", 5, overlaps=True))
    assert TypeAdapter(StepWork).validate_json(json.dumps(asdict(step))) == step
    kind = DeviceKind("a CPU", {"matmul": Rate(1e-6, 2e-11, 3e-10, 4e-10)}, "measured today")
    kinds = TypeAdapter(DeviceKind)
    assert kinds.validate_json(json.dumps(asdict(kind))) == kind
    with pytest.raises(ValueError, match=f"{5 * len(OP_KINDS)} amounts, got 2"):
        Work((1, 2))
    with pytest.raises(ValueError, match="unknown kinds of operation: magic"):
        DeviceKind("a CPU", {"magic": Rate(1, 2, 3)}, "made up")
    with pytest.raises(ValueError, match="per_byte"):
        kinds.validate_python(asdict(kind) | {"rates": {"matmul": {"per_op": 1, "per_flop": 2}}})


def test_seconds_are_those_of_each_kind() -> None:
    kind = DeviceKind("a CPU", {"matmul": Rate(1.0, 0.5, 0.0), "copy": Rate(0.0, 0.0, 0.25)}, "made up")
    assert kind.seconds(counted(("matmul", 8, 100), ("copy", 0, 4), ("other", 5, 5))) == 1 + 4 + 1


def test_half_flops_have_a_rate_of_their_own() -> None:
    kind = DeviceKind("a GPU", {"matmul": Rate(0.0, 1.0, 0.0, 0.0, 0.25)}, "made up")
    counter = WorkCounter()
    counter.add("matmul", flops=8)
    counter.add("matmul", flops=8, half_flops=8)
    assert kind.seconds(counter.work) == 8 + 2


def test_rates_are_found_again_in_the_seconds_that_they_made() -> None:
    source = np.random.default_rng(0)
    flops, num_bytes = 10 ** source.uniform(3, 9, 400), 10 ** source.uniform(2, 7, 400)
    fresh = np.where(num_bytes > 1e5, num_bytes / 3, 0.0)
    seconds = 4e-6 + 2e-11 * flops + 3e-10 * num_bytes + 5e-10 * fresh
    coefficients = _fit(np.stack([flops, num_bytes, fresh, np.zeros(400), seconds], 1))
    assert astuple(coefficients) == pytest.approx([4e-6, 2e-11, 3e-10, 5e-10, 2e-11], rel=1e-3)
    half = np.where(source.random(400) < 0.5, flops, 0.0)
    on_gpu = 4e-6 + 2e-11 * (flops - half) + 3e-10 * num_bytes + 7e-12 * half
    coefficients = _fit(np.stack([flops, num_bytes, fresh, half, on_gpu], 1))
    assert astuple(coefficients) == pytest.approx([4e-6, 2e-11, 3e-10, 0, 7e-12], rel=1e-3)
