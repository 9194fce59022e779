"""The ranks that an executor knows, and where they are: on which device, in which gang, idle or starting."""

from __future__ import annotations

from scamp_service.cluster.driver.states.events import Node
from scamp_service.cluster.driver.states.rank_record import RankPhase, RankRecord


class RankTable(dict[str, RankRecord]):
    """Ranks by name. A rank is listed until its process is known to be gone."""

    def members(self, key: str) -> list[RankRecord]:
        """Ranks of a gang."""
        return [rank for rank in self.values() if rank.key == key]

    def silent(self) -> frozenset[str]:
        """Devices with a rank whose present activity nobody knows."""
        return frozenset(rank.device for rank in self.values() if not rank.is_known)

    def on(self, device: str) -> list[RankRecord]:
        """Ranks of the device, except those that end."""
        return [rank for rank in self.values() if rank.device == device and rank.phase is not RankPhase.ENDING]

    def idle(self, device: str) -> list[RankRecord]:
        """Ranks of the device that work for no attempt, except those that end."""
        return [rank for rank in self.on(device) if not rank.key]

    def leave_core(self, node: Node) -> bool:
        """Whether the node has a core for another start: each takes one, and half of those in use are left for
        training."""
        ranks = [rank for rank in self.values() if rank.device in node.devices]
        starting = sum(rank.phase is RankPhase.STARTING for rank in ranks)
        training = sum(bool(rank.key) and rank.phase is not RankPhase.STARTING for rank in ranks)
        return starting < max(1, node.num_cpus // 2, node.num_cpus - training)
