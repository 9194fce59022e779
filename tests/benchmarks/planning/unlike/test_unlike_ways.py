"""The reference search is exact: no other ways that fit are faster, and limits only leave out slower ones."""

from __future__ import annotations

from itertools import product
from math import ceil, inf

import numpy as np
import pytest

from benchmarks.planning.unlike.layouts import Conversions, Mesh, Tensor, TensorLayout
from benchmarks.planning.unlike.unlike_ways import Flow, Room, UnitWay, UnitWays, choose, priced
from estimators.devices.catalogue import gpu
from estimators.devices.communication import Group


def conversions_on(*groups: Group) -> Conversions:
    links = gpu("V100-32").links
    assert links is not None
    return Conversions(Mesh(groups, links))


SAMPLES, COPIES = TensorLayout(((0,), ())), TensorLayout(((), ()))
TOKENS, SUM = TensorLayout(((), (0,))), TensorLayout(((), ()), frozenset({0}))
DATA = Flow(SAMPLES, SAMPLES, SAMPLES, SAMPLES)
TENSOR = Flow(COPIES, SUM, COPIES, SUM)
SPACE = Flow(TOKENS, TOKENS, TOKENS, TOKENS)
FLOWS = [DATA, TENSOR, SPACE]
TENSOR_BYTES = Tensor((8, 1024))


def draw(seed: int) -> list[UnitWays]:
    source = np.random.default_rng(seed)
    units = []
    for _ in range(int(source.integers(1, 5))):
        ways = []
        for index in range(int(source.integers(1, 5))):
            forward, backward, once = source.uniform(0.0, 2e-4, 3)
            state, kept, working = (float(integer) for integer in source.integers(0, 12, 3))
            flow = FLOWS[source.integers(len(FLOWS))]
            ways.append(UnitWay(f"way {index}", flow, forward, backward, state, kept, working, once))
        units.append(UnitWays(Tensor((8, 1024 * int(source.integers(1, 4)))), tuple(ways)))
    return units


def by_trying(units: list[UnitWays], conversions: Conversions, room: Room, num_micro_batches: int) -> float:
    best = inf
    for places in product(*(range(len(unit.ways)) for unit in units)):
        choice = priced(units, conversions, room, places)
        if choice.peak_bytes <= room.capacity_bytes:
            best = min(best, choice.seconds(num_micro_batches))
    return best


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 200, 50)], ids=str)
def test_no_other_ways_that_fit_are_faster(seeds: range) -> None:
    conversions, num_without = conversions_on(Group(4)), 0
    for seed in seeds:
        units = draw(seed)
        room = Room(10 + 9 * len(units) * (1 + seed % 3), in_flight=1 + seed % 3)
        num = 1 + seed % 4
        choice = choose(units, conversions, room, num_micro_batches=num)
        best = by_trying(units, conversions, room, num)
        assert (choice.seconds(num) if choice else inf) == pytest.approx(best), seed
        assert choice is None or choice.peak_bytes <= room.capacity_bytes
        num_without += choice is None
    assert num_without < len(seeds) / 2


def test_a_limit_of_time_leaves_out_slower_ways_only() -> None:
    units, conversions, room = draw(3), conversions_on(Group(4)), Room(1e9)
    best = choose(units, conversions, room)
    assert best is not None
    assert choose(units, conversions, room, below_seconds=best.seconds(1)) is None
    assert choose(units, conversions, room, below_seconds=best.seconds(1) * 1.01) == best


def test_coarser_memory_never_makes_a_choice_that_does_not_fit() -> None:
    conversions = conversions_on(Group(4))
    for seed in range(60):
        units = draw(seed)
        exact, coarse = (choose(units, conversions, Room(40, 1, step)) for step in (1, 8))
        if coarse is not None:
            assert coarse.peak_bytes <= 40
            assert exact is not None and exact.seconds(1) <= coarse.seconds(1) * (1 + 1e-9)


def test_early_units_divide_space_and_late_ones_the_layers_if_each_saves_more_than_the_conversion() -> None:
    """Early units have large outputs, which tensor parallelism adds up; late ones have too few windows to divide."""
    early_output, late_output = Tensor((8, 4096 * 512)), Tensor((8, 64 * 512))
    early = UnitWays(
        early_output, (UnitWay("space", SPACE, 1e-3, 2e-3), UnitWay("layers", TENSOR, 1e-3 + 4e-3, 2e-3 + 4e-3))
    )
    late = UnitWays(late_output, (UnitWay("space", SPACE, 4e-3, 8e-3), UnitWay("layers", TENSOR, 1e-3, 2e-3)))
    units, conversions = [early, early, late, late], conversions_on(Group(8))
    choice = choose(units, conversions, Room(1.0))
    assert choice is not None
    assert [unit.ways[place].name for unit, place in zip(units, choice.places, strict=True)] == [
        "space",
        "space",
        "layers",
        "layers",
    ]
    ahead, back = choice.conversions[1]
    assert (str(ahead), str(back)) == ("all-gather along mesh 0", "reduce-scatter along mesh 0")
    alike = min(priced(units, conversions, Room(1.0), [place] * 4).seconds(1) for place in (0, 1))
    assert choice.seconds(1) < alike


def test_more_micro_batches_in_flight_make_a_smaller_way_necessary() -> None:
    large, small = UnitWay("whole", DATA, 1.0, 2.0, kept_bytes=4), UnitWay("again", DATA, 1.0, 3.0, kept_bytes=1)
    units = [UnitWays(TENSOR_BYTES, (large, small))] * 2
    conversions = conversions_on(Group(1))
    for in_flight, expected in ((1, (0, 0)), (2, (0, 1)), (4, (1, 1))):
        choice = choose(units, conversions, Room(10, in_flight))
        assert choice is not None and sorted(choice.places) == list(expected)


def test_only_the_unit_that_works_with_most_counts_beside_what_all_hold() -> None:
    way = UnitWay("whole", DATA, 1.0, 2.0, state_bytes=3, working_bytes=5)
    units, conversions = [UnitWays(TENSOR_BYTES, (way,))] * 2, conversions_on(Group(1))
    choice = choose(units, conversions, Room(11))
    assert choice is not None and choice.peak_bytes == 11
    assert choose(units, conversions, Room(10)) is None


def test_sixty_unlike_units_are_chosen_exactly_with_memory_in_large_steps() -> None:
    """Rounded up, the choice is still the best of those whose rounded sizes fit: checked against a plain table."""
    source = np.random.default_rng(1)
    units = []
    for _ in range(60):
        amounts = source.uniform(1, 2, (4, 2))
        ways = (
            UnitWay(str(index), DATA, float(1 / size), float(time), kept_bytes=100 * float(size))
            for index, (size, time) in enumerate(amounts)
        )
        units.append(UnitWays(TENSOR_BYTES, tuple(ways)))
    room = Room(60 * 140, step_bytes=10)
    choice = choose(units, conversions_on(Group(1)), room)
    table = np.full(60 * 14 + 1, inf)
    table[0] = 0.0
    for unit in units:
        after = np.full_like(table, inf)
        for way in unit.ways:
            size, seconds = ceil(way.kept_bytes / 10), way.forward_seconds + way.backward_seconds
            after[size:] = np.minimum(after[size:], table[: len(table) - size] + seconds)
        table = after
    assert choice is not None and choice.seconds(1) == pytest.approx(table.min())
