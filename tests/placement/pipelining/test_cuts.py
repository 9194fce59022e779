"""The best cut is the fastest that fits, and the even one is even."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.pipelining.passes import PipelineSchedule
from estimators.pipelining.schedules import SCHEDULES
from placement.pipelining.cuts import Cut, CutTarget, Piece, best_cut, even_cut, smallest_cut
from placement.pipelining.simulator import StageCost, simulate_step

SECONDS = st.integers(0, 20).map(float)
PIECES = st.builds(Piece, SECONDS, SECONDS, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
NAMES: tuple[Literal["gpipe", "1f1b"], ...] = ("gpipe", "1f1b")
SCHEDULE = st.sampled_from(NAMES)


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[Piece], CutTarget]:
    """Pieces whose backward passes take twice the time of their forward passes, or any time."""
    pieces = draw(st.lists(PIECES, min_size=1, max_size=7))
    if draw(st.booleans()):
        pieces = [replace(piece, backward_seconds=2 * piece.forward_seconds) for piece in pieces]
    num_stages = draw(st.integers(1, min(4, len(pieces))))
    return pieces, CutTarget(draw(SCHEDULE), num_stages, num_stages * draw(st.integers(1, 3)))


def all_cuts(num_pieces: int, num_stages: int) -> Iterator[Cut]:
    for ends in combinations(range(1, num_pieces), num_stages - 1):
        bounds = [0, *ends, num_pieces]
        yield tuple(end - start for start, end in pairwise(bounds))


def stages(pieces: Sequence[Piece], cut: Cut) -> list[list[Piece]]:
    starts = [sum(cut[:stage]) for stage in range(len(cut))]
    return [list(pieces[start : start + size]) for start, size in zip(starts, cut, strict=True)]


def largest_bytes(pieces: Sequence[Piece], cut: Cut, demand: CutTarget) -> int:
    sizes, received = [], 0
    for index, stage in enumerate(stages(pieces, cut)):
        num = demand.in_flight(index)
        sizes.append(sum(piece.state_bytes + num * piece.kept_bytes for piece in stage) + num * received)
        received = stage[-1].output_bytes
    return max(sizes)


@cache
def schedule_of(demand: CutTarget) -> PipelineSchedule:
    return SCHEDULES[demand.schedule](demand.num_stages, demand.num_micro_batches)


def simulated(pieces: Sequence[Piece], cut: Cut, demand: CutTarget) -> float:
    """Seconds of the step."""
    seconds = [sum(piece.forward_seconds for piece in stage) for stage in stages(pieces, cut)]
    return simulate_step(
        schedule_of(demand), [StageCost(second, second, second) for second in seconds]
    ).makespan_seconds


def formula(pieces: Sequence[Piece], cut: Cut, demand: CutTarget) -> float:
    """Seconds of the step by the formulas on top of the module."""
    forward = [sum(piece.forward_seconds for piece in stage) for stage in stages(pieces, cut)]
    backward = [sum(piece.backward_seconds for piece in stage) for stage in stages(pieces, cut)]
    both = [sum(pair) for pair in zip(forward, backward, strict=True)]
    num = demand.num_micro_batches
    if demand.schedule == "gpipe":
        return sum(both) + (num - 1) * max(both)
    times = []
    for stage in range(len(cut)):
        later, ahead = sum(both[stage + 1 :]), len(cut) - 1 - stage
        start, end = max(0, later - ahead * forward[stage]), max(0, later - ahead * backward[stage])
        waits = start + end if num > ahead + 1 or not ahead else max(start, end)
        times.append(sum(both[:stage]) + num * both[stage] + waits)
    return max(times)


@settings(deadline=None)
@given(instances(), st.one_of(st.none(), st.integers(0, 600)))
def test_the_best_cut_is_that_of_brute_force(instance: tuple[list[Piece], CutTarget], capacity: int | None) -> None:
    pieces, demand = instance
    cuts = list(all_cuts(len(pieces), demand.num_stages))
    fitting = [cut for cut in cuts if capacity is None or largest_bytes(pieces, cut, demand) <= capacity]
    cut = best_cut(pieces, demand, capacity)
    if not fitting:
        assert cut is None
    else:
        assert cut in fitting
        is_exact = demand.schedule == "gpipe" and all(
            piece.backward_seconds == 2 * piece.forward_seconds for piece in pieces
        )
        for seconds in (formula, simulated) if is_exact else (formula,):
            assert seconds(pieces, cut, demand) == min(seconds(pieces, cut, demand) for cut in fitting)
    smallest = smallest_cut(pieces, demand)
    least = min(largest_bytes(pieces, cut, demand) for cut in cuts)
    assert smallest in cuts and largest_bytes(pieces, smallest, demand) == least


@given(instances(), st.integers(0, 600), st.integers(0, 200))
def test_more_memory_makes_no_cut_slower(instance: tuple[list[Piece], CutTarget], capacity: int, more: int) -> None:
    pieces, demand = instance
    tight, roomy = (best_cut(pieces, demand, size) for size in (capacity, capacity + more))
    if tight is not None:
        assert roomy is not None and formula(pieces, roomy, demand) <= formula(pieces, tight, demand)


@given(instances(), st.one_of(st.none(), st.integers(0, 600)), st.sampled_from([0.25, 2.0]))
def test_cuts_do_not_depend_on_the_unit_of_time_nor_on_chance(
    instance: tuple[list[Piece], CutTarget], capacity: int | None, factor: float
) -> None:
    pieces, demand = instance
    scaled = [
        replace(piece, forward_seconds=factor * piece.forward_seconds, backward_seconds=factor * piece.backward_seconds)
        for piece in pieces
    ]
    cut = best_cut(pieces, demand, capacity)
    assert cut == best_cut(pieces, demand, capacity) == best_cut(scaled, demand, capacity)


def test_few_cuts_for_1f1b_are_simulated_faster_and_none_much() -> None:
    chance, excess = Random(0), []
    for _ in range(300):
        num_stages = chance.randint(2, 4)
        numbers = [chance.randint(1, 9) for _ in range(chance.randint(num_stages, 7))]
        pieces = [Piece(float(number), 2.0 * number) for number in numbers]
        demand = CutTarget("1f1b", num_stages, num_stages * chance.randint(1, 3))
        cut = best_cut(pieces, demand)
        assert cut is not None
        cuts = list(all_cuts(len(pieces), num_stages))
        assert formula(pieces, cut, demand) == min(formula(pieces, cut, demand) for cut in cuts)
        fastest = min(simulated(pieces, cut, demand) for cut in cuts)
        excess.append(simulated(pieces, cut, demand) / fastest - 1)
    assert max(excess) < 0.08 and sum(excess) / len(excess) < 0.001


@given(schedule=SCHEDULE, num_stages=st.integers(1, 8), size=st.integers(1, 12), seconds=st.floats(1e-6, 1e3))
def test_equal_pieces_are_cut_evenly(schedule: Any, num_stages: int, size: int, seconds: float) -> None:
    pieces = [Piece(seconds, 2 * seconds, 10, 10, 10)] * (num_stages * size)
    demand = CutTarget(schedule, num_stages, len(pieces))  # with few micro-batches 1F1B likes a larger first stage
    assert best_cut(pieces, demand) == even_cut(len(pieces), num_stages) == (size,) * num_stages


@given(num_stages=st.integers(1, 6), num_pieces=st.integers(6, 40), seconds=st.floats(1e-6, 1e3))
def test_of_equal_pieces_no_stage_has_two_more_than_another(num_stages: int, num_pieces: int, seconds: float) -> None:
    cut = best_cut([Piece(seconds, seconds)] * num_pieces, CutTarget("gpipe", num_stages, 4))
    assert cut is not None
    assert max(cut) - min(cut) <= 1
    assert sum(cut) == num_pieces
    assert sorted(cut) == list(cut) and sorted(even_cut(num_pieces, num_stages)) == sorted(cut)


def test_a_stage_with_many_micro_batches_in_flight_gets_fewer_pieces_where_memory_is_short() -> None:
    pieces = [Piece(1.0, 2.0, state_bytes=1, kept_bytes=10)] * 12
    demand = CutTarget("1f1b", 4, 16)
    assert best_cut(pieces, demand) == (3, 3, 3, 3)
    assert best_cut(pieces, demand, 93) == (2, 3, 4, 3)
    assert best_cut(pieces, demand, 40) is None


def test_a_huge_first_piece_is_a_stage_of_its_own() -> None:
    pieces = [Piece(5.0, 5.0), *[Piece(1.0, 1.0)] * 10]
    assert best_cut(pieces, CutTarget("gpipe", 3, 8)) == (1, 5, 5)
    assert best_cut(pieces[::-1], CutTarget("gpipe", 3, 8)) == (5, 5, 1)


def test_among_cuts_of_the_same_time_the_one_that_sends_least_is_taken() -> None:
    pieces = [Piece(1.0, 1.0, output_bytes=size) for size in (9, 9, 1, 9, 9)]
    assert best_cut(pieces, CutTarget("gpipe", 2, 4)) == (3, 2)


def test_fewer_pieces_than_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pieces cannot be divided into 3 stages: choose fewer stages"):
        best_cut([Piece(1.0, 1.0)] * 2, CutTarget("gpipe", 3, 3))
