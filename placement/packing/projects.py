"""The order in which studies of several projects and people get devices: priorities, fair shares, quotas. Pure.

- A trial of higher priority comes before all of lower priority. One that was passed over too often (``turns``) counts
  as one of the highest priority, so that it does not wait forever.
- Between trials of equal priority, the next is of the project that holds the fewest devices for its weight, with those
  that trials before it in this order will hold. This is weighted max-min fairness (Demers, Keshav and Shenker,
  "Analysis and simulation of a fair queueing algorithm", SIGCOMM 1989) on devices. Inside a project studies take turns,
  the one with the fewest running trials first, of these the one with the oldest trial.
- A trial that would take its project or its owner over a quota waits, and so do the trials of these behind it:
  otherwise small ones could keep a large one waiting forever. One that is larger than the whole quota keeps nobody
  waiting.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType

from placement.model import plural
from placement.packing.turns import PASSES_BEFORE_RESERVATION

DEFAULT_PROJECT = "default"
OVER_QUOTA = "waits for the quota of its"
"""Begins the words for a trial that a quota keeps waiting."""
MOST_NAMED = 3
"""Studies that are named of those which hold what a trial waits for."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a project or a person. ``devices`` and ``trials`` are those at once; None: no limit.

    A device counts for each of the trials on it. No trial starts once earlier ones have held devices for
    ``device_hours`` (hours × devices) in this calendar month, or have reserved ``mib_hours`` (MiB × hours) in all.
    """

    devices: int | None = None
    trials: int | None = None
    device_hours: float | None = None
    mib_hours: float | None = None

    def __post_init__(self) -> None:
        if any(limit is not None and limit < 1 for limit in (self.devices, self.trials)):
            raise ValueError(f"quotas must be at least 1, got devices {self.devices}, trials {self.trials}")
        if any(hours is not None and not hours > 0 for hours in (self.device_hours, self.mib_hours)):
            raise ValueError(f"quotas of hours must be above 0, got {self.device_hours} and {self.mib_hours}")

    def used_up(self, device_hours: float, mib_hours: float) -> str:
        """Why no other trial starts after so many hours; empty if one may."""
        if self.device_hours is not None and device_hours >= self.device_hours:
            return f"its {self.device_hours:g} device-hours of this month are used up"
        if self.mib_hours is not None and mib_hours >= self.mib_hours:
            return f"its {self.mib_hours:g} MiB·hours in all are used up"
        return ""


@dataclass(frozen=True, slots=True)
class Project(Quota):
    """The share of a project, relative to others, and its quotas."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        Quota.__post_init__(self)
        if not self.weight > 0:
            raise ValueError(f"weight must be above 0, got {self.weight}")


NO_QUOTA = Project()
NO_PROJECTS: Mapping[str, Project] = MappingProxyType({})
NO_PEOPLE: Mapping[str, Quota] = MappingProxyType({})


def person(name: str) -> str:
    """The name of a user among the holders of quotas, where that of a project is its name, which has no space."""
    return f"user {name}"


def quotas_of(
    project: str, owner: str, projects: Mapping[str, Project], people: Mapping[str, Quota]
) -> Mapping[str, Quota]:
    """Holder → quota of those to which a study belongs: its project, and its owner if that one has a quota."""
    quotas: dict[str, Quota] = {project: projects.get(project, NO_QUOTA)}
    if owner in people:
        quotas[person(owner)] = people[owner]
    return quotas


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting trial that asks for at least ``num_ranks`` devices, and was ``passed_over`` so often."""

    id: int
    study: int
    num_ranks: int
    project: str = DEFAULT_PROJECT
    priority: int = 0
    passed_over: int = 0
    owner: str = ""


@dataclass(slots=True)
class Usage:
    """All that runs now: devices and trials by holder, trials and devices by study; and hours so far by holder."""

    devices: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    of_study: Counter[int] = field(default_factory=Counter)
    holdings: dict[str, Counter[int]] = field(default_factory=dict)
    """Holder → devices of each of its studies."""
    device_hours: dict[str, float] = field(default_factory=dict)
    mib_hours: dict[str, float] = field(default_factory=dict)

    def used_up(self, holder: str, quota: Quota) -> str:
        """Why no other trial of a holder starts, for the hours that it has used; empty if one may."""
        return quota.used_up(self.device_hours.get(holder, 0.0), self.mib_hours.get(holder, 0.0))

    def held_by(self, holder: str) -> str:
        """Which studies have the devices of a holder, in words; empty if none has any."""
        studies = self.holdings.get(holder, Counter[int]()).most_common()
        words = [f"study {study} holds {num}" for study, num in studies[:MOST_NAMED]]
        words += ["and others do"] * (len(studies) > MOST_NAMED)
        return f" ({', '.join(words)})" if words else ""


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Ids of the trials that may start, in the order to place them, and why the others may not."""

    order: Sequence[int]
    over_quota: Mapping[int, str]


