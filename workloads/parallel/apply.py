"""Applies a layout to a model and to its optimizer: pipeline stage, divided layers and space, recompute, FSDP2.

The tracer calls it just as the ranks do. It holds no state and starts nothing: the caller owns the process group and
the mesh, which may be real or fake.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from estimators.axes import COPIES, DIVIDED, Spread
from estimators.model import Layout
from workloads.parallel.aliases import parameter_attributes, set_parameter_attributes, why_one_rank
from workloads.parallel.chain import blocks_of, cut
from workloads.parallel.co_shard import compute_in_parts
from workloads.parallel.containers import keep_containers
from workloads.parallel.exchanging.divided import Table, divide_layers, divisible_layers, layers_to_divide
from workloads.parallel.exchanging.experts import experts_of, join_ranks
from workloads.parallel.exchanging.numbers import read_numbers_of_all_ranks
from workloads.parallel.exchanging.replicas import average_gradients
from workloads.parallel.forward_state.replaced import ReplacedForward
from workloads.parallel.forward_state.state import ForwardState, attach_state
from workloads.parallel.mixed_precision import AS_STORED, MixedPrecision, compute_divided_in, compute_in
from workloads.parallel.optimizers.adasum import AdasumOptimizer
from workloads.parallel.optimizers.local_step import step_on_local_parts
from workloads.parallel.optimizers.muon import update_whole_matrices
from workloads.parallel.recompute import recomputed
from workloads.parallel.spatial import slab, split_space
from workloads.parallel.tensor_parallel import DividedSequences, grouped_by_mesh, split_layers, split_sequences
from workloads.parallel.traits import note
from workloads.protocol import Batch, Chain, Context, PipelinePlace
from workloads.refusals import WorkloadError


def apply_plan(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    layout: Layout,
    mesh: DeviceMesh | None,
    precision: MixedPrecision | None = None,
) -> nn.Module:
    """Change ``model`` in place and return it. ``mesh`` has the dimensions of ``layout.mesh``; None: a single rank.

    With ``precision``, passes compute with copies of the parameters. Parameter names do not change. Call it with a
    model on the meta device (ranks) or of fake tensors (the tracer); if the model holds memory, FSDP2 copies each
    shard. Raises ``ValueError`` if the model cannot be divided by ``layout``.
    """
    blocks = list(dict.fromkeys(blocks))  # one may be there several times
    recomputing = _recomputing(list(model.blocks) if isinstance(model, Chain) and layout.pp > 1 else blocks, layout)
    note(
        model,
        layout,
        needs_one_rank=why_one_rank(model),
        **(sparse := _why_sparse(model)),
        has_complex_copies=_why_complex(model) if precision is not None else "",
    )
    if precision is not None and (why := "".join(sparse.values())):
        raise WorkloadError(f"{why}, and precision: bf16-params casts dense ones: use precision: bf16, or sparse=False")
    if layout.mesh and (mesh is None or mesh.size() != layout.world_size):
        raise ValueError(f"{layout} needs a mesh of {layout.world_size} ranks, got {mesh}")
    if layout.fsdp_mesh or layout.tp > 1:
        read_numbers_of_all_ranks()
    ranks = _Ranks(mesh)
    attributes = parameter_attributes(model)
    divisible = layers_to_divide(model, layout.dp_replicate * layout.dp_shard) if layout.divided else []
    if layout.pp > 1:
        blocks = cut(model, PipelinePlace(layout.stages, ranks.group("pp")))
    sequences = DividedSequences() if layout.sequence_parallel else None
    _divide(model, blocks, layout, ranks, sequences)
    divided = set[nn.Parameter]()
    if layout.divided:
        here = set(model.modules())  # a stage has only some of them
        divided = divide_layers(filter(here.__contains__, divisible), ranks.in_line(layout.fsdp_mesh, DIVIDED))
    state = attach_state(model, layout, mesh)
    if precision is not None and not layout.fsdp_mesh:
        compute_in(model, _with_own_parameters(model, blocks), precision.param)
    elif precision is not None and divided:
        compute_divided_in(model, divided, precision.param)
    _change_passes(model, blocks, layout, state, recomputing)
    if layout.fsdp_mesh:
        _shard(model, blocks, ranks.of_fsdp(layout.fsdp_mesh), layout, precision, divided)
    if layout.averages_gradients:
        average_gradients(model, _with_own_parameters(model, blocks), ranks.group("replicate"))
    if sequences is not None:
        for part in _parts(model, blocks, layout):
            split_sequences(part, ranks.along("tp"), sequences)
    set_parameter_attributes(model, attributes)
    return model


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The ranks of a layout. A single rank has no mesh, and its layout uses no dimension of one."""

    mesh: DeviceMesh | None

    def along(self, dimensions: str | tuple[str, ...]) -> DeviceMesh:
        """The part of the mesh with these dimensions that this rank is in."""
        assert self.mesh is not None, f"a layout without a mesh uses {dimensions}"
        return self.mesh[dimensions]

    def of_fsdp(self, dimensions: tuple[str, ...]) -> DeviceMesh:
        """The ranks along these dimensions, all but the last of which are one: FSDP2 knows one dimension of copies."""
        *copies, shards = dimensions
        if len(copies) < 2:
            return self.along(dimensions)
        return DeviceMesh._concatenate([self.in_line(tuple(copies), COPIES), self.along(shards)])

    def in_line(self, dimensions: tuple[str, ...], name: str) -> DeviceMesh:
        """The ranks along these dimensions as one dimension with this name."""
        return self.along(dimensions)._flatten(name)

    def group(self, dimension: str) -> ProcessGroup:
        """The ranks along one dimension that this rank is in."""
        assert self.mesh is not None, f"a layout without a mesh uses {dimension}"
        return self.mesh.get_group(dimension)


