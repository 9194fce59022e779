"""The ranks that an executor knows, and where they are: on which device, in which gang, idle or starting."""

from __future__ import annotations

from scamp_service.cluster.driver.states.events import Node
from scamp_service.cluster.driver.states.rank_record import RankPhase, RankRecord

BETWEEN_SECONDS = 10.0
"""For which a rank that has ended an attempt still counts as training: the trials of a study follow each other."""


class RankTable(dict[str, RankRecord]):
    """Ranks by name. A rank is listed until its process is known to be gone."""

    def members(self, key: str) -> list[RankRecord]:
        """Ranks of a gang."""
        return [rank for rank in self.values() if key in rank.keys]

    def silent(self) -> frozenset[str]:
        """Devices with a rank whose present activity nobody knows."""
        return frozenset(rank.device for rank in self.values() if not rank.is_known)

    def on(self, device: str) -> list[RankRecord]:
        """Ranks of the device, except those that end."""
        return [rank for rank in self.values() if rank.device == device and rank.phase is not RankPhase.ENDING]

    def idle(self, device: str) -> list[RankRecord]:
        """Ranks of the device that work for no attempt, except those that end."""
        return [rank for rank in self.on(device) if not rank.keys]

    def ready(self) -> dict[str, frozenset[str | None]]:
        """Archives of user code that the idle ranks of each device have run, of those that have started."""
        archives: dict[str, set[str | None]] = {}
        for rank in self.values():
            if rank.phase is RankPhase.READY and not rank.keys:
                archives.setdefault(rank.device, set()).add(rank.code)
        return {device: frozenset(of_device) for device, of_device in archives.items()}

    def leave_core(self, node: Node) -> bool:
        """Whether the node has a core for another start: each takes one, and half of those in use are left for
        training."""
        ranks = [rank for rank in self.values() if rank.device in node.devices]
        starting = sum(rank.phase is RankPhase.STARTING for rank in ranks)
        training = sum(bool(rank.keys) and rank.phase is not RankPhase.STARTING for rank in ranks)
        return starting < max(1, node.num_cpus // 2, node.num_cpus - training)

    def leave_half(self, node: Node, now: float) -> bool:
        """Whether ranks that train have less than half of the node's cores. One that has just ended an attempt counts,
        as the next attempt is near."""
        here = [rank for rank in self.values() if rank.device in node.devices]
        just_ended = sum(not rank.keys and rank.mib > 0 and now - rank.since < BETWEEN_SECONDS for rank in here)
        return 2 * (sum(bool(rank.keys) for rank in here) + just_ended) < node.num_cpus

    def roomiest(self, node: Node) -> list[str]:
        """Devices of the node where another rank fits that needs as little as any that trains, the most free first."""
        least = min((rank.mib for rank in self.values() if rank.keys), default=0)
        free = dict(node.devices)
        for rank in self.values():
            if rank.keys and rank.device in free:
                free[rank.device] -= rank.mib
        return sorted((device for device in free if free[device] >= least), key=lambda device: -free[device])
