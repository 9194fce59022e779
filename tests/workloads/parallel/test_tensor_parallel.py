"""Every rank holds its part of the layers, and blocks that cannot be divided are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from estimators.model import Layout
from estimators.tracing.fake_gang import fake_mesh
from estimators.tracing.tracer import trace, trace_peak
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.models.transformer import Block
from workloads.models.vit_digits import VitDigits
from workloads.parallel.apply import apply_plan
from workloads.parallel.tensor_parallel import grouped_by_mesh
from workloads.sandbox.recipe import recipe_of


def model(heads: int = 4) -> Any:
    return nn.Sequential(*(Block(16, heads, 2.0, 0.0, 1.0, causal=True) for _ in range(2)))


def test_every_rank_holds_its_part_of_the_linear_layers() -> None:
    layout = Layout(tp=4)
    with fake_mesh(layout) as mesh:
        split = model()
        apply_plan(split, list(split), layout, mesh)
        for parameter in (split[0].attention.qkv.weight, split[0].attention.out.weight, split[1].feed_forward.up.bias):
            assert isinstance(parameter, DTensor)
            assert parameter.to_local().numel() * 4 == parameter.numel()


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "names no blocks"),
        ([nn.Linear(4, 4)], r"block 0 \(Linear\) does not say how it is divided: give it an attribute `split`"),
        (list(model(heads=2)), "2 heads cannot be divided evenly over 4 tensor-parallel ranks"),
    ],
    ids=["none", "silent", "uneven"],
)
def test_blocks_that_cannot_be_divided_are_refused(blocks: list[nn.Module], message: str) -> None:
    layout = Layout(tp=4)
    with fake_mesh(layout) as mesh, pytest.raises(ValueError, match=message):
        apply_plan(nn.Sequential(*blocks), blocks, layout, mesh)


def test_a_block_with_layers_that_its_split_does_not_name_is_refused_where_ranks_divide_sequences() -> None:
    def scaled() -> nn.Module:
        block = model()[0]
        block.scale = nn.Parameter(torch.ones(16))
        return block

    with fake_mesh(Layout(tp=2)) as mesh:
        apply_plan(nn.Sequential(block := scaled()), [block], Layout(tp=2), mesh)
    layout = Layout(tp=2, sequence_parallel=True)
    with fake_mesh(layout) as mesh, pytest.raises(ValueError, match="scale of Block is in none of the columns"):
        apply_plan(nn.Sequential(block := scaled()), [block], layout, mesh)
    block = scaled()
    block.scale.requires_grad_(False)
    with fake_mesh(layout) as mesh:
        apply_plan(nn.Sequential(block), [block], layout, mesh)


@pytest.mark.parametrize(("length", "is_refused"), [(7, False), (9, True), (3, True), (8, False)])
def test_every_rank_gets_a_part_of_each_sequence(length: int, is_refused: bool) -> None:
    layout = Layout(tp=4, sequence_parallel=True)
    with fake_mesh(layout) as mesh:
        split = model()
        apply_plan(split, list(split), layout, mesh)
        if is_refused:
            with pytest.raises(ValueError, match=f"sequences of {length} positions leave one of 4 ranks"):
                split(torch.zeros(2, length, 16))
        else:
            assert split(torch.zeros(2, length, 16)).shape == (2, length, 16)


def test_no_group_of_an_optimizer_mixes_split_and_whole_parameters() -> None:
    layout = Layout(tp=2)
    with fake_mesh(layout) as mesh:
        split = model()
        apply_plan(split, list(split), layout, mesh)
        optimizer = grouped_by_mesh(torch.optim.AdamW(split.parameters(), lr=0.5))
        kinds = [{isinstance(parameter, DTensor) for parameter in group["params"]} for group in optimizer.param_groups]
        assert sorted(map(list, kinds)) == [[False], [True]]
        assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
        assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(split.parameters()))


@pytest.mark.full
@pytest.mark.soak
def test_one_layout_after_another_is_traced_in_the_same_process() -> None:
    """DTensor remembers, by meshes that are equal, process groups that have ended."""
    workload = VitDigits({"depth": 2, "width": 32, "patch": 1})
    for layout in (
        Layout(tp=2, dp_replicate=2, accumulate=True),
        Layout(tp=2),
        Layout(tp=4, accumulate=True),
        Layout(tp=2, dp_shard=2),
        Layout(tp=2, sequence_parallel=True),
        Layout(tp=4, sequence_parallel=True, recompute=True, accumulate=True),
        Layout(tp=2, dp_shard=2, sequence_parallel=True),
    ):
        assert trace(recipe_of(workload), layout, 4).curve.peak_bytes(4) > 0


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.full
def test_a_few_blocks_tell_of_all_where_ranks_divide_sequences(shards: int) -> None:
    """The first block alone makes its part of each sequence."""
    recipe = recipe_of(StdlibGpt({"depth": 6, "width": 32, "heads": 4, "context": 32}))
    layout = Layout(dp_shard=shards, tp=2, sequence_parallel=True)
    traced = trace(recipe, layout, 4)
    assert traced.equal_blocks
    assert traced.curve.peak_bytes(3) == trace_peak(recipe, layout, 3).fixed_bytes
