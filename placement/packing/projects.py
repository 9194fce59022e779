"""The order in which studies of several projects get devices: priorities, weighted fair shares, quotas. Pure.

- A trial of higher priority comes before all of lower priority. One that was passed over too often (``turns``) counts
  as one of the highest priority, so that it does not wait forever.
- Between trials of equal priority, the next is of the project that holds the fewest devices for its weight, with those
  that trials before it in this order will hold. This is weighted max-min fairness (Demers, Keshav and Shenker,
  "Analysis and simulation of a fair queueing algorithm", SIGCOMM 1989) on devices. Inside a project studies take turns,
  the one with the fewest running trials first, of these the one with the oldest trial.
- A trial that would take its project over a quota waits, and so do the trials of its project behind it: otherwise small
  ones could keep a large one waiting forever. One that is larger than the whole quota keeps nobody waiting.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType

from placement.packing.turns import PASSES_BEFORE_RESERVATION

DEFAULT_PROJECT = "default"
OVER_QUOTA = "waits for the quota of its project"
"""Begins the words for a trial that a quota keeps waiting."""


@dataclass(frozen=True, slots=True)
class Project:
    """The share of a project, and its quotas. ``devices`` and ``trials`` are those at once; None: no limit.

    A device counts for each of the project's trials on it. ``mib_hours`` are the MiB × hours that its trials may have
    reserved in all before no other one starts.
    """

    weight: float = 1.0
    devices: int | None = None
    trials: int | None = None
    mib_hours: float | None = None

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight must be above 0, got {self.weight}")
        if any(limit is not None and limit < 1 for limit in (self.devices, self.trials)):
            raise ValueError(f"quotas must be at least 1, got devices {self.devices}, trials {self.trials}")
        if self.mib_hours is not None and not self.mib_hours > 0:
            raise ValueError(f"a quota of MiB·hours must be above 0, got {self.mib_hours}")


NO_QUOTA = Project()
NO_PROJECTS: Mapping[str, Project] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claim:
    """A waiting trial that asks for at least ``num_ranks`` devices, and was ``passed_over`` so often."""

    id: int
    study: int
    num_ranks: int
    project: str = DEFAULT_PROJECT
    priority: int = 0
    passed_over: int = 0


@dataclass(slots=True)
class Usage:
    """All that runs now: devices and trials by project, and trials by study; and MiB × hours so far by project."""

    devices: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    of_study: Counter[int] = field(default_factory=Counter)
    mib_hours: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Ids of the trials that may start, in the order to place them, and why the others may not."""

    order: Sequence[int]
    over_quota: Mapping[int, str]


def admit(claims: Sequence[Claim], held: Usage, projects: Mapping[str, Project]) -> StartOrder:
    """The order of the ``claims``, which come by age. A project that is not in ``projects`` has no quota, and weight 1.

    All claims that are admitted keep to the quotas together, each with its ``num_ranks``.
    """
    devices, trials = Counter(held.devices), Counter(held.trials)
    order: list[int] = []
    over_quota: dict[int, str] = {}
    blocked: dict[str, str] = {}
    for claim in claims:
        most = projects.get(claim.project, NO_QUOTA).devices
        if most is not None and claim.num_ranks > most:
            why = f"it needs {claim.num_ranks} devices, and may never use more than {most} (devices in SCAMP_PROJECTS)"
            over_quota[claim.id] = _words(claim, why)
    for claim in _in_order([claim for claim in claims if claim.id not in over_quota], held, projects):
        project = projects.get(claim.project, NO_QUOTA)
        if claim.project not in blocked:
            if project.devices is not None and devices[claim.project] + claim.num_ranks > project.devices:
                blocked[claim.project] = f"{project.devices} devices at once"
            elif project.trials is not None and trials[claim.project] >= project.trials:
                blocked[claim.project] = f"{project.trials} trials at once"
            elif project.mib_hours is not None and held.mib_hours.get(claim.project, 0.0) >= project.mib_hours:
                blocked[claim.project] = (
                    f"its {project.mib_hours:g} MiB·hours in all are used up; with more of them (mib_hours in "
                    "SCAMP_PROJECTS) it starts once the service has been restarted"
                )
        if claim.project in blocked:
            over_quota[claim.id] = _words(claim, blocked[claim.project])
            continue
        devices[claim.project] += claim.num_ranks
        trials[claim.project] += 1
        order.append(claim.id)
    return StartOrder(order, over_quota)


def _words(claim: Claim, why: str) -> str:
    return f"{OVER_QUOTA} {claim.project!r}: {why}"


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
