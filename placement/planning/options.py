"""The planner's answers and options, and what they need to know of a cluster and of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from estimators.memory import GPU_MARGIN, VIRTUAL_MARGIN, Margin
from estimators.model import MIB, Layout, Plan, Prediction
from placement.model import Cluster
from placement.pricing.pricer import Price


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The most preferred plan that fits, its cost per rank, and the reason why the one preferred to it was refused.

    ``options`` are cheaper ones that by their units are far too large, then those that were examined, this plan's last,
    and then those on more ranks that would be faster, the one with the fewest ranks first. Only examined ones were
    traced.
    """

    plan: Plan
    prediction: Prediction
    reason: str
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Untraced:
    """The decision needs the peak curve of this layout: add it to the profile and ask again."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan fits these devices. ``reason`` names the best plan, and by how much memory per rank it is too large, with
    categories if it was traced."""

    reason: str


@dataclass(frozen=True, slots=True)
class Option:
    """The best plan of one way to spread a candidate (the smallest if none fits), and its cost per rank.

    ``states_alone``: the model states alone are too large, so nothing was traced. ``at_least``: one micro-batch alone
    already needs too much, so the cost of accumulating several was not examined; see ``is_bound``. ``price`` is that by
    units, None if nothing was priced. ``by_units``: the prediction is a rough one by units too, as no such plan was
    traced.
    """

    plan: Plan
    prediction: Prediction
    offered_mib: int
    states_alone: bool = False
    at_least: bool = False
    price: Price | None = None
    by_units: bool = False

    @property
    def device_seconds(self) -> float | None:
        """Ranks × predicted seconds of a step, on the device kind that the planner was given; None without a price."""
        return self.price.seconds * self.plan.world_size if self.price else None

    @property
    def fits(self) -> bool:
        """Whether one rank's reservation is within ``offered_mib``."""
        return self.lacking_mib <= 0

    @property
    def lacking_mib(self) -> int:
        """MiB of one rank's reservation beyond ``offered_mib``; at most 0 if it fits."""
        return self.prediction.reserved_mib - self.offered_mib

    @property
    def is_bound(self) -> bool:
        """Whether the reservation is a lower bound: what was learned from other runs is only an expectation."""
        return self.at_least and not self.prediction.extra_bytes

    @property
    def about(self) -> str:
        """How exact the reservation is, as the word before its MiB in a refusal, with a space; empty if it is exact."""
        return "about " if self.prediction.extra_bytes else "at least " if self.at_least else ""

    @property
    def learned(self) -> str:
        """How much of the reservation was learned, as the end of a refusal; empty if nothing was."""
        extra_bytes = self.prediction.extra_bytes
        return f", {extra_bytes / MIB:.1f} MiB of it learned" if extra_bytes else ""

    @property
    def words(self) -> str:
        """The plan in words for a refusal, without the number of micro-batches."""
        if self.states_alone:
            return f"{self.plan.ways}, states alone"
        one_by_one = self.plan if self.plan.pp > 1 else replace(self.plan, num_micro_batches=1)
        return str(one_by_one)

    @property
    def evaluation(self) -> str:
        """Words for an evaluation that needs more memory than a training step; empty if it does not."""
        if self.prediction.needed_bytes == self.prediction.peak_bytes:
            return ""
        size = self.plan.evaluation_micro_batch
        step = f"a training step alone {self.prediction.peak_bytes / MIB:.1f} MiB"
        return f" to evaluate {size} sample{'s' * (size > 1)} at a time ({step})"

    def __str__(self) -> str:
        reserved_mib = self.prediction.reserved_mib
        if self.fits:
            return f"{self.plan}: one rank needs {reserved_mib} MiB{self.evaluation}, devices offer {self.offered_mib}"
        needs = f"one rank would need {self.about}{reserved_mib} MiB{self.learned}{self.evaluation}"
        return f"{self.words}: {needs}, devices offer {self.offered_mib}"


def margin_for(cluster: Cluster) -> Margin:
    """The margin of predictions on these devices, the same for studies, ``scamp estimate`` and ``scamp screen``."""
    return GPU_MARGIN if cluster.has_gpus else VIRTUAL_MARGIN


def degrees(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Yield (degree, MiB that each rank may use). The largest devices are taken; the smallest of them limits."""
    capacities = sorted((device.capacity_mib for device in cluster.devices), reverse=True)
    degree = 1
    while degree <= len(capacities):
        yield degree, capacities[degree - 1]
        degree *= 2


def divisors(number: int) -> list[int]:
    """Largest first: ``number`` itself, …, 1."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)}, reverse=True)
