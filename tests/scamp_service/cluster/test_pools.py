"""Which devices a cluster offers, without a Ray: nodes are what Ray lists, placement groups do nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.cluster import pools
from scamp_service.cluster.gpus import Gpu, GpuLinks
from scamp_service.cluster.pools import Offers, Pools
from scamp_service.settings import Settings

SETTINGS = Settings(virtual_devices=2, device_mib=64)
NODE, OTHER = "4af3" * 8, "77bc" * 8
H100 = "NVIDIA H100 80GB HBM3"
FREE = Gpu(0, "GPU-0", H100, 81559, 559, 0, False, GpuLinks())
FULL = replace(FREE, other_processes_mib=80000)


def node(**resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, **resources}}


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Placement groups that were removed; each is the id of its node, and is there at once."""
    gone: list[Any] = []
    monkeypatch.setattr(pools, "_group", lambda node_id, devices: node_id)
    monkeypatch.setattr(pools, "_is_created", lambda group: True)
    monkeypatch.setattr(pools, "remove_placement_group", gone.append)
    return gone


@pytest.mark.usefixtures("removed")
def test_virtual_devices_are_those_of_the_node_and_no_more_than_the_settings_say() -> None:
    found = Pools(SETTINGS)
    found.follow({NODE: node(virtual_device=4.0), OTHER: node(virtual_device=1.0)})
    offered = [(device.id, device.capacity_mib) for device in found.cluster.devices]
    assert offered == [("4af34af3/0", 64), ("4af34af3/1", 64), ("77bc77bc/0", 64)]


def test_a_node_that_leaves_takes_its_devices_along(removed: list[Any]) -> None:
    found = Pools(SETTINGS)
    found.follow({NODE: node(virtual_device=1.0), OTHER: node(virtual_device=1.0)})
    left = found.follow({OTHER: node(virtual_device=1.0)})
    assert list(left) == removed == [NODE]
    assert [device.node for device in found.cluster.devices] == ["77bc77bc"]


@pytest.mark.usefixtures("removed")
def test_the_status_says_why_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Pools(SETTINGS)
    assert found.status == "starting"
    found.follow({NODE: node()})
    assert found.status.startswith("no devices: start nodes with GPUs, or with --resources=")
    monkeypatch.setattr(pools, "_is_created", lambda group: False)
    found.follow({NODE: node(virtual_device=1.0)})
    assert (found.status, found.cluster.devices) == ("starting", ())
    monkeypatch.setattr(pools, "_is_created", lambda group: True)
    found.follow({NODE: node(virtual_device=1.0)})
    assert found.status == "ready"


@pytest.mark.usefixtures("removed")
def test_a_rank_asks_for_a_share_of_its_devices_bundle() -> None:
    found = Pools(SETTINGS)
    found.follow({NODE: node(virtual_device=2.0)})
    options = found.options("4af34af3/1", 0.01)
    assert options["resources"] == {"virtual_device": 0.01}
    strategy = options["scheduling_strategy"]
    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (NODE, 1)


class Measured(Offers):
    """Nodes answer at once, with the GPU that has least free."""

    least: Gpu | None = FULL

    def _ask(self, node_id: str, num_gpus: int) -> None:
        self._asked[node_id] = time.monotonic()
        self._measured[node_id] = (H100, self.least)


def test_other_processes_are_reported_once_and_their_end_gives_the_devices_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offers, resources = Measured(Settings()), {"GPU": 2.0}
    assert [offers.devices(NODE, resources) for _ in range(4)] == [()] * 4
    assert len(caplog.messages) == 1 and "node 4af34af3 offers no devices" in caplog.messages[0]
    offers.least = FREE
    assert offers.devices(NODE, resources) == (), "not asked again within a minute"
    monkeypatch.setattr(pools, "MEASURE_AGAIN_SECONDS", 0.0)
    offers.devices(NODE, resources)
    devices = offers.devices(NODE, resources)
    assert [(device.index, device.capacity_mib) for device in devices] == [(0, 78952), (1, 78952)]
    assert devices[0].kind == H100 and offers.refused == {} and len(caplog.messages) == 1
