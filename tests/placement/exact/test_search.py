"""No plan is faster than the one found, as a mixed-integer program confirms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.oracle import Question, by_programming, by_trying, draw, price
from estimators.axes import Spread
from estimators.model import Plan
from placement.exact.search import StagedPlan, search
from placement.exact.ways import Costs, Devices, Way
from placement.pipelining.cuts import CutTarget, Piece, best_cut, even_cut

NEVER = inf


def answer_of(question: Question) -> StagedPlan | None:
    return search(question.ways, question.devices, batch=question.batch)


def seconds(question: Question) -> float:
    plan = answer_of(question)
    return inf if plan is None else plan.seconds


def row(amount: float, num_units: int) -> list[float]:
    return [amount] * num_units


def equal_units(num_units: int, **others: Any) -> Costs:
    """Units of 1 + 2 s that keep 8 bytes, or 2 if they are recomputed for 1 s, and have 4 bytes of states."""
    amounts = {
        "forward_seconds": 1.0,
        "backward_seconds": 2.0,
        "state_bytes": 4.0,
        "kept_bytes": 8.0,
        "output_bytes": 1.0,
        "recompute_seconds": 1.0,
        "recomputed_kept_bytes": 2.0,
        "message_seconds": 0.0,
        "update_seconds": 0.0,
    }
    rows: dict[str, Any] = {name: row(amount, num_units) for name, amount in amounts.items()}
    return Costs(**{**rows, **others})


def one_way(costs: Costs, num_stages: int | None = None) -> Way:
    return Way(Spread(), 1, (costs,), num_stages)


def plan_of(plan: StagedPlan | None) -> StagedPlan:
    assert plan is not None
    return plan


@pytest.mark.parametrize("seeds", [range(start, start + 60) for start in range(0, 240, 60)], ids=str)
def test_no_plan_is_faster_than_the_one_found(seeds: range) -> None:
    for seed in seeds:
        question = draw(seed, num_kinds=1 + seed % 2, most_units=6 - seed % 2)
        assert seconds(question) == pytest.approx(by_trying(question)), seed


def test_a_mixed_integer_program_finds_the_same_seconds() -> None:
    for seed in range(1000, 1032):
        question = draw(seed, most_units=5)
        assert seconds(question) == pytest.approx(by_programming(question)), seed


@pytest.mark.full
def test_a_plan_costs_what_it_says_and_fits() -> None:
    num_found = 0
    for seed in range(2000, 2150):
        question = draw(seed, num_kinds=1 + seed % 2)
        plan = answer_of(question)
        if plan is not None:
            num_found += 1
            capacity_bytes = {device.name: device.capacity_bytes for device in question.devices}
            expected_seconds, sizes = price(question, plan)
            assert plan.seconds == pytest.approx(expected_seconds)
            assert list(plan.peak_bytes) == sizes
            assert all(size <= capacity_bytes[name] for size, name in zip(sizes, plan.devices, strict=True))
    assert num_found > 100


QUESTIONS = st.builds(draw, st.integers(0, 10_000), num_kinds=st.integers(1, 2))


@settings(max_examples=40, deadline=None)
@given(QUESTIONS, st.integers(1, 60))
def test_more_memory_never_makes_the_best_plan_slower(question: Question, more_bytes: int) -> None:
    larger = [replace(device, capacity_bytes=device.capacity_bytes + more_bytes) for device in question.devices]
    assert seconds(replace(question, devices=larger)) <= seconds(question) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(QUESTIONS, st.integers(1, 4))
def test_more_devices_never_make_the_best_plan_slower(question: Question, more: int) -> None:
    others = [replace(device, count=device.count + more) for device in question.devices]
    assert seconds(replace(question, devices=others)) <= seconds(question) * (1 + 1e-9)


def slower(costs: Costs, factor: float) -> Costs:
    values = {array.name: getattr(costs, array.name) for array in fields(costs)}
    return Costs(**{name: value * factor if name.endswith("seconds") else value for name, value in values.items()})


@settings(max_examples=40, deadline=None)
@given(QUESTIONS, st.sampled_from([1e-6, 0.5, 3.0, 1e4]))
def test_the_best_time_is_scaled_with_all_times(question: Question, factor: float) -> None:
    ways = [replace(way, costs=tuple(slower(costs, factor) for costs in way.costs)) for way in question.ways]
    assert seconds(replace(question, ways=ways)) == pytest.approx(seconds(question) * factor)


@settings(max_examples=40, deadline=None)
@given(QUESTIONS)
def test_the_same_question_has_the_same_answer(question: Question) -> None:
    assert answer_of(question) == answer_of(question)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 7])
def test_equal_units_are_cut_evenly(num_stages: int) -> None:
    plan = plan_of(search([one_way(equal_units(10), num_stages)], [Devices("", 8, 1000)], batch=8))
    pieces = [Piece(1.0, 2.0, 4, 8, 1)] * 10
    assert plan.cut == best_cut(pieces, CutTarget("gpipe", num_stages, 8))  # which has the same formula
    assert sorted(plan.cut) == sorted(even_cut(10, num_stages))


def test_of_equally_fast_cuts_the_one_that_sends_fewest_bytes_is_taken() -> None:
    costs = equal_units(5, output_bytes=[9.0, 9.0, 2.0, 9.0, 9.0])
    plan = plan_of(search([one_way(costs, 2)], [Devices("", 2, 1000)], batch=2))
    assert plan.cut == (3, 2)


def test_of_equally_fast_plans_the_one_with_the_fewest_ranks_is_taken() -> None:
    costs = equal_units(4)
    ways = [Way(Spread(tp=2), 1, (costs,), 1), one_way(costs, 1)]
    assert plan_of(search(ways, [Devices("", 2, 1000)], batch=2)).num_ranks == 1


def test_only_as_many_units_are_recomputed_as_must_be() -> None:
    # 6 units need 24 bytes of states and 48 of activations; each that is recomputed saves 6
    plan = plan_of(search([one_way(equal_units(6), 1)], [Devices("", 1, 62)], batch=2))
    assert plan.recomputed == (0, 1)
    assert plan.seconds == 2 * (6 * 3 + 2)


def test_the_stage_with_more_micro_batches_in_flight_is_on_the_larger_memory() -> None:
    costs = equal_units(4, recompute_seconds=row(NEVER, 4))
    devices = [Devices("small", 1, 25), Devices("large", 1, 45)]
    plan = plan_of(search([Way(Spread(), 1, (costs, costs), 2)], devices, batch=2))
    assert plan.devices == ("large", "small")


def test_more_units_are_on_faster_devices() -> None:
    slow, fast = equal_units(9), slower(equal_units(9), 0.5)
    devices = [Devices("slow", 1, 1000), Devices("fast", 1, 1000)]
    plan = plan_of(search([Way(Spread(), 1, (slow, fast), 2)], devices, batch=64))
    assert dict(zip(plan.devices, plan.cut, strict=True)) == {"slow": 3, "fast": 6}


def test_1f1b_has_a_micro_batch_for_every_stage() -> None:
    plan = plan_of(search([one_way(equal_units(8))], [Devices("", 8, 1000)], batch=2))
    assert len(plan.cut) == 2


def test_one_stage_holds_one_micro_batch() -> None:
    devices = [Devices("", 1, 6 * 4 + 6 * 8)]
    assert not plan_of(search([one_way(equal_units(6))], devices, batch=8)).recomputed


def test_the_spread_and_micro_batches_are_those_of_a_plan_that_ranks_can_be_given() -> None:
    for seed in range(50):
        question = draw(seed)
        staged = answer_of(question)
        if staged is not None:
            plan = Plan(staged.micro_batch, staged.num_micro_batches, **staged.spread.values)
            assert (plan.batch, plan.world_size) == (question.batch, staged.num_ranks)


def test_there_is_no_plan_that_fits_nowhere_or_does_not_divide_the_batch() -> None:
    assert search([one_way(equal_units(6), 2)], [Devices("T4", 2, 20)], batch=2) is None
    assert search([Way(Spread(), 4, (equal_units(4),))], [Devices("T4", 2, 1000)], batch=6) is None


def test_a_way_needs_costs_for_every_kind_of_devices() -> None:
    with pytest.raises(ValueError, match="each of 2 kinds of devices"):
        search([one_way(equal_units(4))], [Devices("a", 1, 9), Devices("b", 1, 9)], batch=2)


def unlike_units(num_units: int, seed: int) -> Iterator[tuple[str, Any]]:
    source = np.random.default_rng(seed)
    yield "recompute_seconds", source.uniform(1, 2, num_units)
    yield "kept_bytes", source.uniform(5, 9, num_units)
    yield "recomputed_kept_bytes", source.uniform(1, 2, num_units)


def test_a_plan_fits_also_where_not_all_choices_of_recompute_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = equal_units(12, **dict(unlike_units(12, 0)))
    devices = [Devices("", 1, 100)]
    exact = plan_of(search([one_way(costs, 1)], devices, batch=1))
    monkeypatch.setattr("placement.exact.recompute.MOST_POINTS", 3)
    thinned = plan_of(search([one_way(costs, 1)], devices, batch=1))
    assert exact.seconds < thinned.seconds and max(thinned.peak_bytes) <= 100
