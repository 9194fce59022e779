"""Hints with which a model constrains the plans that are searched for it: Whale's four primitives, and a default.

A hint is metadata on a module. It executes nothing and divides nothing: the search for plans only considers those that
obey all hints (Jia et al., "Whale: Efficient Giant Model Training over Heterogeneous GPUs", USENIX ATC 2022). Every
function returns the module that it is given, so hints can be put around each other or be lines of their own. Where a
part of a model has a hint, it holds for the whole model: ranks give all parts the same degrees.
``workloads.parallel.constraints`` collects hints and finds contradictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from torch import nn

STRATEGIES = ("replica", "split", "pipeline")
"""Strategies that ``default`` takes."""

_ATTRIBUTE = "_scamp_hints"

Module = TypeVar("Module", bound=nn.Module)


class Contradiction(ValueError):
    """Two hints exclude each other, or a hint excludes what the model says of how it can be divided."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One hint as the user gave it; options that a hint does not have are None."""

    name: Literal["replica", "split", "stage", "pipeline", "default"]
    strategy: str | None = None
    dim: int | None = None
    stages: int | None = None
    micro_batches: int | None = None
    degree: int | None = None

    def __str__(self) -> str:
        options = [("dim", self.dim), ("stages", self.stages), ("micro_batches", self.micro_batches)]
        words = [f'"{self.strategy}"'] if self.strategy else []
        words += [f"{name}={value}" for name, value in (*options, ("degree", self.degree)) if value is not None]
        return f"{self.name}({', '.join(words)})"


def replica(module: Module, degree: int | None = None) -> Module:
    """Ask for data parallelism: ``degree`` groups of ranks, or at least two, train on different samples.

    The search decides whether they hold whole models (``dp_replicate``) or shards of one (``dp_shard``). A replica may
    itself be spread over several ranks, by a split or a pipeline inside ``module``. ``degree=1`` excludes data
    parallelism. Raises ``ValueError`` for a degree below one.
    """
    _check_number("degree", degree, 1)
    return _hinted(module, Hint("replica", degree=degree))


def split(module: Module, dim: Literal[0, 1] | None = None, degree: int | None = None) -> Module:
    """Ask for tensor parallelism (``tp``): ``degree`` ranks, or at least two, divide the layers of the blocks.

    ``module`` is a block or a part of one, or contains blocks, all of which must have a ``Split``. With ``dim`` it is
    one linear layer whose weight is divided along this dimension: 0, its outputs, if the block's ``Split`` names it in
    ``columns``; 1, its inputs, if it is in ``rows``. If ``module`` is a layer of ``Experts``, or one that the model's
    ``Divided`` names, the data-parallel ranks divide it. ``degree=1`` excludes this. The search decides on sequence
    parallelism. Raises ``ValueError`` for a degree below one.
    """
    _check_number("degree", degree, 1)
    if dim not in (None, 0, 1):
        raise ValueError(f"dim is a dimension of a linear layer's weight, 0 (outputs) or 1 (inputs), got {dim!r}")
    return _hinted(module, Hint("split", dim=dim, degree=degree))


def stage(block: Module) -> Module:
    """Mark the block that a stage of a pipeline begins with; the stage extends to the next block that is marked.

    The model must be a ``Chain``. Its first block begins a stage even if it is not marked. Ranks divide blocks as
    evenly as possible, so stages must begin where ranks would cut. The number of stages is then that of ``pp``.
    """
    return _hinted(block, Hint("stage"))


def pipeline(model: Module, micro_batches: int | None = None, stages: int | None = None) -> Module:
    """Ask for a pipeline of ``stages`` (``pp``), or of at least two, that takes this many micro-batches in a step.

    The model must be a ``Chain``. The search decides what is not given, and the schedule and the cut. Raises
    ``ValueError`` for numbers with which there is no such pipeline.
    """
    _check_number("stages", stages, 2)
    if micro_batches is not None and micro_batches < (stages or 2):
        raise ValueError(f"a pipeline needs a micro-batch for each stage, got {micro_batches} for {stages or 2} stages")
    return _hinted(model, Hint("pipeline", stages=stages, micro_batches=micro_batches))


def default(model: Module, strategy: Literal["replica", "split", "pipeline"]) -> Module:
    """Allow only one strategy besides those that the other hints ask for: data, tensor or pipeline parallelism.

    It demands nothing: a model that fits on one rank still trains on one. Without a default, everything is searched
    that the other hints leave open. Raises ``ValueError`` for another strategy.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"the default strategy is one of {', '.join(STRATEGIES)}, got {strategy!r}")
    return _hinted(model, Hint("default", strategy))


def hints_of(module: nn.Module) -> tuple[Hint, ...]:
    """The hints of this module itself, in the order in which they were given."""
    hints: tuple[Hint, ...] = vars(module).get(_ATTRIBUTE, ())
    return hints


def _hinted(module: Module, hint: Hint) -> Module:
    if not isinstance(module, nn.Module):
        raise ValueError(f"a hint is metadata on an nn.Module, not on {type(module).__name__}")
    setattr(module, _ATTRIBUTE, (*hints_of(module), hint))
    return module


def _check_number(name: str, number: int | None, least: int) -> None:
    if number is not None and number < least:
        raise ValueError(f"{name} is a number of at least {least}, got {number!r}")
