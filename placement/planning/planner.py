"""Chooses the plan of one candidate from its traced profile: how many ranks, whether to recompute, which micro-batch.

Pure: it traces nothing. It examines the options in order of preference. If it needs the peak curve of a layout that has
not been traced, it returns that layout; the caller traces it and asks again. It does not know what else runs on the
devices: the packer decides when and where the gang starts.

The rule, most preferred first:

1. the smallest degree in 1, 2, 4, …: a gang of d ranks trains a step at most d times as fast, and communication reduces
   that. So while other candidates wait, fewer ranks per candidate train more candidates per device-hour;
2. plans without recompute before plans with it: recompute repeats every forward pass, which costs about a third more
   FLOPs (forward : backward = 1 : 2);
3. the largest micro-batch: accumulating over smaller ones costs no FLOPs, but smaller kernels use the device less well.

Choosing the degree by memory alone leaves devices idle when few candidates are left. Avoiding that needs step times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from estimators.memory import (
    GPU_MARGIN,
    NO_EXTRA,
    VIRTUAL_MARGIN,
    Extra,
    Margin,
    largest_micro_batch,
    predict,
    predict_states,
)
from estimators.model import MIB, Layout, Peaks, Plan, Prediction
from placement.model import Cluster


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The most preferred plan that fits, its cost per rank, and the reason why the one preferred to it was refused."""

    plan: Plan
    prediction: Prediction
    reason: str


@dataclass(frozen=True, slots=True)
class Untraced:
    """The decision needs the peak curve of this layout: add it to the profile and ask again."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class NoPlan:
    """No plan fits these devices. ``reason`` names the best plan and its memory per rank."""

    reason: str


@dataclass(frozen=True, slots=True)
class Option:
    """The best plan of one degree and recompute setting (the cheapest if none fits), and its cost per rank.

    ``states_alone``: the model states alone are too large, so nothing was traced. ``at_least``: one micro-batch alone
    already needs too much, so the cost of accumulating several was not examined.
    """

    plan: Plan
    prediction: Prediction
    offered_mib: int
    states_alone: bool = False
    at_least: bool = False

    @property
    def fits(self) -> bool:
        """Whether one rank's reservation is within ``offered_mib``."""
        return self.prediction.reserved_mib <= self.offered_mib

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
        return str(replace(self.plan, num_micro_batches=1))

    def __str__(self) -> str:
        if self.fits:
            return f"{self.plan}: one rank needs {self.prediction.reserved_mib} MiB, devices offer {self.offered_mib}"
        least = "at least " if self.at_least else ""
        needs = f"one rank would need {least}{self.prediction.reserved_mib} MiB{self.learned}"
        return f"{self.words}: {needs}, devices offer {self.offered_mib}"


def choose(profile: Peaks, *, batch: int, cluster: Cluster, extra: Extra = NO_EXTRA) -> ChosenPlan | Untraced | NoPlan:
    """Choose the plan for ``batch`` samples per optimizer step.

    ``extra`` bytes per rank, and the margin for these devices, are added to every prediction. Needs the traces of at
    most four layouts per degree, and of none for a degree whose model states alone are too large. Raises ValueError for
    an empty cluster: a candidate is not infeasible merely because the devices are not there yet.
    """
    return pick(_options(profile, batch, cluster, extra), batch=batch, cluster=cluster)


def pick(options: Iterable[Option | Untraced], *, batch: int, cluster: Cluster) -> ChosenPlan | Untraced | NoPlan:
    """Pick the first option that fits; ``options`` are in the order of preference, as ``list_options`` returns them.

    An ``Untraced`` that comes before it is returned instead.
    """
    refused: list[Option] = []
    for option in options:
        if isinstance(option, Untraced):
            return option
        if option.fits:
            # The last refused option says the most: it is the next better one.
            why = f" ({refused[-1]})" if refused else ""
            return ChosenPlan(option.plan, option.prediction, f"{option}{why}")
        refused.append(option)
    return _nothing_fits(refused, batch, cluster)


