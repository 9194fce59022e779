"""Sparse gradients of a trace have the rows of real ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.tracing.recorder import Recorder
from estimators.tracing.stand_ins import stand_ins

NUM_ROWS, WIDTH = 100, 8
ASKED = torch.tensor([[1, 5, 5], [1, 99, 0]])


def gradient(indices: Tensor) -> Tensor:
    words = nn.Embedding(NUM_ROWS, WIDTH, sparse=True)
    words(indices).sum().backward()
    assert words.weight.grad is not None
    return words.weight.grad


def shapes(tensor: Tensor) -> tuple[torch.Size, torch.Size]:
    return tensor._indices().shape, tensor._values().shape


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gradient": lambda tensor: tensor,
    "copy": lambda tensor: tensor.clone(),
    "joined": lambda tensor: tensor.coalesce(),
    "joined copy": lambda tensor: tensor.clone().coalesce(),
    "half": lambda tensor: tensor * 0.5,
    "negative": lambda tensor: -tensor,
    "rows of a matrix": lambda tensor: torch.zeros(NUM_ROWS, WIDTH).sparse_mask(tensor.coalesce()),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_sparse_gradients_have_the_rows_of_real_ones(operation: Callable[[Tensor], Tensor]) -> None:
    real = shapes(operation(gradient(ASKED)))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        assert shapes(operation(gradient(recorder.copied(ASKED)))) == real


def test_rows_of_unknown_indices_are_taken_to_differ_as_far_as_there_are_rows() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        few, many = (gradient(torch.empty(num, 3, dtype=torch.int64)).coalesce() for num in (20, 50))
        assert (few._nnz(), many._nnz()) == (60, NUM_ROWS)
        assert recorder.values.assumptions.described == []
