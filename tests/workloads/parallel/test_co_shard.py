"""Computing a block in parts changes neither names nor gradients, and holds one part at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from estimators.model import Layout
from estimators.tracing.tracer import trace_peak
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.models.transformer import Block
from workloads.parallel.apply import apply_plan
from workloads.protocol import Split
from workloads.sandbox.recipe import recipe_of


def gradients(layout: Layout) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16, 4, 2.0, 0.0, 1.0, causal=True) for _ in range(2)))
    apply_plan(model, list(model), layout, None)
    model(torch.randn(2, 5, 16)).square().mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_change_neither_names_nor_gradients(parts: int, recompute: bool) -> None:
    plain, in_parts = gradients(Layout()), gradients(Layout(recompute=recompute, co_shard=parts))
    assert list(plain) == list(in_parts)
    for name, gradient in plain.items():
        torch.testing.assert_close(in_parts[name], gradient, msg=name)


@pytest.mark.full
def test_activations_of_one_part_alone_are_there_at_a_time() -> None:
    recipe = recipe_of(StdlibGpt({"depth": 2, "width": 64, "heads": 8, "context": 64}))
    peaks = [trace_peak(recipe, Layout(co_shard=parts), 64).fixed_bytes for parts in (1, 2, 8)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[2] < 0.6 * peaks[0]


class Silent(nn.Linear):
    def __init__(self, **split: Any) -> None:
        super().__init__(4, 4)
        self.split = Split((), (), (), **split)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "names no blocks"),
        ([nn.Linear(4, 4)], r"block 0 \(Linear\) does not say how it is divided"),
        ([Silent(most_parts=4)], "the split of Silent names no branches"),
        ([Block(8, 4, 1.25, 0.0, 1.0, causal=True)], "feed_forward.up of size 10 cannot be computed in 4 equal parts"),
        ([Block(6, 2, 2.0, 0.0, 1.0, causal=True)], "2 heads cannot be computed in 4 equal parts"),
    ],
    ids=["none", "silent", "no branches", "uneven hidden units", "uneven heads"],
)
def test_blocks_that_cannot_be_computed_in_parts_are_refused(blocks: list[nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_plan(nn.Sequential(*blocks), blocks, Layout(co_shard=4), None)
