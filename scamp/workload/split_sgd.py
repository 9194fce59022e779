"""SGD on weights in two halves: passes compute with the upper 16 bits, updates with all 32.

Source: D. Kalamkar et al., "Optimizing Deep Learning Recommender Systems' Training On CPU Cluster Architectures",
SC 2020. It has no momentum and no weight decay, as there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_CHUNK = 2**16
"""Numbers that are joined at a time: what is joined needs little memory, and stays in the cache."""


class SplitSGD(Optimizer):
    """SGD that is exact in fp32 for a model in bf16, with 2 more bytes for each number instead of a copy of 4.

    A parameter in bf16 is the upper half of a weight in fp32, rounded towards zero. Its state ``lower`` has the bits of
    the other half, zero at first, as if they were bf16: ``load_state_dict`` converts what has another type. Parameters
    of other types are updated as by ``torch.optim.SGD``. Gradients may be sparse.
    """

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; returns the result of ``closure``, which is called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.dtype != torch.bfloat16:
                    parameter.add_(parameter.grad, alpha=-group["lr"])
                    continue
                state = self.state[parameter]
                if not state:
                    state["lower"] = torch.zeros_like(parameter)
                update = _update_rows if parameter.grad.is_sparse else _update_all
                update(parameter, state["lower"], parameter.grad, group["lr"])
        return loss


def _update_all(upper: Tensor, lower: Tensor, gradient: Tensor, lr: float) -> None:
    for upper_part, lower_part, part in _in_chunks(*map(torch.atleast_1d, (upper, lower, gradient))):
        _update(upper_part, lower_part, part, lr)


def _update_rows(upper: Tensor, lower: Tensor, gradient: Tensor, lr: float) -> None:
    """Update the rows in a sparse gradient, whose entries of the same row are added up in fp32."""
    indices, values = gradient._indices(), gradient._values().float()
    gradient = torch.sparse_coo_tensor(indices, values, gradient.shape, check_invariants=False).coalesce()
    del indices, values
    for values, rows in _in_chunks(gradient._values(), gradient._indices()[0]):
        upper_rows, lower_rows = upper.index_select(0, rows), lower.index_select(0, rows)
        _update(upper_rows, lower_rows, values, lr)
        upper.index_copy_(0, rows, upper_rows)
        lower.index_copy_(0, rows, lower_rows)


def _in_chunks(first: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Split all tensors along their first dimension: a part of ``first`` has at most ``_CHUNK`` numbers, or one row."""
    size = max(_CHUNK * len(first) // max(first.numel(), 1), 1)
    return zip(*(torch.split(tensor, size) for tensor in (first, *others)), strict=True)


def _update(upper: Tensor, lower: Tensor, gradient: Tensor, lr: float) -> None:
    """Update the weights in fp32 that have these halves, in place."""
    weights = upper.float()
    bits = weights.view(torch.int32)
    bits.add_(lower.view(torch.uint16).to(torch.int32))
    weights.add_(gradient, alpha=-lr)
    lower.view(torch.int16).copy_(bits)  # keeps the lower 16 bits
    upper.view(torch.int16).copy_(bits.bitwise_right_shift_(16))
