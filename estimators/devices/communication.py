"""Seconds that the ranks of a gang communicate, and how many of them a step hides behind its computation.

Collectives are modelled as rings in the alpha-beta model: a latency for each hop, and the bytes over the slowest link.
Left out are trees and in-network reduction (NVLink SHARP), which NCCL uses where they are faster, and contention with
other gangs.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, for
the formulas; ``src/graph/tuning.cc`` of NCCL, which uses the same ones for its rings, for hops inside and across nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from estimators.axes import MESH, Spread
from estimators.devices.kind import DeviceKind, Links
from estimators.work import Collectives, Work

_NEIGHBOURS = MESH["spatial"].name
"""The dimension whose ranks exchange messages with both neighbours. The first rank, which is traced, has only one."""


@dataclass(frozen=True, slots=True)
class Group:
    """``num_ranks`` that communicate; the numbers of neighbours differ by ``stride``. Ranks fill link domains one after
    another, the first rank of the group being the first of its domain."""

    num_ranks: int
    stride: int = 1

    def num_domains(self, links: Links) -> int:
        """Link domains that the ranks are in."""
        return min(self.num_ranks, (self.num_ranks - 1) * self.stride // int(links.domain_size.value) + 1)

    def num_beside(self, links: Links) -> int:
        """Groups that cross between the same domains at the same time, and share the links there."""
        return min(self.stride, int(links.domain_size.value))


def collective_seconds(kind: str, num_bytes: float, group: Group, links: Links) -> float:
    """Seconds of one collective of a whole tensor of ``num_bytes`` (see ``estimators.work.COLLECTIVES``).

    With g ranks there are g − 1 hops, and (g − 1)/g of the bytes move over each link. An all-reduce is a reduce-scatter
    and an all-gather, so it takes twice as many. A broadcast moves all bytes over each link, as does a message, which
    takes one hop: across domains if the group is in several.
    """
    if group.num_ranks == 1:
        return 0.0
    hops, moved_bytes = ring(kind, num_bytes, group.num_ranks)
    domains = group.num_domains(links)
    if (pace := links.paces.get(kind)) is not None and domains == 1:
        seconds = pace.start_seconds.value + hops * pace.hop_seconds.value
        return seconds + moved_bytes / pace.bytes_per_second.value
    hops_across = 1 if kind == "message" and domains > 1 else hops * (domains - 1) / (group.num_ranks - 1)
    inside, across = links.inside, links.across
    latency = (hops - hops_across) * inside.latency_seconds.value + hops_across * across.latency_seconds.value
    speed = inside.bytes_per_second.value
    if domains > 1:
        speed = min(speed, across.bytes_per_second.value / group.num_beside(links))
    return links.start_seconds.value + latency + moved_bytes / speed


def ring(kind: str, num_bytes: float, num_ranks: int) -> tuple[int, float]:
    """(hops, bytes over each link) of one collective of a whole tensor of ``num_bytes``."""
    hops, share = num_ranks - 1, (num_ranks - 1) / num_ranks
    if kind == "message":
        return 1, num_bytes
    if kind == "broadcast":
        return hops, num_bytes
    times = 2 if kind.endswith("all_reduce") else 1
    return times * hops, times * share * num_bytes


def message_seconds(num_bytes: float, sender: int, receiver: int, links: Links) -> float:
    """Seconds of one message between two ranks, which fill link domains one after another."""
    domain = int(links.domain_size.value)
    is_inside = sender // domain == receiver // domain
    if is_inside and "message" in links.paces:
        return collective_seconds("message", num_bytes, Group(2), links)
    link = links.inside if is_inside else links.across
    return links.start_seconds.value + link.latency_seconds.value + num_bytes / link.bytes_per_second.value


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step on one rank.

    ``communication_seconds`` are those of all collectives, hidden or not. ``exposed_seconds`` are those that are not
    hidden behind computation.
    """

    compute_seconds: float
    communication_seconds: float = 0.0
    exposed_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.compute_seconds + self.exposed_seconds

    @property
    def communication_share(self) -> float:
        """Share of the step (0 to 1) in which ranks only wait for collectives."""
        return self.exposed_seconds / self.seconds if self.seconds else 0.0


def step_time(kind: DeviceKind, spread: Spread, work: Work, num_micro_batches: int) -> StepTime | None:
    """Seconds of a step that does ``work`` on each rank of ``spread``; None for a gang if the links are not known.

    Ranks on the same cores slow each other, whether they compute or communicate. Ranks wait for tensor, sequence and
    spatial parallelism and for ZeRO-1. While a block computes, FSDP2 gathers the parameters of the next block and
    reduces the gradients of the one before (Zhao et al., "PyTorch FSDP", VLDB 2023). So its collectives are assumed to
    be hidden as far as there is computation to hide them, except for the first gather and the last reduction of each
    micro-batch, which are assumed to be of average size. Gathers and reductions share the links.

    For a stage of a pipeline these are the seconds that it is busy; ``placement.pipelining.simulator`` knows when it
    waits for others.
    """
    computing = kind.seconds(work)
    if spread.world_size == 1:
        return StepTime(computing)
    if kind.links is None:
        return None
    return gang_time(kind, kind.links, spread, computing, work.collectives, num_micro_batches)


def gang_time(
    kind: DeviceKind,
    links: Links,
    spread: Spread,
    computing_seconds: float,
    collectives: Sequence[Collectives],
    num_micro_batches: int,
) -> StepTime:
    """Seconds of a rank in its gang that alone on its device would compute for ``computing_seconds``."""
    slower = kind.sharing(spread.world_size)
    compute_seconds = slower * computing_seconds
    num_ends = 0 if spread.averages_gradients else num_micro_batches  # replicas wait for the last bucket anyway
    waiting = hidden = at_the_ends = 0.0
    for collective in collectives:
        average = slower * _average_seconds(collective, spread, links)
        if collective.overlaps and links.overlap:
            hidden += collective.num * average
            at_the_ends += min(collective.num, num_ends) * average
        else:
            waiting += collective.num * average
    exposed = waiting + at_the_ends + max(0.0, hidden - at_the_ends - compute_seconds)
    return StepTime(compute_seconds, waiting + hidden, exposed)


def _average_seconds(collective: Collectives, spread: Spread, links: Links) -> float:
    """Seconds of one of these collectives, if all are of the same size."""
    if not collective.num:
        return 0.0
    seconds = collective_seconds(
        collective.kind, collective.num_bytes / collective.num, group_of(spread, collective.dimension), links
    )
    both_sides = collective.kind == "message" and collective.dimension == _NEIGHBOURS and spread.spatial > 2
    return 2 * seconds if both_sides else seconds


def group_of(spread: Spread, dimension: str) -> Group:
    """The ranks along a dimension of the mesh of ``spread``, by its name; "" means all ranks."""
    if not dimension:
        return Group(spread.world_size)
    axis = next(axis for axis, row in MESH.items() if row.name == dimension)
    return Group(getattr(spread, axis), spread.stride(axis))