def list_options(profile: Peaks, *, batch: int, cluster: Cluster, extra: Extra = NO_EXTRA) -> list[Option | Untraced]:
    """All options that ``choose`` would examine if none of them fitted, in the same order. Raises the same errors."""
    return list(_options(profile, batch, cluster, extra))


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


def _options(profile: Peaks, batch: int, cluster: Cluster, extra: Extra) -> Iterator[Option | Untraced]:
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not cluster.devices:
        raise ValueError("the cluster has no devices: ask again when it has some")
    margin = margin_for(cluster)
    for degree, offered_mib in degrees(cluster):
        if batch % degree:
            return
        layouts = [*_layouts(degree, False), *_layouts(degree, True)]
        least = predict_states(profile, degree, min(map(extra.bytes_for, layouts)), margin)
        if least.reserved_mib > offered_mib:
            yield Option(Plan(1, dp_shard=degree), least, offered_mib, states_alone=True, at_least=True)
            continue
        for recompute in (False, True):
            yield _Row(profile, batch, extra, margin, degree, recompute, offered_mib).best()


@dataclass(frozen=True, slots=True)
class _Row:
    """The plans of one degree and recompute setting."""

    profile: Peaks
    batch: int
    extra: Extra
    margin: Margin
    degree: int
    recompute: bool
    offered_mib: int

    def best(self) -> Option | Untraced:
        share = self.batch // self.degree
        whole, parts = _layouts(self.degree, self.recompute)
        if whole not in self.profile.curves:
            return Untraced(whole)
        largest = self._largest(whole)
        if share <= largest:
            return self._option(share)
        # Accumulation keeps gradients during the next forward pass, so by its trace it never needs less than a single
        # micro-batch of the same size. If not even one sample fits, a trace with accumulation changes the result only
        # where less was learned for it.
        if largest == 0 and (share == 1 or self.extra.bytes_for(parts) >= self.extra.bytes_for(whole)):
            return self._option(1, at_least=share > 1)
        if parts not in self.profile.curves:
            return Untraced(parts)
        largest = self._largest(parts)
        size = next((size for size in divisors(share)[1:] if size <= largest), 1)
        return self._option(size, share // size)

    def _largest(self, layout: Layout) -> int:
        return largest_micro_batch(self.profile, layout, self.offered_mib, self.extra.bytes_for(layout), self.margin)

    def _option(self, micro_batch: int, num_micro_batches: int = 1, *, at_least: bool = False) -> Option:
        plan = _plan(micro_batch, num_micro_batches, self.degree, self.recompute)
        cost = predict(self.profile, plan, self.extra.bytes_for(plan.layout), self.margin)
        return Option(plan, cost, self.offered_mib, at_least=at_least)


@lru_cache(maxsize=4096)
def _plan(micro_batch: int, num_micro_batches: int, degree: int, recompute: bool) -> Plan:
    """A cached plan: a screening builds the same few hundred tens of thousands of times."""
    return Plan(micro_batch, num_micro_batches, dp_shard=degree, recompute=recompute)


@cache
def _layouts(degree: int, recompute: bool) -> tuple[Layout, Layout]:
    """The layouts without and with accumulation: the same objects that plans have, which a dictionary finds fastest."""
    return _plan(1, 1, degree, recompute).layout, _plan(1, 2, degree, recompute).layout


def _nothing_fits(refused: list[Option], batch: int, cluster: Cluster) -> NoPlan:
    best = min(refused, key=lambda option: (option.states_alone, option.prediction.reserved_mib - option.offered_mib))
    least = "at least " if best.at_least else ""
    reason = f"needs {least}{best.prediction.reserved_mib} MiB per device on its best plan ({best.words})"
    reason += f"{best.learned}; the devices offer {best.offered_mib} MiB"
    wider = 2 * max(option.plan.dp_shard for option in refused)
    if wider <= len(cluster.devices):
        reason += f" (no wider plan: {wider} ranks do not divide the batch of {batch})"
    return NoPlan(reason)
