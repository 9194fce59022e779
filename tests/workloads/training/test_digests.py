"""Digests show the first tensor in which ranks differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from workloads.training.digests import _digest, _digests, expect_agreement, first_difference


def test_a_single_rank_agrees_with_itself() -> None:
    expect_agreement(nn.Linear(2, 2), None, "now")


def test_ranks_with_the_same_values_agree() -> None:
    model = nn.BatchNorm1d(4)
    assert first_difference([_digests(model), _digests(model)]) is None


def test_the_first_tensor_that_differs_is_named_with_two_ranks() -> None:
    module, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    assert other.running_mean is not None
    other.running_mean += 1e-7
    assert first_difference([_digests(module), _digests(module), _digests(other)]) == ("running_mean", 0, 2)


def test_other_parts_of_a_tensor_are_not_compared() -> None:
    assert first_difference([{"w": ((0,), 1)}, {"w": ((1,), 2)}]) is None
    assert first_difference([{"w": ((0,), 1)}, {"w": ((0,), 2)}]) == ("w", 0, 1)
    assert first_difference([{"first stage": ((), 1)}, {"second stage": ((), 2)}]) is None


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64])
def test_a_digest_depends_on_every_value_and_its_place(dtype: torch.dtype) -> None:
    values = torch.zeros(3, 700_000).to(dtype)
    values[0, 0] = 1
    others = [values.clone() for _ in range(3)]
    others[0][2, 699_999] = 1
    others[1][0, 0], others[1][0, 1] = 0, 1
    others[2] = torch.empty(700_000, 3, dtype=dtype).t().copy_(values)
    assert len({_digest(tensors) for tensors in (values, *others)}) == 3
    assert _digest(others[2]) == _digest(values)  # strides do not matter


def test_empty_and_scalar_tensors_have_digests() -> None:
    assert _digest(torch.empty(0)) == 0
    assert _digest(torch.tensor(1.0)) != _digest(torch.tensor(2.0))
