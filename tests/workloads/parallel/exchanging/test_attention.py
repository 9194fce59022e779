"""Attention over the slabs of two ranks against attention over the whole sequence, and what cannot be divided."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.curves.forks import in_forks
from benchmarks.features.feature import WORKLOADS
from estimators.model import Layout, Plan
from estimators.tracing.tracer import trace_peak
from tests.waiting import PATIENCE_SECONDS
from workloads.loading import load_workload
from workloads.parallel.exchanging.attention import attend_over_slabs
from workloads.parallel.spatial import slab
from workloads.protocol import Context
from workloads.sandbox.recipe import recipe_of

CASES = [(heads, causal, again) for heads in (4, 3) for causal in (False, True) for again in (False, True)]


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def drawn(heads: int) -> list[Tensor]:
    """Queries, keys, values and weights of the loss, shape [2, heads, 8, 4]."""
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, 8, 4, generator=draws) for _ in range(4)]


def on_rank(rank: int, folder: Path) -> dict[str, Any]:
    """The attention and gradients of a rank's half of the sequence in all cases; ``again`` computes it twice."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    model, results = Attention(), []
    attend_over_slabs(model, dist.group.WORLD)
    for heads, causal, recomputed in CASES:
        *inputs, weights = (tensor.chunk(2, -2)[rank].clone() for tensor in drawn(heads))
        for tensor in inputs:
            tensor.requires_grad_()
        mixed = checkpoint(model, *inputs, causal, use_reentrant=False) if recomputed else model(*inputs, causal)
        (mixed * weights).sum().backward()
        results.append([mixed.tolist(), *(tensor.grad.tolist() for tensor in inputs if tensor.grad is not None)])
    try:
        functional_mask = torch.ones(4, 4, dtype=torch.bool)
        _Masked(dist.group.WORLD)(inputs[0], functional_mask)
        refusal = ""
    except ValueError as error:
        refusal = str(error)
    dist.destroy_process_group()
    return {"found": results, "refusal": refusal}


class _Masked(nn.Module):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        attend_over_slabs(self, group)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_slabs_attend_to_the_whole_sequence_whether_or_not_ranks_divide_the_heads(tmp_path: Path) -> None:
    answers = in_forks([partial(on_rank, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    for number, (heads, causal, _) in enumerate(CASES):
        q, k, v, weights = drawn(heads)
        inputs = q, k, v
        for tensor in inputs:
            tensor.requires_grad_()
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        (mixed * weights).sum().backward()
        expected = [mixed.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None)]
        for index, expected_tensor in enumerate(expected):
            gathered = torch.cat([torch.tensor(answer["found"][number][index]) for answer in answers], -2)
            torch.testing.assert_close(gathered, expected_tensor, rtol=1e-5, atol=1e-6)
    assert all("attn_mask cannot be used" in answer["refusal"] for answer in answers)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # linear layers return views
def test_ranks_that_divide_sequences_hold_their_part_of_the_activations() -> None:
    recipe = recipe_of(load_workload("contexts.py:Text", WORKLOADS)({"length": 64}))
    undivided = trace_peak(recipe, Layout(), 4).parts_at(4)
    held = trace_peak(recipe, Plan(4, spatial=4).layout, 4).parts_at(4)
    assert held["activations"] < undivided["activations"] / 2 and held["parameters"] == undivided["parameters"]


def test_lengths_and_layers_that_cannot_be_divided_are_refused_with_the_reason() -> None:
    model = nn.Linear(2, 2)
    model.spatial = Context((1,))  # type: ignore[assignment]
    with pytest.raises(ValueError, match="sequences of 6 positions cannot be divided evenly over 4 ranks"):
        slab(model, torch.zeros(2, 6), 0, 4)
    workload = load_workload("contexts.py:Text", WORKLOADS)({})

    def learned(model: nn.Module) -> nn.Module:
        model.offsets = nn.Parameter(torch.zeros(24, 48))
        return model

    build = workload.build_model
    workload.build_model = lambda: learned(build())  # type: ignore[method-assign]
    with pytest.raises(
        ValueError, match="Model cannot work on slabs: ranks that divide sequences cannot tell how it uses"
    ):
        trace_peak(recipe_of(workload), Plan(4, spatial=2).layout, 2)
