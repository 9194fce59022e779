"""Notes of the exact search on an option besides its plan, and why ranks cannot train it, if so.

A plan says how ranks divide the work. A refinement adds the costs of its stages, the kinds of their devices, shares of
the batch on different devices, and the schedule of a pipeline with its simulated step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from estimators.pipelining.passes import PipelineSchedule
from placement.pipelining.cuts import Cut, is_even
from placement.pipelining.simulator import Simulation


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule with a cut, and its simulated step. ``cut`` has the number of blocks of each stage."""

    schedule: PipelineSchedule
    cut: Cut
    simulation: Simulation

    @property
    def is_even(self) -> bool:
        """Whether all stages have as equal numbers of blocks as possible, as ranks divide them."""
        return is_even(self.cut)


@dataclass(frozen=True, slots=True)
class PlanStage:
    """One stage with its ``num_ranks`` devices of a kind. ``blocks`` are the first one and the one behind the last.

    ``recomputed`` are block numbers. ``pass_seconds`` of one micro-batch include ``recompute_seconds``.
    ``bytes_by_category`` add up to the peak of a rank without its margin. ``saved_bytes`` are what recompute saves
    there.
    """

    kind: str
    num_ranks: int
    blocks: tuple[int, int]
    recomputed: tuple[int, ...]
    pass_seconds: float
    compute_seconds: float
    recompute_seconds: float
    bytes_by_category: Mapping[str, int]
    saved_bytes: int
    offered_mib: int

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of one rank, without the margin."""
        return sum(self.bytes_by_category.values())


@dataclass(frozen=True, slots=True)
class UnevenShares:
    """Uneven shares of the batch: ``samples`` of the ranks on each kind of devices in one micro-batch.

    ``even_seconds`` is the time of a step with equal shares, infinite if they do not fit or do not divide the batch.
    """

    samples: Mapping[str, tuple[int, ...]]
    even_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Refinement:
    """The parts of an option that its plan does not say. By default there are none.

    If it ``is_trained``, ranks that get the plan train exactly this; otherwise ``untrained`` says what ranks cannot
    do: its ``schedule``, different ``devices`` of its stages, or its ``trace``, which was refused.
    ``pipeline`` is the simulated one; None without several stages. A plan that was searched has ``stages`` or
    ``shares``; a pipeline that was only listed has neither.
    """

    untrained: str = ""
    pipeline: Pipeline | None = None
    stages: tuple[PlanStage, ...] = ()
    shares: UnevenShares | None = None

    @property
    def is_trained(self) -> bool:
        """Whether ranks that get the plan train exactly this."""
        return not self.untrained

    @property
    def is_searched(self) -> bool:
        """Whether the search has chosen its stages or shares."""
        return bool(self.stages) or self.shares is not None

    @property
    def fullest(self) -> PlanStage:
        """The stage whose ranks have least memory left."""
        return fullest_of(self.stages)

    @property
    def cut(self) -> Cut:
        """Number of blocks of each stage."""
        return tuple(end - start for start, end in (stage.blocks for stage in self.stages))

    @property
    def recomputed(self) -> tuple[int, ...]:
        """The blocks that are recomputed."""
        return tuple(block for stage in self.stages for block in stage.recomputed)

    @property
    def devices(self) -> dict[str, int]:
        """Number of devices of each kind."""
        used = {kind: len(shares) for kind, shares in self.shares.samples.items()} if self.shares else {}
        for stage in self.stages:
            used[stage.kind] = used.get(stage.kind, 0) + stage.num_ranks
        return used


NO_REFINEMENT = Refinement()
"""The plan says all, and ranks train it."""


def fullest_of(stages: tuple[PlanStage, ...]) -> PlanStage:
    """The stage whose ranks have least memory left."""
    return max(stages, key=lambda stage: stage.peak_bytes / stage.offered_mib)
