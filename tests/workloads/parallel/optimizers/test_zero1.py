"""ZeRO-1 deals out parameters evenly and trains like one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from estimators.model import Layout, Plan
from estimators.tracing.fake_gang import fake_mesh
from estimators.tracing.tracer import trace_peak
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.parallel.apply import spread_optimizer
from workloads.parallel.optimizers.zero1 import ZeroOptimizer
from workloads.sandbox.recipe import recipe_of


def optimizer(sizes: list[int], num_ranks: int) -> ZeroOptimizer:
    """Optimizer of rank 0."""
    layout = Layout(dp_replicate=num_ranks, zero1=True)
    parameters = [nn.Parameter(torch.ones(size)) for size in sizes]
    with fake_mesh(layout) as mesh:
        groups: list[dict[str, Any]] = [{"params": parameters[:2], "weight_decay": 0.0}, {"params": parameters[2:]}]
        zero = spread_optimizer(AdamW(groups, lr=0.5), layout, mesh)
    assert isinstance(zero, ZeroOptimizer)
    return zero


def sizes_of(zero: ZeroOptimizer) -> list[list[list[int]]]:
    """Sizes of the parameters of each rank, by group."""
    return [
        [[len(parameter) for parameter in group["params"]] for group in part] for part in zero.partition_parameters()
    ]


def test_the_largest_parameters_are_dealt_out_first_and_rank_0_has_most() -> None:
    zero = optimizer([1, 4, 3, 7, 6, 2], 2)
    assert sizes_of(zero) == [[[], [3, 7, 2]], [[1, 4], [6]]]
    assert {len(parameter) for parameter in zero.own_parameters} == {2, 3, 7}


def test_groups_keep_what_they_say_and_the_schedule_reaches_the_update() -> None:
    zero = optimizer([8, 8, 8, 8], 2)
    assert [group["weight_decay"] for group in zero.param_groups] == [0.0, 0.01]
    assert [group["weight_decay"] for group in zero.optim.param_groups] == [0.0, 0.01]


def test_parameters_of_a_group_that_is_added_later_are_dealt_out_and_the_others_stay() -> None:
    zero = optimizer([1, 4, 3, 7, 6, 2], 2)
    with fake_mesh(Layout(dp_replicate=2, zero1=True)):
        zero.add_param_group({"params": [nn.Parameter(torch.ones(size)) for size in (5, 9)]})
    assert sizes_of(zero) == [[[], [3, 7, 2], [5]], [[1, 4], [6], [9]]]
    assert [len(parameter) for group in zero.optim.param_groups for parameter in group["params"]] == [3, 7, 2, 5]


def test_more_ranks_than_parameters_leave_some_without_states() -> None:
    assert [sum(map(len, part)) for part in sizes_of(optimizer([5, 3, 4], 5))] == [1, 1, 1, 0, 0]


def test_replicas_that_share_states_save_them_and_nothing_else() -> None:
    recipe = recipe_of(StdlibGpt({"depth": 2, "width": 64, "context": 16}))

    def parts(layout: Layout) -> dict[str, int]:
        return trace_peak(recipe, layout, 1).parts_at(1)

    alone, shared = parts(Layout()), parts(Plan(1, dp_replicate=4, zero1=True).layout)
    assert shared["parameters"] == pytest.approx(alone["parameters"], rel=0.01)
    assert shared["gradients"] == alone["gradients"]
    assert shared["optimizer"] < 0.3 * alone["optimizer"]