def admit(
    claims: Sequence[Claim],
    held: Usage,
    projects: Mapping[str, Project],
    people: Mapping[str, Quota] = NO_PEOPLE,
) -> StartOrder:
    """The order of the ``claims``, which come by age. A project that is not in ``projects`` has no quota, and weight 1;
    owners have those in ``people``.

    All claims that are admitted keep to the quotas together, each with its ``num_ranks``.
    """
    devices, trials = Counter(held.devices), Counter(held.trials)
    order: list[int] = []
    over_quota: dict[int, str] = {}
    blocked: dict[str, str] = {}
    quotas = {claim.id: quotas_of(claim.project, claim.owner, projects, people) for claim in claims}
    for claim in claims:
        for holder, quota in quotas[claim.id].items():
            if quota.devices is not None and claim.num_ranks > quota.devices:
                why = (
                    f"it needs {plural(claim.num_ranks, 'device')}, and may never use more than {quota.devices} at once"
                )
                over_quota[claim.id] = _words(holder, why)
    for claim in _in_order([claim for claim in claims if claim.id not in over_quota], held, projects):
        for holder, quota in quotas[claim.id].items():
            if holder in blocked:
                continue
            if quota.devices is not None and devices[holder] + claim.num_ranks > quota.devices:
                blocked[holder] = f"{plural(quota.devices, 'device')} at once{held.held_by(holder)}"
            elif quota.trials is not None and trials[holder] >= quota.trials:
                blocked[holder] = f"{plural(quota.trials, 'trial')} at once{held.held_by(holder)}"
            elif why := held.used_up(holder, quota):
                blocked[holder] = why
        if blocking := next((holder for holder in quotas[claim.id] if holder in blocked), None):
            over_quota[claim.id] = _words(blocking, blocked[blocking])
            continue
        for holder in quotas[claim.id]:
            devices[holder] += claim.num_ranks
            trials[holder] += 1
        order.append(claim.id)
    return StartOrder(order, over_quota)


def _words(holder: str, why: str) -> str:
    kind, _, name = holder.rpartition(" ")
    return f"{OVER_QUOTA} {'owner' if kind else 'project'} {name!r}: {why}"


def _in_order(claims: Sequence[Claim], held: Usage, projects: Mapping[str, Project]) -> Iterator[Claim]:
    """All claims, by priority and fairness, whatever the quotas."""
    devices = Counter(held.devices)
    highest = max((claim.priority for claim in claims), default=0)

    def priority(claim: Claim) -> int:
        return highest if claim.passed_over >= PASSES_BEFORE_RESERVATION else claim.priority

    by_priority = sorted(claims, key=lambda claim: -priority(claim))  # stable
    for _, equal in groupby(by_priority, key=priority):
        of_project: dict[str, list[Claim]] = {}
        for claim in equal:
            of_project.setdefault(claim.project, []).append(claim)
        turns = {project: iter(in_turns(claims_there, held.of_study)) for project, claims_there in of_project.items()}

        def share(project: str) -> tuple[float, str]:
            return devices[project] / projects.get(project, NO_QUOTA).weight, project

        heap = [share(project) for project in turns]
        heapq.heapify(heap)
        while heap:
            _, name = heap[0]
            next_claim = next(turns[name], None)
            if next_claim is None:
                heapq.heappop(heap)
                continue
            yield next_claim
            devices[name] += next_claim.num_ranks
            heapq.heapreplace(heap, share(name))


def in_turns(claims: Sequence[Claim], running: Mapping[int, int]) -> Sequence[Claim]:
    """Claims of one project, which come by age: studies take turns, the one with the fewest running trials first.

    Between studies with equally many the oldest claim is first.
    """
    turns = Counter(running)
    turn_of: list[int] = []
    for claim in claims:
        turn_of.append(turns[claim.study])
        turns[claim.study] += 1
    places = sorted(range(len(claims)), key=turn_of.__getitem__)  # stable: by age
    return [claims[place] for place in places]
