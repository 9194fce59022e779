"""Messages by which the ranks of a gang agree about a checkpoint; a rank that trains alone asks nobody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_Value = TypeVar("_Value")


def rank() -> int:
    """This rank's number in its gang."""
    return dist.get_rank() if dist.is_initialized() else 0


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of checkpoints that a rank sees. It ``leads`` if it is the first rank of those that see the same one.

    With a checkpoint that ``is_spread`` ranks see several folders, each with the files of its own ranks.
    """

    leads: bool
    is_spread: bool


def place_of(folder: Path, *, is_shared: bool) -> Place:
    """The place of this rank; all ranks call it. A folder that ``is_shared`` is the same one for all."""
    if is_shared or not dist.is_initialized():
        return Place(rank() == 0, False)
    status, kernel = folder.stat(), Path("/proc/sys/kernel/random/boot_id")
    mine = (kernel.read_text() if kernel.exists() else "", status.st_dev, status.st_ino)
    places = of_all_stages({str(rank()): mine})
    return Place(
        all(places[str(before)] != mine for before in range(rank())),
        len(set(places.values())) > 1,
    )


def count_ranks(mine: bool) -> int:
    """Number of ranks for which ``mine`` is True."""
    total = torch.tensor(int(mine))
    dist.all_reduce(total)
    return int(total)


def barrier() -> None:
    """Wait for all ranks."""
    if dist.is_initialized():
        dist.barrier()


def from_rank_0(text: str) -> str:
    """Rank 0's ``text``, which must be equally long on every rank."""
    if not dist.is_initialized():
        return text
    message = torch.tensor(bytearray(text.encode()), dtype=torch.uint8)
    dist.broadcast(message, src=0)
    return bytes(message.tolist()).decode()


def of_all_stages(scalars: dict[str, _Value]) -> dict[str, _Value]:
    """Entries of every rank, by name."""
    if not dist.is_initialized():
        return scalars
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, scalars)
    return {name: fields for part in parts for name, fields in part.items()}
