"""Lets Muon update matrices that ranks divide as one process does.

Muon multiplies the momentum of a matrix by itself, in bf16. Parts of these products, added over ranks, are rounded
otherwise than whole ones, which changes the loss of a small model by 2e-4 in its first step. So each rank gathers the
momentum, computes the whole update and keeps its own part.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Muon, Optimizer, _muon

_orthogonal = _muon._zeropower_via_newtonschulz


def update_whole_matrices(optimizer: Optimizer) -> None:
    """Have torch's Muon compute each update from the whole matrix; no effect on other optimizers."""
    if isinstance(optimizer, Muon):
        _muon._zeropower_via_newtonschulz = _orthogonal_of_whole  # type: ignore[assignment]


def _orthogonal_of_whole(momentum: Tensor, *options: Any) -> Tensor:
    if not isinstance(momentum, DTensor):
        return _orthogonal(momentum, *options)
    update = _orthogonal(momentum.full_tensor(), *options)
    return distribute_tensor(update, momentum.device_mesh, momentum.placements, src_data_rank=None)
