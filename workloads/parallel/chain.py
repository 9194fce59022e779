"""Cuts a ``Chain`` down to one stage of a pipeline; communication between the stages is in ``pipeline``."""

from __future__ import annotations

from torch import nn

from workloads.protocol import Chain, Place


def cut(model: nn.Module, place: Place) -> list[nn.Module]:
    """Remove all but one stage of ``model`` and return the blocks of that stage; remaining parameters keep their names.

    Raises ``ValueError`` for a model that cannot be cut into these stages.
    """
    stage = place.stage
    if not isinstance(model, Chain):
        raise ValueError(
            f"{type(model).__name__} does not say where a pipeline may cut it: make it a "
            "workloads.protocol.Chain, or use plans without a pipeline"
        )
    blocks = list(model.blocks._modules.items())
    if len(blocks) < stage.count:
        raise ValueError(f"{len(blocks)} blocks cannot be divided into {stage.count} stages: choose fewer stages")
    if shares_its_parts(model):
        raise ValueError(
            f"stages of {type(model).__name__} would share parameters, as the same ones are in two blocks, in `enters` "
            "or in `leaves`: untie them, or use plans without a pipeline"
        )
    kept = stage.blocks(len(blocks))
    model.blocks._modules = dict(blocks[kept.start : kept.stop])
    model.place = place
    for name in (() if model.is_first else model.enters) + (() if model.is_last else model.leaves):
        setattr(model, name, None)
    return list(model.blocks)


def shares_its_parts(model: Chain) -> bool:
    """Whether two of a model's parts (a block, what enters, what leaves) have a parameter in common."""
    parts = [_parameters(model, model.enters), _parameters(model, model.leaves)]
    parts += [{id(parameter) for parameter in block.parameters()} for block in model.blocks]
    return sum(map(len, parts)) > len(set().union(*parts))


def _parameters(model: nn.Module, names: tuple[str, ...]) -> set[int]:
    """The ids of all parameters in the attributes ``names``, which are parameters or modules."""
    found = (getattr(model, name) for name in names)
    lists = (list(value.parameters()) if isinstance(value, nn.Module) else [value] for value in found)
    return {id(parameter) for parameters in lists for parameter in parameters}
