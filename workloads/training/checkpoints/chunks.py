"""Lets torch's checkpoints hold parameters of which a rank has several separate pieces.

A weight of two layers, one after the other, that ranks divide as two (``packed_colwise`` of a ``tp_plan``) is such a
parameter. torch (2.13) writes and reads the local part of a ``DTensor`` as a single piece. It asks tensors that have
the methods of its protocol ``_Checkpointable``, and these get them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement, _StridedShard


def in_chunks(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, as given; a ``DTensor`` of which this rank has several pieces knows each of them."""
    return {name: _with_pieces(tensor) if isinstance(tensor, DTensor) else tensor for name, tensor in state.items()}


def _with_pieces(tensor: DTensor) -> Tensor:
    if not any(isinstance(placement, _StridedShard) for placement in tensor.placements):
        return tensor
    runs = [_runs(tensor, dim) for dim in range(tensor.ndim)]
    if all(len(run) <= 1 for run in runs):
        return tensor
    copy, local = tensor.detach(), tensor.to_local().detach()
    pieces: dict[tuple[int, ...], Tensor] = {}
    for chosen in product(*runs):
        piece = local
        for dim, (_, begin, size) in enumerate(chosen):
            piece = piece.narrow(dim, begin, size)
        pieces[tuple(start for start, _, _ in chosen)] = piece
    chunks = [ChunkStorageMetadata(torch.Size(offset), piece.shape) for offset, piece in pieces.items()]
    properties, global_size = TensorProperties.create_from_tensor(local), tensor.size()

    def write_items(name: str, unused: object) -> list[WriteItem]:
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, global_size),
            )
            for chunk in chunks
        ]

    def shard(index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return pieces[tuple(index.offset)]

    # Attributes of the instance: they hold the local part, and so make no cycle with the tensor.
    vars(copy).update(
        __create_write_items__=write_items, __create_chunk_list__=lambda: chunks, __get_tensor_shard__=shard
    )
    return copy


def _runs(tensor: DTensor, dim: int) -> list[tuple[int, int, int]]:
    """The runs of consecutive positions that this rank has along ``dim``: first of the whole, of the part, and size."""
    placements = [_along(placement, dim) for placement in tensor.placements]
    positions = torch.arange(tensor.shape[dim], device=tensor.device)
    local: DTensor = distribute_tensor(positions, tensor.device_mesh, placements, src_data_rank=None)
    runs: list[tuple[int, int, int]] = []
    for index, position in enumerate(local.to_local().tolist()):
        if runs and position == runs[-1][0] + runs[-1][2]:
            start, begin, size = runs[-1]
            runs[-1] = start, begin, size + 1
        else:
            runs.append((position, index, 1))
    return runs


def _along(placement: Placement, dim: int) -> Placement:
    """The placement of the positions along ``dim``, of which there is one dimension."""
    if isinstance(placement, _StridedShard) and placement.dim == dim:
        return _StridedShard(0, split_factor=placement.split_factor)
    return Shard(0) if isinstance(placement, Shard) and placement.dim == dim else Replicate()
