"""Arguments of a recomputed block are as in its first pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from workloads.parallel.arguments import Arguments
from workloads.parallel.forward_state.state import attach_state
from workloads.parallel.recompute import recomputed
from workloads.refusals import WorkloadError


def test_contents_are_restored_for_a_while() -> None:
    x, y = torch.zeros(2), torch.ones(2)
    holder, seen, kwargs = SimpleNamespace(hidden=x, more=[x]), [x], {"a": x}
    before = Arguments.of((holder, seen), kwargs)
    holder.hidden, holder.new = y, 1
    holder.more.append(y)
    seen.append(y)
    kwargs["b"] = y
    with before.restored():
        assert holder.hidden is x
        assert len(holder.more) == len(seen) == len(kwargs) == 1
        assert not hasattr(holder, "new")
    assert holder.hidden is y
    assert len(holder.more) == len(seen) == len(kwargs) == 2
    assert holder.new == 1


class Block(nn.Module):
    """Changes an object that it is given, or the tensor in it."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(4, 4), in_place

    def forward(self, holder: Any) -> None:
        change = self.layer(holder.hidden).tanh()
        if self.in_place:
            holder.hidden += change.exp()
        else:
            holder.hidden = holder.hidden + change.exp()


def gradient(block: Block, forward: Any) -> Tensor:
    holder = SimpleNamespace(hidden=torch.ones(2, 4, requires_grad=True) * 2)
    block.zero_grad()
    forward(holder)
    holder.hidden.square().sum().backward()
    assert block.layer.weight.grad is not None
    return block.layer.weight.grad.clone()


@pytest.mark.parametrize("selective", [False, True])
def test_a_block_that_changes_an_object_has_the_same_gradients_when_it_is_recomputed(selective: bool) -> None:
    block = Block(in_place=False)
    state = attach_state(block, Layout(recompute=True, selective=selective), None)
    plain = gradient(block, block.forward)
    assert torch.equal(gradient(block, recomputed(block, state, selective=selective)), plain)


def test_a_block_that_changes_a_tensor_it_is_given_is_not_recomputed() -> None:
    block = Block(in_place=True)
    state = attach_state(block, Layout(recompute=True), None)
    with pytest.raises(WorkloadError, match=r"Block changes a tensor that it is given in place.*without recompute"):
        gradient(block, recomputed(block, state, selective=False))
