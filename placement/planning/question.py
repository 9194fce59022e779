"""The question that a study's planner answers, as one value: a candidate, devices, and what was learned.

Here is also what plans need to know of a cluster and of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from estimators.constraints import PlanConstraints
from estimators.devices.kind import DeviceKind
from estimators.learned_seconds import SlowDowns
from estimators.memory import GPU_MARGIN, NO_EXTRA, VIRTUAL_MARGIN, Extra, Margin
from estimators.model import Plan
from estimators.profile import ModelProfile
from placement.model import Cluster
from placement.option import Option


@dataclass(frozen=True, slots=True)
class Question:
    """The question of a study: the plan for ``batch`` samples per optimizer step of a candidate on these devices.

    Its fields never change, but the mappings of ``profile`` may: whoever asks adds the curves and refusals of layouts
    that it has traced since, and the planner reads them at each ask (``planner.PlanChoice``).

    ``kind`` gives the speed of the devices and of their links, by which plans are ordered; if it is None, that of a CPU
    is assumed. Options on up to ``widest`` ranks are traced besides the plan, where the speed is known. ``extra`` bytes
    per rank, and the ``margin`` for these devices, are added to every prediction. ``slow_downs`` are what the family
    has learned about predicted seconds. ``kinds`` are those of the cluster by name, where they are known: the speed of
    each counts where ranks take unlike shares of the batch. ``refined`` are plans of the exact search to choose from as
    well (``placement.exact.study_planner``), priced as if each rank had its device for itself. ``plan`` is the one that
    the study gives, and then the answer is this plan, or why it is not possible. Raises ``ValueError`` for an empty
    cluster: a candidate is not infeasible merely because the devices are not there yet.
    """

    profile: ModelProfile
    batch: int
    cluster: Cluster
    kind: DeviceKind | None = None
    widest: int = 1
    extra: Extra = NO_EXTRA
    slow_downs: SlowDowns = field(default_factory=dict)
    kinds: Mapping[str, DeviceKind] = field(default_factory=dict)
    plan: Plan | None = None
    refined: tuple[Option, ...] = ()
    margin: Margin = field(init=False)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")
        if not self.cluster.devices:
            raise ValueError("the cluster has no devices: ask again when it has some")
        object.__setattr__(self, "margin", margin_for(self.cluster))

    @property
    def constraints(self) -> PlanConstraints:
        """Limits that the model's hints set on its plans."""
        return self.profile.divisions.constraints


def margin_for(cluster: Cluster) -> Margin:
    """The margin of predictions on these devices, the same for studies, ``scamp estimate`` and ``scamp screen``."""
    return GPU_MARGIN if cluster.has_gpus else VIRTUAL_MARGIN


def degrees(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield (degree, MiB that each rank may use). The largest devices are taken; the smallest of them limits.

    Degrees are 1, 2, 3, 4, 6, 8, 12, … and the number of all devices.
    """
    capacities = sorted((device.capacity_mib for device in cluster.devices), reverse=True)
    powers = [2**power for power in range(len(capacities).bit_length())]
    for degree in sorted({*powers, *(3 * power for power in powers), len(capacities)}):
        if 0 < degree <= len(capacities):
            yield degree, capacities[degree - 1]


def divisors(number: int) -> list[int]:
    """Largest first: ``number`` itself, …, 1."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)}, reverse=True)
