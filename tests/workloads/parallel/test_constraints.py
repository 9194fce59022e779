"""Hints in a model become limits; contradictions name both places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from estimators.axes import Spread
from estimators.constraints import UNCONSTRAINED, PlanConstraints
from estimators.model import INDIVISIBLE, Divisions
from scamp.workload.hints import Contradiction
from workloads.models.stdlib_gpt import CharacterGpt
from workloads.models.unet3d_blobs import Unet3d
from workloads.parallel.divisions import divisions_of
from workloads.protocol import Divided, Experts, Split, hints


def gpt(depth: int = 4) -> Any:
    return CharacterGpt(depth, width=16, heads=4, context=8, dropout=0.0)


def constraints(model: CharacterGpt) -> PlanConstraints:
    return divisions_of(model, list(model.blocks), torch.zeros(1, 9)).constraints


def limits(model: CharacterGpt) -> set[tuple[str, int, int | None, str]]:
    return {(limit.name, limit.least, limit.most, limit.place) for limit in constraints(model).limits}


def test_a_model_without_hints_has_no_constraints() -> None:
    assert constraints(gpt()) == UNCONSTRAINED


def test_a_pipeline_of_split_stages_inside_replicas_limits_three_axes() -> None:
    model = gpt()
    hints.replica(hints.pipeline(model, micro_batches=4), degree=2)
    hints.split(model.blocks)
    assert limits(model) == {
        ("shares", 2, 2, "the model"),
        ("pp", 2, None, "the model"),
        ("micro_batches", 4, 4, "the model"),
        ("tp", 2, None, "blocks"),
    }


def test_a_hint_on_part_of_a_model_holds_for_all_of_it_and_equal_ones_are_one() -> None:
    model = gpt()
    for block in model.blocks:
        hints.split(block, degree=2)
    assert limits(model) == {("tp", 2, 2, "blocks.0 and 3 more")}


def test_a_layer_may_be_split_along_the_dimension_that_its_split_divides() -> None:
    model = gpt()
    hints.split(model.blocks[0].attention.qkv, dim=0)
    hints.split(model.blocks[1].attention.out, dim=1)
    hints.split(model.blocks[2].feed_forward)
    assert {(name, least) for name, least, _, _ in limits(model)} == {("tp", 2)}


def test_marked_blocks_begin_the_stages_whether_or_not_the_first_one_is_marked() -> None:
    marked, unmarked = gpt(), gpt()
    for number in (0, 2):
        hints.stage(marked.blocks[number])
    hints.stage(unmarked.blocks[2])
    assert limits(marked) == {("pp", 2, 2, "blocks.0 and 1 more")}
    assert limits(unmarked) == {("pp", 2, 2, "blocks.2")}


class Mixture(nn.Module):
    divided = Divided(("head",))

    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = Experts(lambda: nn.Linear(4, 4), 6, capacity=1.0), nn.Linear(4, 8)


def test_a_split_of_experts_or_of_a_head_asks_data_parallel_ranks_to_divide_them() -> None:
    model = hints.replica(Mixture(), degree=2)
    hints.split(hints.split(model.experts, degree=2))
    hints.split(model.head, degree=2)
    hinted = divisions_of(model, [], torch.zeros(1, 4)).constraints
    assert {(limit.name, limit.least, limit.most) for limit in hinted.limits} == {
        ("shares", 2, 2),
        ("divided", 2, 2),
        ("divided", 2, None),
    }
    assert hinted.least_ranks == 2 and "2 ranks that divide layers (hint split at experts and 1 more)" in hinted.words
    assert hinted.allow(Spread(dp_replicate=2, divided=True)) and not hinted.allow(Spread(dp_replicate=2))
    assert hinted.allow(Spread(dp_shard=2, divided=True)) and not hinted.allow(Spread(dp_shard=2))
    hints.split(model.experts, degree=4)
    with pytest.raises(Contradiction, match="4 ranks cannot divide 6"):
        divisions_of(model, [], torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("strategy", "excluded"),
    [("replica", {"tp", "pp"}), ("split", {"shares", "pp"}), ("pipeline", {"shares", "tp"})],
)
def test_a_default_excludes_all_other_strategies(strategy: Any, excluded: set[str]) -> None:
    assert limits(hints.default(gpt(), strategy)) == {(name, 1, 1, "the model") for name in excluded}


def test_a_default_leaves_alone_what_other_hints_ask_for() -> None:
    model = hints.default(gpt(), "replica")
    hints.split(model.blocks, degree=4)
    assert limits(model) == {("tp", 4, 4, "blocks"), ("pp", 1, 1, "the model")}


def test_a_default_of_replicas_does_not_divide_space() -> None:
    volumes = torch.zeros(1, 1, 16, 16, 16)
    divisions = divisions_of(hints.default(Unet3d(2, 8), "replica"), [], (volumes, volumes))
    assert [(limit.name, limit.most) for limit in divisions.constraints.limits] == [("spatial", 1)]


def test_degree_one_excludes_a_strategy_also_for_a_model_that_does_not_support_it() -> None:
    plain = hints.split(nn.Linear(2, 2), degree=1)
    (limit,) = divisions_of(plain, [], torch.zeros(1)).constraints.limits
    assert (limit.name, limit.least, limit.most) == ("tp", 1, 1)


def test_what_excludes_a_strategy_may_be_beside_what_asks_for_another() -> None:
    no_split, no_replicas = gpt(), gpt()
    hints.split(no_split.blocks[0], degree=1)
    hints.replica(no_split.blocks[1], degree=2)
    hints.replica(hints.split(no_replicas.blocks, degree=2)[1], degree=1)
    assert {(name, least, most) for name, least, most, _ in limits(no_split)} == {("tp", 1, 1), ("shares", 2, 2)}
    assert {(name, least, most) for name, least, most, _ in limits(no_replicas)} == {("tp", 2, 2), ("shares", 1, 1)}


def test_constraints_survive_json_and_divisions_of_older_traces_have_none() -> None:
    adapter = TypeAdapter(Divisions)
    divisions = divisions_of(model := hints.replica(gpt(), 2), list(model.blocks), torch.zeros(1, 9))
    assert (
        adapter.validate_python(asdict(divisions)) == adapter.validate_json(adapter.dump_json(divisions)) == divisions
    )
    older = {"most_parts": 1, "in_parts": False, "most_stages": 1, "most_slabs": 1}
    assert adapter.validate_python(older) == INDIVISIBLE


def replica_inside_split(model: CharacterGpt) -> None:
    hints.split(model.blocks, degree=4)
    hints.replica(model.blocks[1], degree=2)


def replica_beside_split(model: CharacterGpt) -> None:
    hints.split(model.blocks[0])
    hints.replica(model.blocks[1])


def two_degrees(model: CharacterGpt) -> None:
    hints.split(model.blocks[0], degree=2)
    hints.split(model.blocks[3], degree=4)


def wanted_and_excluded(model: CharacterGpt) -> None:
    hints.split(model.blocks[0], degree=1)
    hints.split(model.blocks[3])


def two_pipelines(model: CharacterGpt) -> None:
    hints.pipeline(hints.pipeline(model, stages=2), stages=4)


def stage_under_default(model: CharacterGpt) -> None:
    hints.stage(hints.default(model, "split").blocks[2])


def other_number_of_stages(model: CharacterGpt) -> None:
    hints.stage(hints.pipeline(model, stages=4).blocks[2])


def too_few_micro_batches(model: CharacterGpt) -> None:
    for block in hints.pipeline(model, micro_batches=2).blocks:
        hints.stage(block)


def columns_by_their_inputs(model: Any) -> None:
    hints.split(model.blocks[1].attention.qkv, dim=1)


def undivided_layer(model: Any) -> None:
    hints.split(model.blocks[1].norm1)


def dimension_of_a_block(model: CharacterGpt) -> None:
    hints.split(model.blocks[1], dim=0)


def too_many_heads(model: CharacterGpt) -> None:
    hints.split(model, degree=8)


def block_without_split(model: CharacterGpt) -> None:
    del hints.split(model).blocks[2].split


def outside_the_blocks(model: CharacterGpt) -> None:
    hints.split(model.head)


def pipeline_of_a_part(model: CharacterGpt) -> None:
    hints.pipeline(model.blocks)


def default_of_a_part(model: CharacterGpt) -> None:
    hints.default(model.blocks, "replica")


def uneven_stages(model: CharacterGpt) -> None:
    hints.stage(model.blocks[1])


def three_stages(model: CharacterGpt) -> None:
    for number in (1, 3):
        hints.stage(model.blocks[number])


def stage_of_no_block(model: CharacterGpt) -> None:
    hints.stage(model.head)


def too_many_stages(model: CharacterGpt) -> None:
    hints.pipeline(model, stages=8)


def tied_ends(model: CharacterGpt) -> None:
    hints.pipeline(model).head.weight = model.characters.weight


@pytest.mark.parametrize(
    ("hint", "places"),
    [
        (replica_inside_split, ("replica(degree=2) at blocks.1", "split(degree=4) at blocks:")),
        (replica_beside_split, ("replica() at blocks.1", "split() at blocks.0")),
        (two_degrees, ("split(degree=2) at blocks.0", "split(degree=4) at blocks.3")),
        (wanted_and_excluded, ("split() at blocks.3", "split(degree=1) at blocks.0")),
        (two_pipelines, ("pipeline(stages=4) at the model", "pipeline(stages=2) at the model")),
        (stage_under_default, ("stage() at blocks.2", 'default("split") at the model')),
        (other_number_of_stages, ("stage() at blocks.2", "pipeline(stages=4) at the model")),
        (too_few_micro_batches, ("stage() at blocks.0", "pipeline(micro_batches=2) at the model")),
        (columns_by_their_inputs, ("split(dim=1) at blocks.1.attention.qkv", "the Split of blocks.1")),
        (undivided_layer, ("split() at blocks.1.norm1", "the Split of blocks.1")),
        (dimension_of_a_block, ("split(dim=0) at blocks.1", "the Split of blocks.1")),
        (too_many_heads, ("split(degree=8) at the model", "blocks.0", "most_parts=4")),
        (block_without_split, ("split() at the model", "blocks.2 (Block)")),
        (outside_the_blocks, ("split() at head", "blocks.0")),
        (pipeline_of_a_part, ("pipeline() at blocks", "the model")),
        (default_of_a_part, ('default("replica") at blocks', "the model")),
        (uneven_stages, ("stage() at blocks.1", "blocks.0, blocks.2")),
        (three_stages, ("stage() at blocks.3", "into 3 stages at blocks.0, blocks.1, blocks.2: mark these")),
        (stage_of_no_block, ("stage() at head", "blocks")),
        (too_many_stages, ("pipeline(stages=8) at the model", "blocks has 4 blocks")),
        (tied_ends, ("pipeline() at the model", "`enters` or in `leaves`")),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_contradiction_names_both_places(hint: Callable[[CharacterGpt], None], places: tuple[str, ...]) -> None:
    model = gpt()
    hint(model)
    with pytest.raises(Contradiction) as caught:
        constraints(model)
    assert all(place in str(caught.value) for place in places), caught.value


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (hints.pipeline, r"pipeline\(\) at the model: the model \(Linear\) does not say where"),
        (hints.split, r"split\(\) at the model: the model has no blocks"),
        (lambda model: hints.default(model, "pipeline"), r'default\("pipeline"\) at the model: the model \(Linear\)'),
    ],
)
def test_what_a_model_does_not_support_cannot_be_hinted(hint: Callable[[nn.Module], Any], why: str) -> None:
    model = nn.Linear(2, 2)
    hint(model)
    with pytest.raises(Contradiction, match=why):
        divisions_of(model, [], torch.zeros(1))


def test_a_split_of_one_part_cannot_be_split() -> None:
    block: Any = nn.Linear(2, 2)
    block.split = Split(columns=(), rows=(), norms=(), most_parts=1)
    model = hints.split(nn.Sequential(block))
    with pytest.raises(Contradiction, match="most_parts=1"):
        divisions_of(model, [block], torch.zeros(1))
