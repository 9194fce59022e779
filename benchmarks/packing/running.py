"""Runs a study under a policy in virtual time: every gang alone on its devices, for the seconds of its shape."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placement.model import Cluster, Placement, Queued
from placement.packing.ledger import Ledger
from placement.packing.policy import Policy

Apart = Mapping[tuple[str, int], tuple[float, float]]
"""(gang, choice) → seconds and communication share where the ranks are on more nodes than they need."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a study. Seconds are virtual, but for those of the ``decisions``."""

    makespan: float = 0.0
    device_seconds: float = 0.0
    communication_seconds: float = 0.0
    num_apart: int = 0
    decisions: list[float] = field(default_factory=list)
    log: list[tuple[float, str, tuple[str, ...]]] = field(default_factory=list)

    @property
    def communication_share(self) -> float:
        """Share of the GPU time in which ranks wait for communication."""
        return self.communication_seconds / self.device_seconds


def run(queue: Sequence[Queued], cluster: Cluster, policy: Policy, apart: Apart | None = None) -> Outcome:
    """Run all trials of the queue, which wait from the beginning."""
    ledger, outcome = Ledger(cluster, 1), Outcome()
    node_of = {device.id: device.node for device in cluster.devices}
    per_node = max(sum(device.node == node for device in cluster.devices) for node in set(node_of.values()))
    ends: list[tuple[float, str]] = []
    waiting, now = list(queue), 0.0
    by_id = {queued.id: queued for queued in queue}
    while True:
        began = time.perf_counter()
        decision = policy(waiting, ledger, {gang: end - now for end, gang in ends})
        outcome.decisions.append(time.perf_counter() - began)
        for placement in decision.placements:
            ledger.place(placement.gang, placement.devices)
            seconds, share = _cost(by_id[placement.gang.id], placement, node_of, per_node, apart or {}, outcome)
            outcome.device_seconds += seconds * placement.gang.num_ranks
            outcome.communication_seconds += seconds * share * placement.gang.num_ranks
            outcome.log.append((now, placement.gang.id, placement.devices))
            heapq.heappush(ends, (now + seconds, placement.gang.id))
        waiting = [queued for queued in waiting if queued.id in decision.waits]
        if not ends:
            assert not waiting, f"nothing runs, and {waiting[0]} waits: {decision.waits[waiting[0].id]}"
            return outcome
        now = outcome.makespan = ends[0][0]
        while ends and ends[0][0] <= now:
            ledger.release(heapq.heappop(ends)[1])


def _cost(
    queued: Queued, placement: Placement, node_of: Mapping[str, str], per_node: int, apart: Apart, outcome: Outcome
) -> tuple[float, float]:
    shape = queued.shapes[placement.choice]
    assert shape.seconds is not None
    num_nodes = len({node_of[device] for device in placement.devices})
    if num_nodes > -(-shape.num_ranks // per_node):
        outcome.num_apart += 1
        return apart.get((queued.id, placement.choice), (shape.seconds, shape.communication_share or 0.0))
    return shape.seconds, shape.communication_share or 0.0
