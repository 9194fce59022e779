"""Every axis has one row in the table, and ranks, words and names follow from it."""

from __future__ import annotations

import contextlib
import itertools
import json
import string
from collections import Counter
from dataclasses import asdict, fields, replace
from math import prod
from typing import Any

import pytest
from hypothesis import given

from estimators.axes import AXES, MESH, SHARES
from estimators.model import Layout, Plan
from tests.plans import plans

OF_LAYOUTS = {"accumulate", "stage_index", "num_micro_batches", "shares"}


def test_every_field_of_plans_and_layouts_has_a_row() -> None:
    sizes = {"micro_batch", "num_micro_batches", "evaluation_batch", "shares"}
    assert {item.name for item in fields(Plan) if item.init} == {*AXES, *sizes}
    assert {item.name for item in fields(Layout)} == {*AXES, *OF_LAYOUTS}


@pytest.mark.parametrize("name", AXES)
def test_rows_name_rows(name: str) -> None:
    row = AXES[name]
    assert {*row.excludes, *row.needs} <= set(AXES)
    assert bool(row.refusal) == bool(row.needs or row.excludes)
    assert {field for _, field, *_ in string.Formatter().parse(row.words) if field} <= set(AXES)
    assert {field for _, field, *_ in string.Formatter().parse(row.label) if field} <= {*AXES, *OF_LAYOUTS}


def test_every_dimension_has_a_place_of_its_own() -> None:
    places = [dimension.place for dimension in MESH.values()]
    assert places == sorted(set(places))
    assert len({dimension.name for dimension in MESH.values()}) == len(MESH)


@given(plans())
def test_ranks_are_counted_along_the_mesh(plan: Plan) -> None:
    sizes = [getattr(plan, axis) for axis in MESH]
    assert plan.world_size == plan.spatial * plan.dp_replicate * plan.dp_shard * plan.pp * plan.tp
    assert plan.world_size == prod(sizes) == prod(plan.mesh.values())
    places = list(itertools.product(*map(range, sizes)))
    assert [tuple(plan.coordinate(rank, axis) for axis in MESH) for rank in range(plan.world_size)] == places
    assert set(plan.fsdp_mesh) <= set(plan.mesh)


@given(plans())
def test_shares_and_stages_have_equally_many_ranks(plan: Plan) -> None:
    assert plan.num_shares == prod(getattr(plan, axis) for axis in SHARES) == plan.dp_replicate * plan.dp_shard
    shares = Counter(plan.data_rank(rank) for rank in range(plan.world_size))
    assert shares == dict.fromkeys(range(plan.num_shares), plan.world_size // plan.num_shares)
    stages = Counter(plan.layout_of(rank) for rank in range(plan.world_size))
    assert stages == dict.fromkeys(plan.layouts, plan.world_size // plan.pp) and len(plan.layouts) == plan.pp
    for layout in plan.layouts:
        assert (layout.mesh, layout.world_size) == (plan.mesh, plan.world_size)
        assert layout.first_rank == min(rank for rank in range(plan.world_size) if plan.layout_of(rank) == layout)


@given(plans())
def test_words_and_names_mention_every_axis_that_is_used(plan: Plan) -> None:
    for name in AXES:
        if name == "schedule" and plan.pp == 1:
            continue
        value, default = getattr(plan, name), AXES[name].default
        if type(value) is int and value > 1:
            assert str(value) in str(plan) and str(value) in str(plan.layout)
            assert name not in MESH or f" ×{value}" in plan.short
        if value != default:
            with contextlib.suppress(ValueError):  # others may need it
                fewer: dict[str, Any] = {name: default}
                without = replace(plan, **fewer)
                assert str(without) != str(plan) and str(without.layout) != str(plan.layout)


@given(plans())
def test_legal_plans_survive_json(plan: Plan) -> None:
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and again.layouts == plan.layouts
    assert [Layout.from_json(json.loads(json.dumps(asdict(layout)))) for layout in plan.layouts] == list(plan.layouts)


@pytest.mark.parametrize("fields", [{"stage_index": 1}, {"num_micro_batches": 2}], ids=str)
def test_stages_belong_to_pipelines(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use pp > 1"):
        Layout(**fields)


@pytest.mark.parametrize("name", [name for name, row in AXES.items() if type(row.default) is int])
def test_degrees_are_positive(name: str) -> None:
    degree: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        Plan(1, **degree)


def test_a_switch_is_named_with_each_degree_that_it_needs() -> None:
    shards, gathered = Plan(4, dp_shard=2, divided=True), Plan(4, dp_shard=2, reshard=False, divided=True)
    assert str(shards) == "FSDP over 2 ranks that divide layers, micro-batch 4"
    assert (shards.short, gathered.short) == ("FSDP+divided ×2", "ZeRO-2+divided ×2")
    assert Plan(4, dp_replicate=2, divided=True).short == "DP+divided ×2"
    assert shards.most_shards == 2 and Plan(4, dp_replicate=2, dp_shard=2, divided=True).most_shards == 4
    wrong: list[dict[str, Any]] = [{"spatial": 2, "dp_shard": 2}, {"dp_replicate": 2, "zero1": True}, {}]
    for values in wrong:
        with pytest.raises(ValueError, match="data-parallel ranks divide layers"):
            Plan(4, divided=True, **values)
