"""Random numbers are those of a sample, whatever other samples a micro-batch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from workloads.training.guard.sample_draws import SampleDraws

SAMPLES = list(range(8))
NOBODY: Any = object()
"""A workload without generators of its own."""
PARTS = [[[0, 1, 2], [3, 4, 5, 6, 7]], [[7, 2, 4, 6], [0, 1, 3, 5]], [[number] for number in SAMPLES]]
Draw = Callable[[Any, Tensor], Tensor]


def _of_sizes(model: Any, x: Tensor) -> Tensor:
    noise = (
        torch.randn_like(x)
        + torch.randn(len(x), 1)
        + torch.randint(0, 9, (len(x), 1))
        + torch.randn(len(x) * 12).view(len(x), 12)[:, :6]
    )
    return x + noise + torch.rand(()) + torch.randn(x.shape[1])


def _of_tensors(model: Any, x: Tensor) -> Tensor:
    drawn = torch.bernoulli(torch.full_like(x, 0.3)) + torch.normal(x, 1.0) + torch.empty_like(x).uniform_()
    return functional.dropout(x + drawn, 0.5) + torch.multinomial(torch.ones(len(x), 5), 6, True)


def _of_distributions(model: Any, x: Tensor) -> Tensor:
    mixing = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4)).sample()
    return mixing * x + torch.distributions.Gamma(x + 1, x + 1).sample()


def _by_feature(model: Any, x: Tensor) -> Tensor:
    return x + torch.randn(x.shape[1], len(x)).t()


def drawn(draw: Draw, parts: Sequence[Sequence[int]], shared: Any = frozenset()) -> tuple[Tensor, SampleDraws]:
    draws, outputs = SampleDraws(NOBODY, (1, 2), parts, shared), torch.empty(8, 6)
    with draws:
        for part in parts:
            outputs[part] = draws.around(draw)(nn.Identity(), torch.tensor(part)[:, None].expand(-1, 6).float())
    return outputs, draws


def compared(draw: Draw, parts: Sequence[Sequence[int]]) -> tuple[bool, bool]:
    """Whether both divisions draw alike, and the same numbers."""
    (ours, first), (others, second) = drawn(draw, [SAMPLES]), drawn(draw, parts)
    if not first.draws_like(second):
        shared = first.shared_with(second)
        (ours, first), (others, second) = drawn(draw, [SAMPLES], shared), drawn(draw, parts, shared)
    return first.draws_like(second), torch.equal(ours, others)


@pytest.mark.parametrize("draw", [_of_sizes, _of_tensors, _of_distributions])
@pytest.mark.parametrize("parts", PARTS)
def test_samples_get_the_same_numbers_in_any_micro_batch(draw: Draw, parts: Sequence[Sequence[int]]) -> None:
    assert compared(draw, parts) == (True, True)


def test_nothing_can_be_compared_where_rows_that_are_drawn_belong_to_no_sample() -> None:
    assert compared(_by_feature, PARTS[0])[0] is False


def test_what_is_recomputed_draws_the_same_numbers_and_is_no_noise_of_gradients() -> None:
    layer = nn.Linear(6, 6)

    def block(x: Tensor) -> Tensor:
        return functional.dropout(layer(x), 0.5)

    def gradient(recompute: bool, noise: float = 0.0) -> tuple[Tensor, bool]:
        draws = SampleDraws(NOBODY, (3,), [SAMPLES])

        def loss(model: nn.Module, x: Tensor) -> Tensor:
            out: Tensor = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
            if noise:
                out.register_hook(lambda gradient: gradient + noise * torch.randn_like(gradient))
            return out.square().sum()

        with draws:
            (of_weight,) = torch.autograd.grad(draws.around(loss)(layer, torch.ones(8, 6)), layer.weight)
        return of_weight, draws.draws_backward

    plain, recomputed = gradient(False), gradient(True)
    assert torch.equal(plain[0], recomputed[0]) and not plain[1] and not recomputed[1]
    assert gradient(False, noise=0.1)[1]
