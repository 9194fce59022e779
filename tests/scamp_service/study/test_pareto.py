"""Fronts and places are those of their definitions, and of Optuna."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from optuna.study._multi_objective import _fast_non_domination_rank

from scamp.cli.progress import ranks as ranks_of
from scamp_service.study.pareto import front, places

points = st.integers(1, 4).flatmap(
    lambda num: st.lists(st.lists(st.integers(0, 4).map(float), min_size=num, max_size=num), min_size=1, max_size=25)
)


@given(points)
def test_ranks_are_those_of_optuna(rows: list[list[float]]) -> None:
    ranks = list(_fast_non_domination_rank(np.array(rows)))
    assert ranks_of([tuple(row) for row in rows]) == ranks
    assert list(front(rows)) == [index for index, rank in enumerate(ranks) if not rank]


@given(points, st.randoms(use_true_random=False))
def test_a_place_is_the_number_of_better_points_whatever_their_order(rows: list[list[float]], source: object) -> None:
    numbers_better, ranks = list(places(rows)), ranks_of([tuple(row) for row in rows])
    assert all(sum(other < place for other in numbers_better) == place for place in numbers_better)
    assert [ranks[i] for i in sorted(range(len(rows)), key=numbers_better.__getitem__)] == sorted(ranks)
    order = list(range(len(rows)))
    source.shuffle(order)  # type: ignore[attr-defined]
    assert list(places([rows[i] for i in order])) == [numbers_better[i] for i in order]


def test_of_one_front_the_ends_come_first_and_then_the_loneliest() -> None:
    assert list(places([[0.0, 9.0], [1.0, 8.0], [6.0, 2.0], [9.0, 0.0], [9.0, 9.0]])) == [0, 3, 2, 0, 4]
    assert list(places([])) == ranks_of([]) == list(front([])) == []
