"""The parameters of a model, by the blocks that they are in."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import cast

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from estimators.axes import DIVIDED, MESH
from estimators.peaks.units import Outline
from estimators.tracing.session.recipe import Recipe

_DIVIDED = MESH["tp"].name, DIVIDED  # dimensions whose ranks divide layers


def outlines_of(model: nn.Module, blocks: Sequence[nn.Module], recipe: Recipe) -> list[Outline]:
    """Outlines of the part before the blocks, of each block, and of the part after; by the order of the parameters."""
    owners = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters()}
    ends: list[dict[str, int]] = [{}, {}]  # parameters before and after, by the model's attribute that they are in
    divisible, in_divisible, reached = set(recipe.divisible(model)), [0, 0], False
    for name, parameter in model.named_parameters():
        if parameter in owners:
            reached = True
        else:
            attribute = name.partition(".")[0]
            ends[reached][attribute] = ends[reached].get(attribute, 0) + parameter.numel()
            in_divisible[reached] += parameter.numel() if parameter in divisible else 0
    names = {block: name for name, block in model.named_modules()}
    before, after = (
        Outline(", ".join(end) or "nothing", sum(end.values()), 1, num, *recipe.sent_bytes)
        for end, num in zip(ends, in_divisible, strict=True)
    )
    return [before, *(_outline(block, names[block], divisible, recipe) for block in blocks), after]


def _outline(block: nn.Module, name: str, divisible: Set[Tensor], recipe: Recipe) -> Outline:
    parameters = set(block.parameters())
    num_params = sum(parameter.numel() for parameter in parameters)
    num_divided = sum(parameter.numel() for parameter in parameters & divisible)
    return Outline(name, num_params, recipe.most_parts(block), num_divided, *recipe.sent_bytes)


def shape_of(parameter: Tensor) -> tuple[int, ...]:
    """Shape of a parameter, or of a rank's part where ranks divide layers."""
    sizes = list(parameter.shape)
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        for name, placement, num_ranks in zip(mesh.mesh_dim_names or (), parameter.placements, mesh.shape, strict=True):
            if name in _DIVIDED and placement.is_shard():
                sizes[cast(Shard, placement).dim] //= num_ranks
    return tuple(sizes)
