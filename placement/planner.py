"""Chooses the plan of one candidate from its traced profile: how many ranks, whether to recompute, which micro-batch.

Pure: it traces nothing. It walks the options in order of preference and, where a layout's peak curve is missing,
answers which one it must know; the caller traces that layout and asks again. It knows nothing of what else runs on
the devices: when and where the gang starts is the packer's business.

The rule, most preferred first:

1. the smallest degree in 1, 2, 4, …: a gang of d ranks trains a step at most d times as fast, and loses that to
   communication, so fewer ranks per candidate train more candidates per device-hour while others wait;
2. no recompute before recompute: it repeats every forward pass, about a third more FLOPs (forward : backward = 1 : 2);
3. the largest micro-batch: accumulating over smaller ones costs no FLOPs, only kernels that are less well filled.

Degree by memory alone leaves devices idle when few candidates are left; mending that needs step times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from estimators.memory import footprint, least_footprint
from estimators.model import MIB, Footprint, Layout, ModelProfile, Plan
from placement.model import Cluster


@dataclass(frozen=True, slots=True)
class Choice:
    """The preferred plan that fits, its cost per rank, and why no more preferred one was taken."""

    plan: Plan
    footprint: Footprint
    reason: str


@dataclass(frozen=True, slots=True)
class Untraced:
    """The decision needs the peak curve of this layout: add it to the profile and ask again."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan fits these devices. ``best_peak_bytes`` is the lowest peak known; a lower bound if nothing was traced."""

    reason: str
    best_peak_bytes: int


def choose(profile: ModelProfile, *, batch: int, cluster: Cluster, extra_bytes: int = 0) -> Choice | Untraced | NoPlan:
    """The plan for ``batch`` samples per optimizer step; ``extra_bytes`` per rank are added to every prediction.

    Asks for at most four layouts per degree, and for none of a degree whose states alone are too large. Raises
    ValueError for an empty cluster: no candidate is infeasible merely because the devices are not there yet.
    """
    if batch < 1 or extra_bytes < 0:
        raise ValueError(f"batch must be at least 1 and extra_bytes at least 0, got {batch} and {extra_bytes}")
    if not cluster.devices:
        raise ValueError("the cluster has no devices: ask again when it has some")
    search = _Search(profile, batch, extra_bytes)
    for degree, capacity_mib in _degrees(cluster, batch):
        found = search.within(degree, capacity_mib)
        if found is not None:
            return found
    return search.nothing_fits(cluster)


def _degrees(cluster: Cluster, batch: int) -> Iterator[tuple[int, int]]:
    """(degree, MiB that each of its ranks may use): the largest devices are taken, the smallest of them binds."""
    capacities = sorted((device.capacity_mib for device in cluster.devices), reverse=True)
    degree = 1
    while degree <= len(capacities) and batch % degree == 0:
        yield degree, capacities[degree - 1]
        degree *= 2


@dataclass(frozen=True, slots=True)
class _Rejected:
    """The cheapest plan of one degree and recompute setting, which still does not fit."""

    words: str
    traced: bool  # else its states alone are too large
    needs_mib: int
    peak_bytes: int
    offered_mib: int
    at_least: bool  # a part of it alone does not fit, and the whole was not looked at

    def __str__(self) -> str:
        least = "at least " if self.at_least else ""
        return f"{self.words}: one rank would need {least}{self.needs_mib} MiB, devices offer {self.offered_mib}"


class _Search:
    """Walks the plans of one candidate, and remembers why those before did not fit."""

    def __init__(self, profile: ModelProfile, batch: int, extra_bytes: int) -> None:
        self.profile, self.batch, self.extra_bytes = profile, batch, extra_bytes
        self.rejected: list[_Rejected] = []
        self.widest = 1

    def within(self, degree: int, capacity_mib: int) -> Choice | Untraced | None:
        """The best plan of this degree; None when none of them fits."""
        self.widest = degree
        least = least_footprint(self.profile, degree, self.extra_bytes)
        if least.reserved_mib > capacity_mib:
            words = f"FSDP over {degree} ranks, states alone" if degree > 1 else "1 rank, states alone"
            self.rejected.append(
                _Rejected(words, False, least.reserved_mib, least.peak_bytes, capacity_mib, at_least=True)
            )
            return None
        for recompute in (False, True):
            found = self._with_recompute(degree, recompute, capacity_mib)
            if found is not None:
                return found
        return None

    def _with_recompute(self, degree: int, recompute: bool, capacity_mib: int) -> Choice | Untraced | None:
        share = self.batch // degree
        whole, parts = (Layout(degree, recompute, accumulate) for accumulate in (False, True))
        if whole not in self.profile.curves:
            return Untraced(whole)
        sizes = [size for size in _divisors(share) if size <= self._bound(whole, capacity_mib)]
        if share in sizes and self._fits(Plan(share, 1, degree, recompute), capacity_mib):
            return self._chosen(Plan(share, 1, degree, recompute), capacity_mib)
        # Accumulation keeps gradients through the next forward pass, so it never needs less than one micro-batch of
        # the same size without it: when no such micro-batch fits, the second trace can tell nothing new.
        if not any(self._fits(Plan(size, 1, degree, recompute), capacity_mib) for size in sizes):
            self._reject(Plan(1, 1, degree, recompute), capacity_mib, at_least=share > 1)
            return None
        if parts not in self.profile.curves:
            return Untraced(parts)
        for size in (size for size in _divisors(share)[1:] if size <= self._bound(parts, capacity_mib)):
            plan = Plan(size, share // size, degree, recompute)
            if self._fits(plan, capacity_mib):
                return self._chosen(plan, capacity_mib)
        self._reject(Plan(1, share, degree, recompute), capacity_mib, at_least=False)
        return None

    def _bound(self, layout: Layout, capacity_mib: int) -> int:
        """No larger micro-batch can fit, before any margin; nor does every curve know what it would need."""
        return self.profile.curves[layout].largest_batch(capacity_mib * MIB)

    def _fits(self, plan: Plan, capacity_mib: int) -> bool:
        return footprint(self.profile, plan, self.extra_bytes).reserved_mib <= capacity_mib

    def _chosen(self, plan: Plan, capacity_mib: int) -> Choice:
        cost = footprint(self.profile, plan, self.extra_bytes)
        fits = f"{plan}: one rank needs {cost.reserved_mib} MiB, devices offer {capacity_mib}"
        # The last refusal says the most: those before it were preferred to it.
        return Choice(plan, cost, f"{fits} ({self.rejected[-1]})" if self.rejected else fits)

    def _reject(self, plan: Plan, capacity_mib: int, *, at_least: bool) -> None:
        cost = footprint(self.profile, plan, self.extra_bytes)
        words = str(replace(plan, num_micro_batches=1))
        self.rejected.append(_Rejected(words, True, cost.reserved_mib, cost.peak_bytes, capacity_mib, at_least))

    def nothing_fits(self, cluster: Cluster) -> NoPlan:
        best = min(self.rejected, key=lambda plan: (not plan.traced, plan.needs_mib - plan.offered_mib))
        least = "at least " if best.at_least else ""
        reason = f"needs {least}{best.needs_mib} MiB per device on its best plan ({best.words})"
        reason += f"; the devices offer {best.offered_mib} MiB"
        if 2 * self.widest <= len(cluster.devices):
            reason += f" (no wider plan: {2 * self.widest} ranks do not divide the batch of {self.batch})"
        return NoPlan(reason, best.peak_bytes)


def _divisors(number: int) -> list[int]:
    """Largest first: ``number`` itself, …, 1."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)}, reverse=True)
