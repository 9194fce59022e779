"""Applied plans keep names and gradients, and refuse what ranks cannot train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from estimators.model import Layout
from workloads.models.transformer import Block, warmup_cosine
from workloads.parallel.apply import _with_own_parameters, apply_plan
from workloads.parallel.mixed_precision import MixedPrecision
from workloads.protocol import Divided
from workloads.refusals import WorkloadError


def gradients(layout: Layout) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16, 2, 2.0, 0.2, 1.0, causal=True) for _ in range(3)))
    apply_plan(model, list(model), layout, None)
    model(torch.randn(2, 5, 16)).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("selective", [False, True])
def test_recompute_changes_neither_names_nor_gradients_even_with_dropout(selective: bool) -> None:
    plain, recomputed = gradients(Layout()), gradients(Layout(recompute=True, selective=selective))
    assert list(plain) == list(recomputed)
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient)


def test_recompute_saves_the_inputs_of_blocks_only() -> None:
    saved = {}
    for recompute in (False, True):
        model = nn.Sequential(*(Block(16, 2, 2.0, 0.0, 1.0, causal=True) for _ in range(3)))
        apply_plan(model, list(model), Layout(recompute=recompute), None)
        sizes: list[int] = []

        def note(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.randn(2, 5, 16))
        saved[recompute] = sum(sizes)
    assert saved[True] < saved[False] / 5


def test_sharding_without_a_mesh_of_its_size_is_refused() -> None:
    with pytest.raises(ValueError, match="fsdp2 needs a mesh of 2 ranks"):
        apply_plan(nn.Linear(2, 2), [], Layout(dp_shard=2), None)


@pytest.mark.parametrize("layout", [Layout(dp_replicate=2), Layout(dp_replicate=2, zero1=True), Layout(dp_shard=2)])
def test_ranks_that_would_add_up_sparse_gradients_are_refused(layout: Layout) -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    assert apply_plan(model, [], Layout(), None) is model
    with pytest.raises(WorkloadError, match=r"the gradients of 0 are sparse, .*: use sparse=False, plans with"):
        apply_plan(model, [], layout, None)


def test_sparse_gradients_of_tables_that_the_model_names_need_plans_that_divide_them() -> None:
    model: Any = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    model.divided = Divided(("0",))
    with pytest.raises(WorkloadError, match=r"the gradients of 0 are sparse, .*: use .*divided=true"):
        apply_plan(model, [], Layout(dp_replicate=2), None)
    with pytest.raises(ValueError, match="needs a mesh of 2 ranks"):  # not refused
        apply_plan(model, [], Layout(dp_replicate=2, divided=True), None)


def test_sparse_gradients_have_no_copies_of_parameters_in_bf16() -> None:
    with pytest.raises(WorkloadError, match=r"the gradients of Embedding are sparse, .*: use precision: bf16, or"):
        apply_plan(nn.Embedding(4, 2, sparse=True), [], Layout(), None, MixedPrecision())


def test_blocks_that_share_a_parameter_with_another_part_are_gathered_with_the_root() -> None:
    model = nn.ModuleList(nn.Sequential(nn.Linear(2, 2)) for _ in range(4))
    blocks: list[Any] = list(model)
    first, second, third, fourth = blocks
    assert _with_own_parameters(model, [first, second, third]) == [first, second, third]
    second[0].weight = first[0].weight
    assert _with_own_parameters(model, [first, second, third]) == [third]
    third.norm = fourth.norm = nn.LayerNorm(2)
    assert _with_own_parameters(model, [first, second, third]) == []
    assert _with_own_parameters(model, [third]) == []


def test_the_learning_rate_rises_to_its_peak_and_falls_to_a_twentieth() -> None:
    shares = [warmup_cosine(step, 100, 0.1) for step in range(100)]
    assert shares[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert shares[10] == pytest.approx(1.0)
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] == pytest.approx(0.05, abs=1e-3)
