"""The ways that are listed for a model, and that hints only ever leave some of them out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.axes import Spread
from estimators.constraints import Limit, Name, PlanConstraints
from estimators.model import INDIVISIBLE, Divisions
from placement.planning.ways import list_ways

EVERYTHING = Divisions(most_parts=8, in_parts=True, most_stages=8, most_slabs=8)


COPIES = {"FSDP ×4", "ZeRO-2 ×4", "DP ×2 · FSDP ×2", "DP ×2 · ZeRO-2 ×2", "DP ×4", "ZeRO-1 ×4"}


def limited(*limits: tuple[Name, int, int | None], divisions: Divisions = EVERYTHING) -> Divisions:
    constraints = tuple(Limit(name, least, most, "hint", "here") for name, least, most in limits)
    return replace(divisions, constraints=PlanConstraints(constraints))


def shorts(divisions: Divisions, num_ranks: int) -> set[str]:
    return {way.short for way in list_ways(divisions, num_ranks)}


def test_a_model_that_says_nothing_is_replicated_or_sharded() -> None:
    assert shorts(INDIVISIBLE, 4) == COPIES
    assert shorts(INDIVISIBLE, 1) == {"1 rank"}


def test_every_way_comes_with_each_kind_of_recompute() -> None:
    ways = list_ways(EVERYTHING, 2)
    plain = {replace(way, recompute=False, selective=False) for way in ways if way.co_shard == 1}
    for way in plain:
        assert {way, replace(way, recompute=True), replace(way, recompute=True, selective=True)} <= set(ways)


def test_every_product_of_degrees_is_listed_once_plain_sharding_first() -> None:
    ways = list_ways(EVERYTHING, 8)
    assert ways[0] == Spread(dp_shard=8) and len(set(ways)) == len(ways)
    plain = {
        way for way in ways if way == Spread(dp_replicate=way.dp_replicate, dp_shard=way.dp_shard, tp=way.tp, pp=way.pp)
    }
    assert len(plain) == 20, "8 as a product of four degrees"
    assert all(way.spatial * way.dp_shard * way.dp_replicate == 8 for way in ways if way.spatial > 1)


def test_ways_that_another_one_always_beats_are_left_out() -> None:
    ways = list_ways(EVERYTHING, 8)
    assert {way.schedule for way in ways} == {"1f1b"}
    assert not any(way.pp > 1 and not way.reshard for way in ways)


def test_a_split_of_four_leaves_out_one_rank_and_all_other_degrees() -> None:
    hinted = limited(("tp", 4, 4))
    assert [list_ways(hinted, num_ranks) for num_ranks in (1, 2)] == [[], []]
    assert shorts(hinted, 4) == {"TP ×4", "TP+SP ×4"}
    others = ("FSDP ×2 · TP ×4", "ZeRO-2 ×2 · TP ×4", "DP ×2 · TP ×4", "TP ×4 · PP ×2")
    assert shorts(hinted, 8) >= set(others)
    assert {way.tp for way in list_ways(hinted, 8)} == {4}


def test_a_default_of_replicas_still_allows_one_rank() -> None:
    hinted = limited(("tp", 1, 1), ("pp", 1, 1), ("spatial", 1, 1))
    assert shorts(hinted, 1) == {"1 rank"} and shorts(hinted, 4) == COPIES


def test_split_stages_inside_replicas_can_be_asked_for() -> None:
    hinted = limited(("shares", 2, 2), ("pp", 2, 2), ("tp", 2, None))
    assert shorts(hinted, 8) >= {"FSDP ×2 · TP ×2 · PP ×2", "DP ×2 · TP+SP ×2 · PP ×2"}
    assert all(way.dp_shard * way.dp_replicate == 2 == way.pp and way.tp > 1 for way in list_ways(hinted, 16))
    assert shorts(hinted, 4) == set()


NAMES: list[Name] = ["shares", "tp", "pp", "spatial"]
LIMITS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([1, 2, 4]), st.sampled_from([None, 1, 2, 4])), max_size=3
).filter(lambda limits: all(most is None or least <= most for _, least, most in limits))


@given(LIMITS, st.sampled_from([1, 2, 4, 8, 16]), st.booleans())
def test_hints_leave_out_exactly_the_ways_that_they_exclude(
    limits: list[tuple[Name, int, int | None]], num_ranks: int, divisible: bool
) -> None:
    divisions = EVERYTHING if divisible else INDIVISIBLE
    hinted = limited(*limits, divisions=divisions)
    listed = list_ways(hinted, num_ranks)
    assert len(set(listed)) == len(listed) and all(way.world_size == num_ranks for way in listed)
    assert listed == [way for way in list_ways(divisions, num_ranks) if _obeys(way, limits)]
    assert all(_obeys(way, limits) for way in listed)


def _obeys(way: Spread, limits: list[tuple[Name, int, int | None]]) -> bool:
    degrees = {"shares": way.dp_replicate * way.dp_shard, "tp": way.tp, "pp": way.pp, "spatial": way.spatial}
    return all(least <= degrees[name] and (most is None or degrees[name] <= most) for name, least, most in limits)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ways_divide_what_the_model_says(num_ranks: int) -> None:
    for way in list_ways(Divisions(most_parts=6, in_parts=True, most_stages=3, most_slabs=2), num_ranks):
        assert 6 % way.tp == 0
        assert way.pp <= 3
        assert 2 % way.spatial == 0
        assert 6 % way.co_shard == 0
