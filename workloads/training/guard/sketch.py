"""Sketches of tensors: a few numbers for each, by which two gradients are compared without a copy of either.

Every element is multiplied by a random sign and added to one of ``WIDTH`` sums. The squared distance of two sketches is
that of the tensors on average, with a relative standard deviation of √(2/WIDTH) (count sketch: Charikar, Chen &
Farach-Colton 2002; as a projection: Weinberger et al. 2009). It is linear, so sketches of ranks may be added up.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from workloads.parallel.forward_state.snapshot import local_part, real_numbers

WIDTH = 32
_PIECE = 2**16
"""Elements whose signs are drawn; the next ones have the same, in other sums and perhaps turned."""


def sketches(tensors: Iterable[Tensor | None]) -> Tensor:
    """Sketch of this rank's part of each tensor, shape [n, WIDTH], fp64; 0 where there is none."""
    signs = torch.randint(2, (_PIECE,), generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    return torch.stack([_sketch(tensor, signs) for tensor in tensors]).cpu()


def _sketch(tensor: Tensor | None, signs: Tensor) -> Tensor:
    if tensor is None:
        return torch.zeros(WIDTH, dtype=torch.float64)
    local = local_part(tensor).detach()
    if local.layout is not torch.strided:
        local = local.coalesce()
        return _of_values(local.values(), local.indices()[0], signs)
    return _of_values(local, None, signs)


def _of_values(values: Tensor, rows: Tensor | None, signs: Tensor) -> Tensor:
    """The sketch of a dense gradient, or of the ``rows`` of a sparse one."""
    sums = torch.zeros(WIDTH, dtype=torch.float64, device=values.device)
    signs = signs.to(values.device)
    if rows is not None:
        flat = values.reshape(len(rows), -1).double()
        of_rows = (flat @ signs[: flat.shape[1]].double()) * signs[rows % _PIECE].double()
        return sums.index_add_(0, rows % WIDTH, of_rows)
    flat = real_numbers(values.resolve_conj()).reshape(-1)
    for number, piece in enumerate(torch.split(flat, _PIECE)):
        signed = piece.float() * signs[: len(piece)]
        rest = len(piece) % WIDTH
        folded = signed[: len(piece) - rest].view(-1, WIDTH).sum(0, dtype=torch.float64)
        folded[:rest] += signed[len(piece) - rest :]
        sums += torch.roll(folded, number) * signs[number % _PIECE]
    return sums
