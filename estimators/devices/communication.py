"""Seconds that the ranks of a gang communicate, and how many of them a sharded step hides behind its computation.

Collectives are modelled as rings in the alpha-beta model: a latency for each hop, and the bytes over the slowest link.
Left out are trees and in-network reduction (NVLink SHARP), which NCCL uses where they are faster, and contention.

Sources: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005, for
the formulas; ``src/graph/tuning.cc`` of NCCL, which uses the same ones for its rings, for hops inside and across nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from estimators.devices.kind import DeviceKind, Links
from estimators.work import Work


def ring_seconds(num_bytes: float, num_ranks: int, links: Links) -> float:
    """Seconds of one all-gather or reduce-scatter over ``num_ranks``, which fill link domains one after another.

    ``num_bytes`` is the size of the whole tensor: what an all-gather gives each rank, or what each rank contributes to
    a reduce-scatter. With g ranks there are g − 1 hops, and (g − 1)/g of the bytes move over each link.
    """
    if num_ranks == 1:
        return 0.0
    hops, hops_across = num_ranks - 1, -(-num_ranks // int(links.domain_size.value)) - 1
    inside, across = links.inside, links.across
    latency = (hops - hops_across) * inside.latency_seconds.value + hops_across * across.latency_seconds.value
    speed = inside.bytes_per_second.value
    if hops_across:
        speed = min(speed, across.bytes_per_second.value)
    return links.start_seconds.value + latency + hops / num_ranks * num_bytes / speed


def message_seconds(num_bytes: float, sender: int, receiver: int, links: Links) -> float:
    """Seconds of one message between two ranks, which fill link domains one after another."""
    domain = int(links.domain_size.value)
    link = links.inside if sender // domain == receiver // domain else links.across
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


def step_time(kind: DeviceKind, work: Work, num_ranks: int, num_micro_batches: int) -> StepTime | None:
    """Seconds of a step that does ``work`` on each of ``num_ranks`` (FSDP); None for a gang if the links are not known.

    While a block computes, FSDP2 gathers the parameters of the next block and reduces the gradients of the one before
    (Zhao et al., "PyTorch FSDP", VLDB 2023). So collectives are assumed to be hidden as far as there is computation to
    hide them, except for the first gather and the last reduction of each micro-batch. Those are assumed to be of
    average size. Gathers and reductions share the links.
    """
    compute_seconds = kind.seconds(work)
    if num_ranks == 1:
        return StepTime(compute_seconds)
    if kind.links is None:
        return None
    gather_seconds, gather = _all_of(work, "gather", num_ranks, kind.links)
    reduce_seconds, reduce = _all_of(work, "reduce", num_ranks, kind.links)
    total = gather_seconds + reduce_seconds
    at_the_ends = min(total, num_micro_batches * (gather + reduce))
    exposed = at_the_ends + max(0.0, total - at_the_ends - compute_seconds)
    return StepTime(compute_seconds, total, exposed)


def _all_of(work: Work, kind: Literal["gather", "reduce"], num_ranks: int, links: Links) -> tuple[float, float]:
    """Seconds of all collectives of one kind, and of an average one.

    A trace counts the bytes of all tensors that an operation takes and returns. For a tensor of N bytes on g ranks, an
    all-gather takes a shard, and has the whole as argument and as result: (2 + 1/g) N. A reduce-scatter takes the
    whole, and has the shard as argument and as result: (1 + 2/g) N.
    """
    num, _, num_bytes, *_ = work.of(kind)
    if not num:
        return 0.0, 0.0
    counted = 2 + 1 / num_ranks if kind == "gather" else 1 + 2 / num_ranks
    average = ring_seconds(num_bytes / counted / num, num_ranks, links)
    return num * average, average
