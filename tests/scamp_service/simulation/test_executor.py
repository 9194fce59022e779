"""A simulated gang is as slow as its slowest rank, by the share of the batch that each has."""

from __future__ import annotations

from dataclasses import replace

from estimators.model import Plan
from placement.model import Cluster, Device
from scamp_service.simulation.executor import slow_down_of_slowest
from tests.ranks import ORDER

TWO = Cluster((Device("fast", "n0", 0, "V100", 100), Device("slow", "n1", 0, "T4", 100)))
SLOW = {"V100": 1.0, "T4": 2.0}


def test_a_gang_is_as_slow_as_its_slowest_rank_by_kind_and_share() -> None:
    def seconds(plan: Plan, *devices: str) -> float:
        return slow_down_of_slowest(TWO, replace(ORDER, plan=plan, devices=devices), SLOW)

    shares = Plan(8, dp_shard=2, shares=(8, 4))
    assert seconds(shares, "fast", "slow") == 1.0
    assert seconds(shares, "slow", "fast") == 2.0
    assert seconds(Plan(9, dp_shard=2, shares=(9, 6)), "fast", "slow") == 12 / 9
    assert seconds(Plan(6, dp_shard=2), "fast", "slow") == 2.0
    assert seconds(Plan(6), "fast") == 1.0
