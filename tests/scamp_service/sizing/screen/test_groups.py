"""Candidates are grouped by structure, and examples span the sizes and degrees of their group."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.model import Layout
from estimators.scaling.example import NoBlueprint
from estimators.scaling.formula import PARTS, RANKS, SAMPLES, Solver
from scamp_service.sizing.screen.groups import Task, choose_examples, columns, grouped, layout_kind_of

DEGREES = [{RANKS: ranks} for ranks in (2, 4, 8)]


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
    points = choose_examples(members, ["width", "heads"], lambda candidate: DEGREES, "depth")
    for name in ("width", "heads"):
        values = [member[name] for member in members]
        assert {min(values), max(values)} <= {point[name] for point in points}
    assert {point[RANKS] for point in points} == {2, 4, 8}
    assert all(point["depth"] > 4 and point[SAMPLES] > 1 for point in points)
    Solver(columns(points, ["width", "heads", "depth", SAMPLES, RANKS]))  # else it raises
    assert points == choose_examples(members, ["width", "heads"], lambda candidate: DEGREES, "depth")


def test_the_smallest_and_the_largest_gang_are_among_the_examples_however_many_there_are() -> None:
    (group,) = grouped(candidates())
    members = list(candidates().values())
    task = Task(group, Layout(dp_shard=2), members, [1] * len(members), "depth", 2**13)
    points = task.examples()
    assert len(points) < 13 and {2, 2**13} <= {point[RANKS] for point in points}


def test_examples_are_divided_only_into_parts_that_they_have_and_over_the_devices_that_there_are() -> None:
    (group,) = grouped(candidates())
    members = [candidate for candidate in candidates().values() if candidate["heads"] > 1]
    task = Task(group, Layout(dp_shard=2, tp=2), members, [member["heads"] for member in members], "depth", 16)
    points = task.examples()
    assert {point[PARTS] for point in points} == {2, 4}
    assert all(point["heads"] % point[PARTS] == 0 and point[RANKS] * point[PARTS] <= 16 for point in points)


def test_layouts_with_other_degrees_share_a_family_and_pipelines_have_none() -> None:
    layout = Layout(dp_shard=16, tp=4, sequence_parallel=True, accumulate=True)
    assert layout_kind_of(layout) == Layout(dp_shard=2, tp=2, sequence_parallel=True)
    assert layout_kind_of(Layout(co_shard=4)) == Layout(co_shard=4)
    assert layout_kind_of(Layout(dp_replicate=8, dp_shard=4)) == Layout(dp_replicate=2, dp_shard=2)
    assert layout_kind_of(Layout(pp=2, num_micro_batches=4)) is None
    assert layout_kind_of(Layout(dp_replicate=2, zero1=True)) is None


def test_sizes_that_always_change_together_cannot_be_told_apart() -> None:
    members = [{**candidate, "heads": candidate["width"] // 32} for candidate in candidates().values()]
    with pytest.raises(NoBlueprint, match=r"cannot tell .* apart"):
        choose_examples(members, ["width", "heads"], depth="depth")
