"""Cuts a ``Chain`` down to one stage of a pipeline; communication between the stages is in ``pipeline``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from estimators.model import Stage
from workloads.protocol import Chain, PipelinePlace


def cut(model: nn.Module, place: PipelinePlace) -> list[nn.Module]:
    """Remove all stages of ``model`` but those of ``place``, and return their blocks; parameters keep their names.

    Raises ``ValueError`` for a model that cannot be cut into these stages.
    """
    count = place.stages[0].count
    if not isinstance(model, Chain):
        raise ValueError(
            f"{type(model).__name__} does not say where a pipeline may cut it: make it a "
            "scamp.Chain, or use plans without a pipeline"
        )
    blocks = list(model.blocks._modules.items())
    if len(blocks) < count:
        raise ValueError(f"{len(blocks)} blocks cannot be divided into {count} stages: choose fewer stages")
    if shares_its_parts(model):
        raise ValueError(
            f"stages of {type(model).__name__} would share parameters, as the same ones are in two blocks, in `enters` "
            "or in `leaves`: untie them, or use plans without a pipeline"
        )
    numbers = [number for stage in place.stages for number in stage.blocks(len(blocks))]
    model.blocks._modules = dict(blocks[number] for number in numbers)
    model.place = replace(place, num_blocks=len(blocks))
    for name in (() if model.is_first else model.enters) + (() if model.is_last else model.leaves):
        setattr(model, name, None)
    return list(model.blocks)


@contextmanager
def only(model: Chain, stage: Stage) -> Iterator[None]:
    """Let the model be one of its stages alone while the context lasts: its ``forward`` then is that of this stage."""
    place, blocks = model.place, model.blocks._modules
    assert place is not None, "the model is not a pipeline stage"
    model.place, model.blocks._modules = replace(place, stages=(stage,)), blocks_of(model, stage)
    try:
        yield
    finally:
        model.place, model.blocks._modules = place, blocks


def blocks_of(model: Chain, stage: Stage) -> dict[str, nn.Module]:
    """The blocks of one of the stages that ``model`` has been cut to, by their names."""
    assert model.place is not None, "the model is not a pipeline stage"
    held = list(model.blocks._modules.items())
    start = 0
    for stage_number in model.place.stages:
        size = len(stage_number.blocks(model.place.num_blocks))
        if stage_number.index == stage.index:
            return dict(held[start : start + size])
        start += size
    raise ValueError(f"stage {stage.index} is not among those of this rank")


def shares_its_parts(model: Chain) -> bool:
    """Whether two of a model's parts (a block, what enters, what leaves) have a parameter in common."""
    parts = [_parameters(model, model.enters), _parameters(model, model.leaves)]
    parts += [{id(parameter) for parameter in block.parameters()} for block in model.blocks]
    return sum(map(len, parts)) > len(set().union(*parts))


def _parameters(model: nn.Module, names: tuple[str, ...]) -> set[int]:
    """The ids of all parameters in the attributes ``names``, which are parameters or modules."""
    parts = (getattr(model, name) for name in names)
    lists = (list(value.parameters()) if isinstance(value, nn.Module) else [value] for value in parts)
    return {id(parameter) for parameters in lists for parameter in parameters}
