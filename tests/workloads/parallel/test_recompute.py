"""Recompute runs a block again, whole or without products and attention."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from workloads.parallel.forward_state.state import forward_state
from workloads.parallel.recompute import _policy, recomputed


def calls(names: list[str], *, selective: bool, dropout: float = 0.0) -> list[str]:
    """The operations among ``names`` that the backward pass of a small attention runs again."""
    ran: list[str] = []
    weight = torch.randn(8, 8, requires_grad=True)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func._overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    class Block(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = (x @ weight).unflatten(-1, (2, 4)).transpose(0, 1)[None]
            x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=dropout)
            return x.tanh().sigmoid()

    block = Block()
    with Watch():
        loss = recomputed(block, forward_state(block), selective=selective)(torch.randn(6, 8)).sum()
        ran.clear()
        loss.backward()
    return [name for name in ran if name in names]


FORWARD = ["mm", "_scaled_dot_product_flash_attention_for_cpu", "tanh", "sigmoid"]


def test_all_of_a_block_is_run_again() -> None:
    assert set(calls(FORWARD, selective=False)) == set(FORWARD)


def test_products_and_attention_are_not_run_again_and_the_rest_is() -> None:
    # The product in the backward pass is the gradient of the weight.
    assert sorted(calls(FORWARD, selective=True)) == ["mm", "sigmoid", "tanh"]


@pytest.mark.parametrize(("dropout", "policy"), [(0.0, "MUST_SAVE"), (0.1, "PREFER_RECOMPUTE")])
def test_attention_that_drops_is_recomputed_so_that_what_follows_draws_the_same_numbers(
    dropout: float, policy: str
) -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert _policy(None, attention, None, None, None, dropout).name == policy
    assert _policy(None, attention, None, None, None, dropout_p=dropout).name == policy


def test_a_copy_of_a_block_computes_with_its_own_weights() -> None:
    """A teacher that the user's code copies would otherwise call its student."""
    block: nn.Module = nn.Linear(4, 4)
    block.forward = recomputed(block, forward_state(block), selective=False)
    teacher, x = copy.deepcopy(block), torch.ones(1, 4)
    expected = block(x)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(1.0)
    assert torch.equal(teacher(x), expected) and not torch.equal(block(x), expected)
