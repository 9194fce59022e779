from __future__ import annotations

import pytest

from placement.model import Cluster, Device, Gang
from placement.packing.blocked import Blocked, blocked_by
from placement.packing.ledger import Ledger

CLUSTER = Cluster(tuple(Device(f"n/{index}", "n", index, "virtual", 100) for index in range(3)))


@pytest.mark.parametrize(
    ("held", "wanted", "blocked"),
    [
        ({0: [60], 1: [60], 2: [60]}, (1, 50), Blocked.FRAGMENTATION),
        ({0: [60], 1: [60], 2: [60]}, (2, 70), Blocked.MEMORY),
        ({0: [10, 10], 1: [10, 10], 2: [10, 10]}, (1, 50), Blocked.GANG_LIMIT),
        ({}, (4, 10), Blocked.DEVICES),
        ({}, (1, 101), Blocked.DEVICES),
        ({0: [60]}, (1, 50), Blocked.RESERVATION),
    ],
)
def test_the_resource_that_a_gang_lacks_is_named(
    held: dict[int, list[int]], wanted: tuple[int, int], blocked: Blocked
) -> None:
    ledger = Ledger(CLUSTER, max_gangs_per_device=2)
    for device, sizes in held.items():
        for number, mib in enumerate(sizes):
            ledger.place(Gang(f"{device}-{number}", 1, mib), [f"n/{device}"])
    assert blocked_by(Gang("new", *wanted), ledger) is blocked
