"""Tensor parallelism: the ranks of one mesh dimension each hold a part of every block's linear layers (Megatron-LM).

A block says by a ``Split`` which of its layers go together; what is outside of blocks stays whole on every rank, with
equal gradients. torch's DTensor does the work and the communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import Optimizer

from workloads.protocol import Split


def split_layers(blocks: Sequence[nn.Module], mesh: DeviceMesh, *, sequence: bool) -> None:
    """Divide the layers of ``blocks`` over the ranks of the one-dimensional ``mesh``, in place.

    With ``sequence`` the blocks then take and give a part of each sequence (see ``split_sequences``). Raises
    ``ValueError`` for blocks that have no ``split``, or one that does not go into so many parts.
    """
    if not blocks:
        raise ValueError("tensor parallelism divides the layers of blocks, and the workload names no blocks")
    for block in blocks:
        split = split_of(block)
        if split.most_parts % mesh.size():
            raise ValueError(
                f"{split.most_parts} heads cannot be divided evenly over {mesh.size()} tensor-parallel ranks: "
                "choose a degree that divides them"
            )
        parallelize_module(block, mesh, _styles(split, sequence))


def split_of(block: nn.Module) -> Split:
    """How ``block`` is divided. Raises ``ValueError`` where it does not say."""
    split = getattr(block, "split", None)
    if not isinstance(split, Split):
        raise ValueError(
            f"{type(block).__name__} does not say how it is divided: give it an attribute `split`, a "
            "workloads.protocol.Split, or use plans without tensor parallelism and co-shard"
        )
    return split


def split_sequences(blocks: Sequence[nn.Module], mesh: DeviceMesh) -> None:
    """Divide sequences (dimension 1) before the first block, and join them after the last.

    Last of all, after FSDP2, which warns of blocks that give a view.
    """
    whole, part = Replicate(), Shard(1)
    enter = PrepareModuleInput(input_layouts=whole, desired_input_layouts=part, use_local_output=True)
    leave = PrepareModuleOutput(output_layouts=part, desired_output_layouts=whole, use_local_output=True)
    parallelize_module(blocks[0], mesh, enter)
    parallelize_module(blocks[-1], mesh, leave)


def grouped_by_mesh(optimizer: Optimizer) -> Optimizer:
    """Divide the groups of ``optimizer`` so that none mixes parameters of several meshes, or of one and none.

    torch's fused and foreach updates take only tensors of one kind at a time.
    """
    for number, group in enumerate(list(optimizer.param_groups)):
        kinds: dict[Any, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            kinds.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        group["params"], *others = kinds.values()
        optimizer.param_groups += [{**group, "params": params, "part_of": number} for params in others]
    return optimizer


def _styles(split: Split, sequence: bool) -> dict[str, ParallelStyle]:
    between = Shard(1) if sequence else Replicate()
    styles: dict[str, ParallelStyle] = {name: ColwiseParallel(input_layouts=between) for name in split.columns}
    styles |= {name: RowwiseParallel(output_layouts=between) for name in split.rows}
    return styles | ({name: SequenceParallel(use_local_output=True) for name in split.norms} if sequence else {})
