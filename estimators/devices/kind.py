"""A model of device: how fast it computes, how much memory it has, how much of that a rank cannot use, and how fast it
communicates. Pure; ``estimators.devices.catalogue`` lists GPUs, and ``workloads.calibration`` measures the device at
hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from estimators.work import COLLECTIVES, OP_KINDS, Work

Provenance = Literal["measured", "datasheet", "literature", "assumed"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its origin, for example ``measured`` by ScaMP on such a device, or found by others
    (``literature``)."""

    value: float
    provenance: Provenance
    source: str


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds for one of each of ``estimators.work.AMOUNTS``; ``per_flop`` is for FLOPs that are not half FLOPs."""

    per_op: float
    per_flop: float
    per_byte: float
    per_fresh_byte: float = 0.0
    per_half_flop: float = 0.0

    def seconds(self, amounts: Sequence[float]) -> float:
        """Seconds for these ``AMOUNTS`` of one kind of operation."""
        operations, flops, num_bytes, fresh_bytes, half_flops = amounts
        computing = self.per_flop * (flops - half_flops) + self.per_half_flop * half_flops
        return self.per_op * operations + computing + self.per_byte * num_bytes + self.per_fresh_byte * fresh_bytes


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a device, in bytes.

    ``total`` is what the driver offers to all processes on the device. The other fields are what one rank takes and no
    trace of tensors shows: the CUDA ``context``, the ``workspaces`` of matrix products, and NCCL's communicator, for a
    ``pair`` of ranks or a larger ``gang``.
    """

    total: Figure
    context: Figure
    workspaces: Figure
    pair: Figure
    gang: Figure

    def outside_bytes(self, num_ranks: int) -> int:
        """Bytes that one rank takes outside of its tensors, in a gang with one communicator."""
        communicator = 0.0 if num_ranks == 1 else self.pair.value if num_ranks == 2 else self.gang.value
        return int(self.context.value + self.workspaces.value + communicator)


@dataclass(frozen=True, slots=True)
class Link:
    """A message of n bytes takes ``latency_seconds`` + n / ``bytes_per_second``, in one direction."""

    latency_seconds: Figure
    bytes_per_second: Figure


@dataclass(frozen=True, slots=True)
class Pace:
    """A collective takes ``start_seconds``, ``hop_seconds`` for each hop, and the bytes that move over one link divided
    by ``bytes_per_second``; hops and bytes are those of a ring (``devices.communication``)."""

    start_seconds: Figure
    hop_seconds: Figure
    bytes_per_second: Figure


@dataclass(frozen=True, slots=True)
class Links:
    """How devices communicate: ``inside`` a link domain of up to ``domain_size`` devices, and ``across`` domains, where
    the speed is that of all devices of a domain together. Every collective takes ``start_seconds`` in addition.

    ``paces`` are those of collectives (``COLLECTIVES``) that were measured inside a domain, instead of ``inside``. With
    ``overlap`` the collectives of FSDP2 run while ranks compute.
    """

    inside: Link
    across: Link
    domain_size: Figure
    start_seconds: Figure
    paces: Mapping[str, Pace] = field(default_factory=dict)
    overlap: bool = True

    def __post_init__(self) -> None:
        if unknown := self.paces.keys() - set(COLLECTIVES):
            raise ValueError(f"unknown kinds of collective: {', '.join(sorted(unknown))}")


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A model of device. ``rates`` are by kind of operation (``OP_KINDS``); a kind without a rate takes no time.

    ``provenance`` says where the rates come from, and when; ``verified`` is False if no such device was timed.
    ``quick_seconds`` is how long a quick measurement took; None for a full one. A device kind without ``memory`` is a
    part of a host, whose memory is a budget (a virtual device). Its ranks share the ``cores`` of the host.
    """

    name: str
    rates: Mapping[str, Rate]
    provenance: str
    verified: bool = True
    memory: Memory | None = None
    links: Links | None = None
    cores: Figure | None = None
    quick_seconds: float | None = None

    def __post_init__(self) -> None:
        if unknown := self.rates.keys() - set(OP_KINDS):
            raise ValueError(f"unknown kinds of operation: {', '.join(sorted(unknown))}")

    def seconds(self, work: Work) -> float:
        """Seconds that a rank takes for ``work`` alone on its device, one operation after another."""
        return sum(rate.seconds(work.of(kind)) for kind, rate in self.rates.items())

    def sharing(self, num_ranks: int) -> float:
        """How many times as long each of ``num_ranks`` on one host takes as one that has a core for itself."""
        return sharing_factor(num_ranks, self.cores.value if self.cores is not None else None)

    def figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield all figures of memory, links and cores, each with a name that contains its unit."""
        if self.memory is not None:
            yield from ((f"{item.name}_bytes", getattr(self.memory, item.name)) for item in fields(Memory))
        if self.links is not None:
            for place in ("inside", "across"):
                link: Link = getattr(self.links, place)
                yield from ((f"{place}_{item.name}", getattr(link, item.name)) for item in fields(Link))
            yield "domain_size", self.links.domain_size
            yield "start_seconds", self.links.start_seconds
            for name, pace in self.links.paces.items():
                yield from ((f"{name}_{item.name}", getattr(pace, item.name)) for item in fields(Pace))
        if self.cores is not None:
            yield "cores", self.cores


def sharing_factor(num_ranks: int, cores: float | None) -> float:
    """How many times as long each of ``num_ranks`` takes on this many cores as with a core for itself.

    ``cores`` is None where each has its own device."""
    return max(1.0, num_ranks / cores) if cores is not None else 1.0


FLOP_COUNTER = DeviceKind("FLOPs", {kind: Rate(0.0, 1.0, 0.0, per_half_flop=1.0) for kind in OP_KINDS}, "", False)
"""A device whose seconds are FLOPs, to compare plans where no speed is known."""
