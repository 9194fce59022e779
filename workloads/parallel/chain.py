"""A model that a pipeline can cut: what enters, equal-shaped blocks one after another, what leaves.

``cut`` leaves one stage of it; how stages talk to each other is in ``workloads.parallel.pipeline``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from estimators.model import Stage


@dataclass(frozen=True, slots=True)
class Place:
    """Which stage a rank has, and the group of ranks that have the others, by their index."""

    stage: Stage
    group: ProcessGroup


class Chain(nn.Module, ABC):
    """Subclass it, hold the blocks in ``blocks``, name the attributes that only ``enter`` and only ``leave`` use."""

    enters: ClassVar[tuple[str, ...]]
    leaves: ClassVar[tuple[str, ...]]
    blocks: nn.ModuleList
    place: Place | None = None
    """None: the whole model is here."""

    @abstractmethod
    def enter(self, inputs: Tensor) -> Tensor:
        """What the first block takes."""

    @abstractmethod
    def leave(self, x: Tensor) -> Tensor:
        """The model's output, of what the last block gives."""

    @abstractmethod
    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        """Of what every block takes and gives, for so many samples."""

    @property
    def is_first(self) -> bool:
        return self.place is None or self.place.stage.index == 0

    @property
    def is_last(self) -> bool:
        return self.place is None or self.place.stage.index == self.place.stage.count - 1

    def forward(self, x: Tensor) -> Tensor:
        """Of the part that is here: a later stage takes what the one before it gives."""
        if self.is_first:
            x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x) if self.is_last else x


def cut(model: nn.Module, place: Place) -> list[nn.Module]:
    """Leave only one stage of ``model``, and return its blocks; the remaining parameters keep their names.

    Blocks that do not divide evenly go to the later stages, which hold fewer micro-batches. Raises ``ValueError`` for a
    model that cannot be cut so.
    """
    stage = place.stage
    if not isinstance(model, Chain):
        raise ValueError(
            f"{type(model).__name__} does not say where a pipeline may cut it: make it a "
            "workloads.parallel.chain.Chain, or use plans without a pipeline"
        )
    blocks = list(model.blocks._modules.items())
    if len(blocks) < stage.count:
        raise ValueError(f"{len(blocks)} blocks cannot be divided into {stage.count} stages: choose fewer stages")
    if _parameters(model, model.enters) & _parameters(model, model.leaves):
        raise ValueError(f"the first and the last stage of {type(model).__name__} would share parameters")
    first, end = (len(blocks) * index // stage.count for index in (stage.index, stage.index + 1))
    model.blocks._modules = dict(blocks[first:end])
    model.place = place
    for name in (() if model.is_first else model.enters) + (() if model.is_last else model.leaves):
        setattr(model, name, None)
    return list(model.blocks)


def _parameters(model: nn.Module, names: tuple[str, ...]) -> set[int]:
    """Of the attributes ``names``, which are parameters or modules."""
    found = (getattr(model, name) for name in names)
    lists = (list(one.parameters()) if isinstance(one, nn.Module) else [one] for one in found)
    return {id(parameter) for parameters in lists for parameter in parameters}
