"""Tensor parallelism (Megatron-LM): each rank of one mesh dimension holds a part of every block's linear layers.

A block's ``Split`` says which of its layers belong together. Everything outside the blocks is whole on every rank, with
equal gradients. torch's DTensor does the work and the communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
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

from workloads.parallel.optimizers.shared_options import SharedOptions
from workloads.parallel.tp_plan.notation import NamedSplit, split_outside
from workloads.parallel.tp_plan.styles import SummedGradients, divide_others
from workloads.protocol import Split
from workloads.refusals import WorkloadError


@dataclass(slots=True)
class DividedSequences:
    """Sequences of which each rank has a part (dimension 1). ``length`` is that of the present batch.

    The number of ranks need not divide it: the last ranks then have shorter parts.
    """

    length: int = 0

    def joined(self, part: Tensor, mesh: DeviceMesh) -> DTensor:
        """All parts as one tensor, which each rank still has its part of."""
        return _joined(part, mesh, 1, self.length)


def _joined(part: Tensor, mesh: DeviceMesh, dim: int, size: int) -> DTensor:
    """Parts along the dimension ``dim``, which together have ``size`` there, as one tensor."""
    if size % mesh.size() == 0:
        return DTensor.from_local(part, mesh, (Shard(dim),), run_check=False)
    shape = list(part.shape)
    shape[dim] = size
    strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(part, mesh, (Shard(dim),), run_check=False, shape=torch.Size(shape), stride=strides)


def split_layers(
    model: nn.Module, blocks: Sequence[nn.Module], mesh: DeviceMesh, sequences: DividedSequences | None
) -> None:
    """Divide the layers of the ``blocks`` of ``model`` over the ranks of the one-dimensional ``mesh``, in place.

    A ``tp_plan`` may also name layers outside of the blocks.

    With ``sequences``, the inputs and outputs of the blocks are then parts of each of them (see ``split_sequences``).
    Raises ``ValueError`` for blocks without a ``split``, where the number of ranks does not divide the heads, and with
    ``sequences`` for blocks that are partly frozen or have other layers than their ``split`` names.
    """
    outside = split_outside(model)
    if not blocks and outside is None:
        raise ValueError(
            "tensor parallelism divides the layers of blocks, but the workload names no blocks: return them from "
            "`blocks`, or use plans with tp=1"
        )
    for number, block in enumerate(blocks):
        split = split_of(block, number)
        _expect_to_follow(split, mesh, sequence=sequences is not None)
        if sequences is not None:
            _expect_divided(block, split)
        for name in split.names if sequences is not None else ():
            if not all(parameter.requires_grad for parameter in block.get_submodule(name).parameters()):
                raise ValueError(
                    f"{name} has frozen parameters, and gradients of others would be wrong under sequence parallelism: "
                    "use plans with sequence_parallel=False"
                )
        _divide(model, block, split, mesh, sequences)
    if outside is not None:
        _expect_to_follow(outside, mesh, sequence=False)
        _divide(model, model, outside, mesh, None)


def _divide(
    model: nn.Module, part: nn.Module, split: Split, mesh: DeviceMesh, sequences: DividedSequences | None
) -> None:
    present = dict(part.named_modules())  # a stage of a pipeline has only some of what is outside of the blocks
    if styles := {name: style for name, style in _styles(split, sequences).items() if name in present}:
        parallelize_module(part, mesh, styles)
    if isinstance(split, NamedSplit):
        divide_others(model, part, split, mesh)


def _expect_to_follow(split: Split, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Raise ``ValueError`` if so many ranks cannot divide layers by ``split``, ``WorkloadError`` if none can."""
    if isinstance(split, NamedSplit) and split.refusal:
        raise WorkloadError(split.refusal)
    if split.most_parts % mesh.size():
        unit = "heads" if not isinstance(split, NamedSplit) else "parts"
        raise ValueError(
            f"{split.most_parts} {unit} cannot be divided evenly over {mesh.size()} tensor-parallel ranks: "
            "choose a degree that divides them"
        )
    if sequence and isinstance(split, NamedSplit) and (others := split.others):
        raise ValueError(
            f"{others[0][0]} ({others[0][1]} in the tp_plan) needs whole sequences: use plans with "
            "sequence_parallel=False"
        )


def _expect_divided(block: nn.Module, split: Split) -> None:
    """Raise ``ValueError`` for parameters of which ranks would have gradients of their part of a sequence only."""
    divided = {id(parameter) for name in split.names for parameter in block.get_submodule(name).parameters()}
    for name, parameter in block.named_parameters():
        if parameter.requires_grad and id(parameter) not in divided:
            raise ValueError(
                f"{name} of {type(block).__name__} is in none of the columns, rows and norms of its split, so ranks "
                "that hold parts of sequences cannot compute its gradient: use plans with sequence_parallel=False, or "
                "name its layer in `norms` if it treats each position on its own"
            )


