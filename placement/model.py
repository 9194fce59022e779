"""The nouns of placement: devices, gangs, and where a gang goes or why it waits. Memory is counted in whole MiB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

Offer = tuple[tuple[str, int, int], ...]
"""Devices of a cluster as (kind, MiB of each, number of them), sorted. A verdict on a candidate holds for one offer."""

Ready = Mapping[str, frozenset[str | None]]
"""Device → archives of user code that its idle ranks have run; None: none yet, so that the rank may run any."""
NONE_READY: Ready = MappingProxyType({})

VIRTUAL_KIND = "virtual"
"""Device kind of virtual devices (memory budgets on a host without GPUs)."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one virtual device: a memory budget on a host without GPUs. ``id`` is unique in the cluster."""

    id: str
    node: str
    index: int
    kind: str
    capacity_mib: int

    def __post_init__(self) -> None:
        if self.capacity_mib < 1:
            raise ValueError(f"device {self.id} must offer at least 1 MiB, got {self.capacity_mib}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A snapshot of the devices that can be used now."""

    devices: tuple[Device, ...] = ()

    def __post_init__(self) -> None:
        ids = [device.id for device in self.devices]
        if len(set(ids)) != len(ids):
            raise ValueError(f"device ids must be unique, got {ids}")

    @property
    def has_gpus(self) -> bool:
        """Whether any device is a GPU, not a virtual device."""
        return any(device.kind != VIRTUAL_KIND for device in self.devices)

    @property
    def by_kind(self) -> Mapping[str, Cluster]:
        """The devices of each kind."""
        kinds = dict.fromkeys(device.kind for device in self.devices)
        return {kind: Cluster(tuple(device for device in self.devices if device.kind == kind)) for kind in kinds}

    def of_kinds(self, kinds: frozenset[str]) -> Cluster:
        """The devices of these kinds; all of them if ``kinds`` is empty."""
        return Cluster(tuple(device for device in self.devices if device.kind in kinds)) if kinds else self

    def why_none_of(self, kinds: Iterable[str]) -> str:
        """Say that none of the devices is of the ``kinds`` that a study may use."""
        present = " and ".join(sorted(self.by_kind))
        return f"the study may use {' or '.join(sorted(kinds))} alone (kinds), and the cluster has {present}"

    @property
    def offer(self) -> Offer:
        """How many devices there are of each kind and size."""
        counts = Counter((device.kind, device.capacity_mib) for device in self.devices)
        return tuple((kind, mib, number) for (kind, mib), number in sorted(counts.items()))


def offer_of(offer: Offer, kinds: frozenset[str]) -> Offer:
    """The devices of these kinds in the offer; all of them if ``kinds`` is empty."""
    return tuple(row for row in offer if row[0] in kinds) if kinds else offer


def offers_more(offer: Offer, before: Offer) -> bool:
    """Whether ``offer`` has more devices than ``before`` of some kind and at least some size.

    Only then may a gang fit that fit nowhere ``before``.
    """
    return any(_num_devices(offer, kind, mib) > _num_devices(before, kind, mib) for kind, mib, _ in offer)


def _num_devices(offer: Offer, kind: str, mib: int) -> int:
    return sum(number for other, offered_mib, number in offer if other == kind and offered_mib >= mib)


@dataclass(frozen=True, slots=True)
class Gang:
    """The demand of one attempt: ``num_ranks`` different devices with ``mib_per_rank`` free on each.

    ``mibs`` are those of each rank, in rank order, where ranks take unlike shares of the batch; ``mib_per_rank`` is
    then the largest.
    """

    id: str
    num_ranks: int
    mib_per_rank: int
    mibs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.mib_per_rank < 1:
            raise ValueError(f"gang {self.id} must have at least 1 rank of 1 MiB, got {self}")
        if self.mibs and (len(self.mibs) != self.num_ranks or max(self.mibs) != self.mib_per_rank):
            raise ValueError(f"gang {self.id} must have MiB for each rank, none above mib_per_rank, got {self}")

    @property
    def mib_of_ranks(self) -> tuple[int, ...]:
        """MiB of each rank, in rank order."""
        return self.mibs or (self.mib_per_rank,) * self.num_ranks


@dataclass(frozen=True, slots=True)
class Shape:
    """The demand of one option of a trial on the cluster: ``num_ranks`` devices with ``mib_per_rank`` free on each.

    Where ranks take unlike shares of the batch, ``mibs`` are those of each rank (see ``Gang``), and ``samples`` its
    share of a micro-batch. ``seconds`` is how long the rest of its training takes alone on its devices, and
    ``communication_share`` (0 to 1) the part of them spent waiting for communication; None where they are not known.
    ``kind`` is that of the devices for which it was planned; empty: the plan and its seconds are for any.
    """

    num_ranks: int
    mib_per_rank: int
    seconds: float | None = None
    communication_share: float | None = None
    mibs: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    kind: str = ""

    @property
    def device_seconds(self) -> float | None:
        """Ranks × seconds; None where these are not known."""
        return None if self.seconds is None else self.num_ranks * self.seconds


@dataclass(frozen=True, slots=True)
class Queued:
    """A trial that wants to start: it offers ``shapes``, those with the fewest ranks first of each kind of devices, and
    starts as the gang ``id``.

    ``passed_over`` counts the gangs that arrived later and have started since this one was queued. ``arrival`` orders
    gangs by age if the queue is in another order. Gangs that arrived together keep their order in the queue. A policy
    may exchange the places of trials of one ``study`` in the queue, but not those of different studies. One that has
    trained before ``resumes``. ``code`` is its archive of user code; None: a built-in workload. ``name`` is what users
    call it in the reasons of others, such as "trial 3 of study 1". ``kinds`` are those of the devices on which it may
    start; empty: any.
    """

    id: str
    shapes: tuple[Shape, ...]
    passed_over: int = 0
    arrival: int = 0
    study: int = 0
    resumes: bool = False
    code: str | None = None
    name: str = ""
    kinds: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError(f"gang {self.id} must offer at least one shape")

    def may_use(self, kinds: frozenset[str]) -> bool:
        """Whether the study allows every one of these kinds of devices."""
        return not self.kinds or kinds <= self.kinds

    def gang(self, choice: int = 0) -> Gang:
        """The gang of one of its shapes."""
        shape = self.shapes[choice]
        return Gang(self.id, shape.num_ranks, shape.mib_per_rank, shape.mibs)


@dataclass(frozen=True, slots=True)
class Placement:
    """A gang's devices, one per rank in rank order, and the reason in words.

    ``choice`` is the position of the shape that it takes among those of ``Queued``.
    """

    gang: Gang
    devices: tuple[str, ...]
    reason: str
    choice: int = 0


def plural(number: int, noun: str) -> str:
    """A number of things in words, such as ``1 device``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