def _divide(
    model: nn.Module, blocks: Sequence[nn.Module], layout: Layout, ranks: _Ranks, sequences: DividedSequences | None
) -> None:
    """Divide blocks and space, in place, and let experts know the other ranks."""
    if layout.tp > 1:
        split_layers(model, blocks, ranks.along("tp"), sequences)
    if layout.spatial > 1 and layout.co_shard > 1 and isinstance(getattr(model, "spatial", None), Context):
        raise ValueError("ranks that divide sequences compute blocks whole: use co_shard=1, or plans with spatial=1")
    if layout.spatial > 1:
        split_space(model, ranks.along("spatial"))
        if experts_of(model):
            raise ValueError("experts take tokens of whole samples, and ranks have slabs: use plans with spatial=1")
    join_ranks(model, ranks.mesh)


def _change_passes(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    layout: Layout,
    state: ForwardState,
    recomputing: Set[nn.Module],
) -> None:
    """Have the model run micro-batches of a pipeline, and blocks run in parts, or twice if they are ``recomputing``."""
    if layout.pp > 1:
        model.forward = ReplacedForward(state.as_micro_batch(model.forward), model.forward, "pp=1")
    if layout.co_shard > 1:
        compute_in_parts(blocks, layout.co_shard, state)
    for block in blocks:
        if block in recomputing:
            # Recompute runs inside FSDP's hooks, so the all-gather before backward also serves the recomputation.
            block.forward = recomputed(block, state, selective=layout.selective)


def _shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    shards: DeviceMesh,
    layout: Layout,
    precision: MixedPrecision | None,
    divided: set[nn.Parameter],
) -> None:
    """Have FSDP2 divide the parameters of ``model`` but ``divided`` ones over ``shards``, each block by itself."""
    # FSDP fails only if such a view is changed in place, and then the first pass, which is watched, is refused.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for parameter in model.parameters():
        if not parameter.is_contiguous():  # FSDP2 takes no such parameters
            parameter.data = parameter.data.contiguous()
    for module in (*_with_own_parameters(model, blocks), model):
        if module is not model and divided.issuperset(module.parameters()):
            continue
        # By default all modules except the outermost free their gathered parameters after a forward pass.
        fully_shard(
            module,
            mesh=shards,
            reshard_after_forward=None if layout.reshard else False,
            mp_policy=precision.policy(module, is_root=module is model) if precision is not None else AS_STORED,
            ignored_params=divided,
        )
        keep_containers(module)


def _parts(model: nn.Module, blocks: Sequence[nn.Module], layout: Layout) -> list[Sequence[nn.Module]]:
    """The blocks of each stage that the rank has; without a pipeline all blocks."""
    if layout.pp == 1 or not isinstance(model, Chain):
        return [blocks]
    return [list(blocks_of(model, stage).values()) for stage in layout.stages]


def _recomputing(blocks: Sequence[nn.Module], layout: Layout) -> set[nn.Module]:
    """The blocks of the whole model that are recomputed."""
    if layout.recomputed and layout.recomputed[-1] >= len(blocks):
        raise ValueError(f"block {layout.recomputed[-1]} cannot be recomputed: the model has {len(blocks)} blocks")
    chosen = [blocks[number] for number in layout.recomputed] if layout.recomputed else blocks
    return set(chosen) if layout.recompute else set()


def _with_own_parameters(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """The blocks that share no parameter with another part of the model: what is shared is gathered with the root."""
    num_holders: Counter[nn.Parameter] = Counter()
    outside = (module for _, module in model.named_modules(memo=set(blocks)))  # reached without passing through a block
    for part in (*(block.modules() for block in blocks), outside):
        num_holders.update(
            {parameter for module in part for parameter in module._parameters.values() if parameter is not None}
        )
    return [block for block in blocks if all(num_holders[parameter] == 1 for parameter in block.parameters())]


def _why_sparse(model: nn.Module) -> dict[str, str]:
    tables = {module: name for name, module in model.named_modules() if isinstance(module, Table) and module.sparse}
    divisible = divisible_layers(model) if tables else {}
    undivided = [table for table in tables if table not in divisible]
    trait = "has_sparse_gradients" if undivided else "has_sparse_tables"
    first = (tables[table] or type(table).__name__ for table in (*undivided, *tables))
    return {trait: next((f"the gradients of {name} are sparse" for name in first), "")}


def _why_complex(model: nn.Module) -> str:
    names = (name for name, parameter in model.named_parameters() if parameter.is_complex())
    return next((f"precision: bf16-params casts {name}, a parameter of complex numbers" for name in names), "")


def spread_optimizer(optimizer: Optimizer, layout: Layout, mesh: DeviceMesh | None) -> Optimizer:
    """The optimizer that ranks use under ``layout``, made from ``optimizer``, which must be new."""
    if mesh is not None and layout.zero1:
        from workloads.parallel.optimizers.zero1 import ZeroOptimizer  # imported late, as it takes half a second

        zero: Optimizer = ZeroOptimizer(optimizer, mesh.get_group("replicate"))
        return zero
    if mesh is not None and layout.adasum:
        return AdasumOptimizer(optimizer, mesh.get_group("replicate"))
    if mesh is not None and (layout.fsdp_mesh or layout.tp > 1):
        step_on_local_parts(optimizer)
        update_whole_matrices(optimizer)
    return grouped_by_mesh(optimizer)


def rank_part(model: nn.Module, batch: Batch, spread: Spread, rank: int = 0) -> Batch:
    """The part of each sample of ``batch`` that ``rank`` computes."""
    if spread.spatial > 1:
        return slab(model, batch, spread.coordinate(rank, "spatial"), spread.spatial)
    return batch
