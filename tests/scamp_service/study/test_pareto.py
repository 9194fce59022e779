"""Fronts and places are those of their definitions, and of Optuna."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from optuna.study._multi_objective import _fast_non_domination_rank

from scamp_service.study.pareto import front, non_domination_ranks, places

points = st.integers(1, 4).flatmap(
    lambda num: st.lists(st.lists(st.integers(0, 4).map(float), min_size=num, max_size=num), min_size=1, max_size=25)
)


@given(points)
def test_ranks_are_those_of_optuna(some: list[list[float]]) -> None:
    ranks = list(_fast_non_domination_rank(np.array(some)))
    assert list(non_domination_ranks(some)) == ranks
    assert list(front(some)) == [index for index, rank in enumerate(ranks) if not rank]


@given(points, st.randoms(use_true_random=False))
def test_a_place_is_the_number_of_better_points_whatever_their_order(some: list[list[float]], source: object) -> None:
    found, ranks = list(places(some)), list(non_domination_ranks(some))
    assert all(sum(other < place for other in found) == place for place in found)
    assert [ranks[i] for i in sorted(range(len(some)), key=found.__getitem__)] == sorted(ranks)
    order = list(range(len(some)))
    source.shuffle(order)  # type: ignore[attr-defined]
    assert list(places([some[i] for i in order])) == [found[i] for i in order]


def test_of_one_front_the_ends_come_first_and_then_the_loneliest() -> None:
    assert list(places([[0.0, 9.0], [1.0, 8.0], [6.0, 2.0], [9.0, 0.0], [9.0, 9.0]])) == [0, 3, 2, 0, 4]
    assert list(places([])) == list(non_domination_ranks([])) == list(front([])) == []
