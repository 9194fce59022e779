"""Predicted copies of operands against what the real operations allocate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile

from estimators.tracing.workspace import workspace_of

ATEN = torch.ops.aten
NUMBERS, ROW = torch.rand(32, 64), torch.rand(32, 1)
MASK = NUMBERS > 0.5


@pytest.mark.parametrize(
    ("operation", "args"),
    [
        (ATEN.mul.Tensor, (NUMBERS, MASK)),
        (ATEN.mul.Tensor, (NUMBERS, ROW > 0.5)),
        (ATEN.add.Tensor, (NUMBERS, NUMBERS.bfloat16())),
        (ATEN.add.Tensor, (NUMBERS.half(), NUMBERS.bfloat16())),
        (ATEN.add_.Tensor, (NUMBERS.half(), NUMBERS)),
        (ATEN.div.Tensor, (MASK.int(), MASK.int())),
        (ATEN.where.self, (MASK, NUMBERS, NUMBERS.half())),
        (ATEN.eq.Tensor, (NUMBERS, MASK)),
        (ATEN.mul.Tensor, (NUMBERS, NUMBERS)),
        (ATEN.mul.Tensor, (NUMBERS.half(), torch.tensor(2.0))),
        (ATEN.sum.default, (MASK,)),
        (ATEN.sum.dim_IntList, (MASK, [1])),
        (ATEN.any.dim, (NUMBERS, 1)),
        (ATEN._safe_softmax.default, (NUMBERS, -1)),
        (ATEN._safe_softmax.default, (NUMBERS.half(), -1, torch.float32)),
    ],
)
def test_copies_in_another_type_are_counted_to_a_few_bytes(operation: Any, args: tuple[Any, ...]) -> None:
    workspace = workspace_of(operation, args, {}, operation(*args))
    assert sum(during for _, during in workspace) == pytest.approx(allocated(operation, args), abs=8)


def allocated(operation: Any, args: tuple[Any, ...]) -> int:
    """Bytes that the operation allocates at its peak beyond its result."""
    args = tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)
    with profile(profile_memory=True) as profiler:
        output = operation(*args)
    assert output is not None
    held = highest = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        held += event.nbytes() if event.name() == "[memory]" else 0
        highest = max(highest, held)
    return highest - held
