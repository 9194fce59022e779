"""Packed weights are written and read in pieces, whichever plan divides them."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from estimators.model import Layout
from estimators.tracing.fake_gang import fake_mesh
from workloads.training.checkpoints.chunks import in_chunks


def test_a_weight_of_two_layers_is_written_and_read_in_two_pieces() -> None:
    full = torch.arange(3 * 8 * 2.0).view(3, 8, 2)
    with fake_mesh(Layout(tp=2)) as mesh:
        assert mesh is not None
        packed = distribute_tensor(full, mesh, [_StridedShard(1, split_factor=2)], src_data_rank=None)
        plain = distribute_tensor(full, mesh, [Shard(1)], src_data_rank=None)
        state: dict[str, Any] = in_chunks({"packed": packed, "plain": plain, "whole": full})
        assert state["plain"] is plain and state["whole"] is full
        chunks = state["packed"].__create_chunk_list__()
        assert [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in chunks] == [
            ((0, 0, 0), (3, 2, 2)),
            ((0, 4, 0), (3, 2, 2)),
        ]
        items = state["packed"].__create_write_items__("w", state["packed"])
        assert [item.index for item in items] == [MetadataIndex("w", chunk.offsets) for chunk in chunks]
        piece = state["packed"].__get_tensor_shard__(items[1].index)
        assert torch.equal(piece, full[:, 4:6])
        piece.zero_()
        assert not packed.to_local()[:, 2:].any(), "what is read goes into the parameter"
