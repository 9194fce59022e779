from __future__ import annotations

from typing import Any

import pytest

from estimators.scaling.blueprint import SAMPLES
from estimators.scaling.example import NoBlueprint
from estimators.scaling.formula import RANKS, Solver
from scamp_service.sizing.groups import columns, grouped, points_of

DEGREES = (2, 4, 8)


def candidates(**changes: Any) -> dict[int, dict[str, Any]]:
    return {
        number: {"depth": 2 + number % 7, "width": 32 * (1 + number % 5), "heads": 1 << number % 3, "lr": 0.1 * number,
                 "batch": 8 << number % 2, "dropout": 0.1 + 0.01 * number, **changes}
        for number in range(1, 40)
    }  # fmt: skip


def test_candidates_that_differ_in_numbers_alone_are_one_group() -> None:
    (group,) = grouped(candidates())
    assert sorted(group.sizes) == ["depth", "heads", "width"]
    assert len(group.members) == 39


@pytest.mark.parametrize("change", [{"optimizer": "sgd"}, {"causal": True}, {"dropout": 0.0}, {"window": 0}])
def test_whatever_else_differs_parts_groups(change: dict[str, Any]) -> None:
    usual = candidates(optimizer="adam", causal=False, window=4)
    mixed = usual | {100 + key: {**params, **change} for key, params in usual.items()}
    groups = grouped(mixed)
    assert sorted(len(group.members) for group in groups) == [39, 39]
    assert all(len({key < 100 for key in group.members}) == 1 for group in groups)


def test_a_size_that_all_share_is_a_setting() -> None:
    (group,) = grouped(candidates(heads=4))
    assert "heads" not in group.sizes and group.settings["heads"] == 4


def test_the_examples_span_every_size_and_tell_all_apart() -> None:
    members = list(candidates().values())
    points = points_of(members, ["width", "heads"], DEGREES, "depth")
    for name in ("width", "heads"):
        values = [one[name] for one in members]
        assert {min(values), max(values)} <= {point[name] for point in points}
    assert {point[RANKS] for point in points} == set(DEGREES)
    assert all(point["depth"] > 4 and point[SAMPLES] > 1 for point in points)
    Solver(columns(points, ["width", "heads", "depth", SAMPLES, RANKS]))  # else it raises
    assert points == points_of(members, ["width", "heads"], DEGREES, "depth")


def test_the_smallest_and_the_largest_gang_are_among_the_examples_however_many_there_are() -> None:
    degrees = [2**power for power in range(1, 14)]
    points = points_of(list(candidates().values()), ["width", "heads"], degrees)
    assert len(points) < len(degrees) and {2, 8192} <= {point[RANKS] for point in points}


def test_sizes_that_always_change_together_cannot_be_told_apart() -> None:
    members = [{**one, "heads": one["width"] // 32} for one in candidates().values()]
    with pytest.raises(NoBlueprint, match=r"cannot tell .* apart"):
        points_of(members, ["width", "heads"], (), "depth")
