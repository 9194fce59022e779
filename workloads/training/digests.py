"""Checks that the ranks of a gang hold the same model, so that none of them trains on with other weights, unnoticed.

Every rank computes a digest of each tensor that it holds, parameters and buffers. Ranks that hold the same part of a
tensor must have the same digest, bit for bit: they started from the same values, and took the same sums. It takes about
a nanosecond a byte, and a few MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from workloads.refusals import WorkloadError

_PIECE = 2**17  # bytes of a tensor that are digested at a time; three integers of 64 bits are kept for each of them
_PRIME = 1_000_003

Digests = Mapping[str, tuple[Any, int]]
"""Name of a tensor → (which part of it the rank holds, the digest of that part)."""


def expect_agreement(model: nn.Module, mesh: DeviceMesh | None, when: str) -> None:
    """Raise ``WorkloadError`` on every rank, with the name of a tensor, if ranks hold different values of it.

    ``when`` ends the message. All ranks call it; a single rank agrees with itself.
    """
    if mesh is None:
        return
    listed: list[Any] = [None] * mesh.size()
    dist.all_gather_object(listed, _digests(model))
    if different := first_difference(listed):
        name, rank, other = different
        raise WorkloadError(
            f"ranks {rank} and {other} have different values of {name} {when}, so they would train different models: "
            "change it only in ways that are the same on every rank, or use plans of one rank"
        )


def first_difference(of_ranks: list[Digests]) -> tuple[str, int, int] | None:
    """(name, rank, other rank) of the first tensor with a part that two ranks hold with different values."""
    seen: dict[tuple[str, Any], tuple[int, int]] = {}
    for rank, digests in enumerate(of_ranks):
        for name, (part, digest) in digests.items():
            first, first_digest = seen.setdefault((name, part), (rank, digest))
            if first_digest != digest:
                return name, first, rank
    return None


def _digests(model: nn.Module) -> dict[str, tuple[Any, int]]:
    return {name: (_part(tensor), _digest(tensor)) for name, tensor in _named(model)}


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _part(tensor: Tensor) -> tuple[int, ...]:
    """Coordinates of the rank along the dimensions of the mesh that divide the tensor; empty for a whole tensor."""
    if not isinstance(tensor, DTensor):
        return ()
    places = tensor.device_mesh.get_coordinate() or ()
    return tuple(
        -1 if placement.is_replicate() else place for placement, place in zip(tensor.placements, places, strict=True)
    )


def _digest(tensor: Tensor) -> int:
    """A number that depends on every bit and on its place."""
    local = tensor.detach()
    local = local.to_local() if isinstance(local, DTensor) else local
    digest = 0
    for piece in torch.split(local.reshape(-1), max(1, _PIECE // local.element_size())):
        data = piece.contiguous().view(torch.uint8).to(torch.int64)
        weights = torch.arange(1, len(data) + 1, device=data.device)
        digest = (digest * _PRIME + int((data * weights).sum())) % 2**61
    return digest