def split_of(block: nn.Module, number: int) -> Split:
    """The ``split`` of a block, which is the one at place ``number`` of all. Raises ``ValueError`` if it has none."""
    split = getattr(block, "split", None)
    if not isinstance(split, Split):
        raise ValueError(
            f"block {number} ({type(block).__name__}) does not say how it is divided: give it an attribute `split`, a "
            "scamp.Split; return other blocks from the workload's method blocks(model), by default its "
            "longest nn.ModuleList; or use plans without tensor parallelism and co-shard"
        )
    return split


def split_sequences(blocks: Sequence[nn.Module], mesh: DeviceMesh, sequences: DividedSequences) -> None:
    """Divide sequences (dimension 1) before the first block, and join them after the last.

    Call it last, after FSDP2, which warns about blocks that return a view. The model then raises ``ValueError`` for
    sequences that are too short to give each rank a part.
    """

    def note_length(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        sequences.length = inputs[0].shape[1]
        most = -(-sequences.length // mesh.size())
        if most * (mesh.size() - 1) >= sequences.length:
            raise ValueError(
                f"sequences of {sequences.length} positions leave one of {mesh.size()} ranks that divide them without "
                "any: use plans with sequence_parallel=False, or fewer ranks"
            )

    replicated, part = Replicate(), Shard(1)
    enter = PrepareModuleInput(input_layouts=replicated, desired_input_layouts=part, use_local_output=True)
    blocks[0].register_forward_pre_hook(note_length)
    parallelize_module(blocks[0], mesh, enter)
    parallelize_module(blocks[-1], mesh, _JoinedOutput(sequences))


class _JoinedOutput(PrepareModuleOutput):
    """The output of a block, of which each rank has a part, is whole on every rank."""

    def __init__(self, sequences: DividedSequences) -> None:
        super().__init__(output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=True)
        self._sequences = sequences

    def _prepare_out_fn(self, outputs: Any, device_mesh: DeviceMesh) -> Any:
        return super()._prepare_out_fn(self._sequences.joined(outputs, device_mesh), device_mesh)  # type: ignore[no-untyped-call]


class _JoinedColumns(ColwiseParallel):
    """Columns of a linear layer whose inputs are parts of sequences: each rank gets the whole ones first."""

    def __init__(self, sequences: DividedSequences) -> None:
        super().__init__(input_layouts=Shard(1))
        prepare = self._prepare_input_fn

        def join(present: Any, desired: Any, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            return prepare(present, desired, module, (sequences.joined(inputs[0], mesh), *inputs[1:]), mesh)  # type: ignore[no-untyped-call]

        self._prepare_input_fn = join  # type: ignore[method-assign]


class _JoinedRows(RowwiseParallel):
    """Rows of a linear layer, whose number the ranks need not divide; inputs are parts of the features."""

    def __init__(self, output_layouts: Placement) -> None:
        super().__init__(output_layouts=output_layouts)
        prepare = self._prepare_input_fn

        def join(present: Any, desired: Any, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            assert isinstance(module, nn.Linear)
            part = inputs[0]
            return prepare(present, desired, module, (_joined(part, mesh, part.ndim - 1, module.in_features),), mesh)  # type: ignore[no-untyped-call]

        self._prepare_input_fn = join  # type: ignore[method-assign]


def grouped_by_mesh(optimizer: Optimizer) -> Optimizer:
    """Divide the groups of ``optimizer`` so that all parameters of a group are on the same mesh, or all on none.

    torch's fused and foreach updates cannot mix plain tensors with DTensors, or DTensors of several meshes. Both parts
    of a group keep the same options, whichever of them is changed.
    """
    for number, group in enumerate(list(optimizer.param_groups)):
        kinds: dict[Any, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            kinds.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        group["params"], *others = kinds.values()
        optimizer.param_groups += [{**group, "params": params, "part_of": number} for params in others]

    def parts() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        groups = optimizer.param_groups
        return ((groups[group["part_of"]], group) for group in groups if "part_of" in group)

    options = SharedOptions(parts)
    if any(True for _ in parts()):
        optimizer.register_step_pre_hook(lambda *_: options.share())
    return optimizer


def _styles(split: Split, sequences: DividedSequences | None) -> dict[str, ParallelStyle]:
    if sequences is None:
        styles: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in split.columns}
    else:
        styles = {name: _JoinedColumns(sequences) for name in split.columns}
        styles |= {name: SequenceParallel(use_local_output=True) for name in split.norms}
    styles |= {name: _JoinedRows(Shard(1) if sequences is not None else Replicate()) for name in split.rows}
    return styles | {name: SummedGradients() for name in split.summed}
