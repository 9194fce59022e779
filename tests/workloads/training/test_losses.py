"""A loss is a mean over samples, or a sum that is divided by the counts of the whole batch."""

from __future__ import annotations

import math

import pytest
import torch

from workloads.refusals import WrongResult
from workloads.training.losses import StepLosses


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True)


def test_a_mean_is_weighted_and_scaled_before_its_backward_pass() -> None:
    losses = StepLosses(min, factor=8.0, weight=0.5, scale=16.0)
    assert [losses.add(number(value)).item() for value in (1.0, 3.0)] == [4.0, 12.0]
    assert (losses.divisor(2, None, asks=False), losses.mean().item(), losses.is_sum) == (2, 2.0, False)


def test_sums_are_divided_by_the_counts_of_all_micro_batches() -> None:
    losses = StepLosses(min, factor=8.0, weight=0.5, scale=16.0)
    assert [losses.add((number(value), count)).item() for value, count in ((6.0, 1), (4.0, 3.0))] == [96.0, 64.0]
    # An unscaled gradient is divided by the factor later.
    assert (losses.divisor(2, None, asks=False), losses.mean().item(), losses.is_sum) == (2 * 4.0, 2.5, True)


def test_a_batch_in_which_nothing_counts_changes_nothing() -> None:
    losses = StepLosses(min)
    losses.add((number(0.0), torch.tensor(0)))
    assert (losses.divisor(1, None, asks=False), losses.mean().item()) == (math.inf, 0.0)


def test_a_rank_without_losses_has_none() -> None:
    losses = StepLosses(min)
    assert (losses.divisor(4, None, asks=True), losses.mean().item(), losses.is_sum) == (4, 0.0, False)


def test_every_micro_batch_returns_the_same() -> None:
    for first, then in (((number(1.0), 2), number(1.0)), (number(1.0), (number(1.0), 2))):
        losses = StepLosses(min)
        losses.add(first)
        with pytest.raises(WrongResult, match="a sum and its count for one micro-batch, and one number for another"):
            losses.add(then)
