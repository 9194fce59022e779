"""Which devices a cluster offers, without a Ray: nodes are what Ray lists, placement groups do nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import ray

from scamp_service.cluster.devices import bundles, pools
from scamp_service.cluster.devices.gpus import Gpu, GpuLinks
from scamp_service.cluster.devices.pool_table import ListedPool
from scamp_service.cluster.devices.pools import Pools
from scamp_service.settings import Settings

SETTINGS = Settings(virtual_devices=2, device_mib=64)
NODE, OTHER = "4af3" * 8, "77bc" * 8
H100 = "NVIDIA H100 80GB HBM3"
FREE = Gpu(0, "GPU-0", H100, 81559, 559, 0, False, GpuLinks())
FULL = replace(FREE, other_processes_mib=80000)


def node(**resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 4.0, **resources}}


OURS, THEIRS = "0a0a0a0a", "0b0b0b0b"


class Table(list[ListedPool]):
    """Ray's table of pools, in which ours appear at once. Groups are ids of their nodes."""

    def add(self, identity: str, node_id: str, unit: str = "", number: int = 0, *, is_created: bool = True) -> str:
        self.append(ListedPool(identity, node_id[:8], is_created, node_id))  # type: ignore[arg-type]
        return node_id

    def remove(self, group: Any) -> None:
        self[:] = [pool for pool in self if pool.group != group or pool.identity != OURS]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(pools, "list_pools", lambda: list(table))
    monkeypatch.setattr(pools, "_group", table.add)
    return table


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch, table: Table) -> list[Any]:
    """Placement groups that were removed."""
    gone: list[Any] = []

    def remove(group: Any) -> None:
        gone.append(group)
        table.remove(group)

    monkeypatch.setattr(pools, "remove_placement_group", remove)
    return gone


@pytest.mark.usefixtures("removed")
def test_virtual_devices_are_those_of_the_node_and_no_more_than_the_settings_say() -> None:
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow({NODE: node(virtual_device=4.0), OTHER: node(virtual_device=1.0)})
    offered = [(device.id, device.capacity_mib) for device in node_pools.cluster.devices]
    assert offered == [("4af34af3/0", 64), ("4af34af3/1", 64), ("77bc77bc/0", 64)]


@pytest.mark.usefixtures("removed")
def test_virtual_devices_may_have_unlike_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCAMP_DEVICE_MIBS", "128,48")
    node_pools = Pools(Settings(virtual_devices=3, device_mib=64), OURS)
    node_pools.follow({NODE: node(virtual_device=4.0)})
    assert [device.capacity_mib for device in node_pools.cluster.devices] == [128, 48, 64]


def test_a_node_that_leaves_takes_its_devices_along(removed: list[Any]) -> None:
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow({NODE: node(virtual_device=1.0), OTHER: node(virtual_device=1.0)})
    left = node_pools.follow({OTHER: node(virtual_device=1.0)})
    assert list(left) == removed == [NODE]
    assert [device.node for device in node_pools.cluster.devices] == ["77bc77bc"]


def test_a_node_that_leaves_keeps_its_pool_until_it_is_given_back_and_gets_none_then(removed: list[Any]) -> None:
    node_pools, nodes = Pools(SETTINGS, OURS), {NODE: node(virtual_device=1.0), OTHER: node(virtual_device=1.0)}
    node_pools.follow(nodes)
    node_pools.leaving = {NODE: "Ray drains node 4af34af3"}
    assert node_pools.follow(nodes) == {} and len(node_pools.cluster.devices) == 2
    assert node_pools.leaving_devices == {"4af34af3/0": "its node is leaving: Ray drains node 4af34af3"}
    for gone in ([NODE], []):
        assert list(node_pools.follow(nodes, given_back=[NODE])) == gone and removed == [NODE]
        assert [device.node for device in node_pools.cluster.devices] == ["77bc77bc"]
        assert node_pools.leaving_devices == {} and node_pools.detail == "Ray drains node 4af34af3"
    del nodes[OTHER]
    node_pools.follow(nodes, given_back=[NODE])
    assert node_pools.detail.startswith("start nodes with GPUs") and node_pools.detail.endswith("drains node 4af34af3")


@pytest.mark.usefixtures("removed")
def test_the_status_says_why_there_is_no_device(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    node_pools = Pools(SETTINGS, OURS)
    assert (node_pools.status, node_pools.detail) == ("starting", "")
    node_pools.follow({NODE: node()})
    assert node_pools.status == "no devices" and node_pools.detail.startswith(
        "start nodes with GPUs, or with --resources="
    )
    monkeypatch.setattr(pools, "_group", lambda *args: table.add(*args, is_created=False))
    node_pools.follow({NODE: node(virtual_device=1.0)})
    assert (node_pools.status, node_pools.cluster.devices) == ("starting", ())
    table.add(OURS, NODE)
    node_pools.follow({NODE: node(virtual_device=1.0)})
    assert (node_pools.status, node_pools.detail) == ("ready", "")


def test_a_node_belongs_to_the_one_scamp_that_holds_its_devices_and_then_to_the_next(
    removed: list[Any], table: Table
) -> None:
    nodes = {NODE: node(virtual_device=1.0)}
    table.add(THEIRS, NODE)
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow(nodes)
    assert not node_pools.cluster.devices and node_pools.foreign == {THEIRS}
    assert node_pools.status == "no devices"
    assert (
        node_pools.detail == f"node 4af34af3 belongs to database {THEIRS}: wait until that ScaMP has ended, or end it"
    )
    node_pools.owners[THEIRS] = "the database of somebody on host a"
    assert node_pools.detail.startswith("node 4af34af3 belongs to the database of somebody on host a: wait")
    table.clear()
    node_pools.follow(nodes)
    assert node_pools.status == "ready" and not node_pools.foreign
    table.add(THEIRS, OTHER)
    node_pools.follow(nodes | {OTHER: node(virtual_device=1.0)})
    assert [device.node for device in node_pools.cluster.devices] == ["4af34af3"]
    assert removed == []


def test_of_two_that_ask_at_once_the_one_that_waits_withdraws(
    removed: list[Any], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow({})
    monkeypatch.setattr(pools, "_group", lambda *args: table.add(*args, is_created=False))
    node_pools.follow({NODE: node(virtual_device=1.0)})
    table.add(THEIRS, NODE)
    node_pools.follow({NODE: node(virtual_device=1.0)})
    assert removed == [NODE]
    assert node_pools.foreign == {THEIRS}


@pytest.mark.usefixtures("removed")
def test_a_pool_that_somebody_removes_is_made_again(table: Table) -> None:
    nodes = {NODE: node(virtual_device=1.0)}
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow(nodes)
    table.clear()
    node_pools.follow(nodes)
    assert not node_pools.cluster.devices
    node_pools.follow(nodes)
    assert len(node_pools.cluster.devices) == len(table) == 1


@pytest.mark.usefixtures("removed")
def test_a_rank_asks_for_a_share_of_its_devices_bundle() -> None:
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow({NODE: node(virtual_device=2.0)})
    options = node_pools.options("4af34af3/1", 0.01)
    assert options["resources"] == {"virtual_device": 0.01}
    strategy = options["scheduling_strategy"]
    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (NODE, 1)


class Measured:
    """GPUs as tasks inside their bundles report them, at once and every time that a pool is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *gpus: Gpu | str) -> None:
        self.gpus = list(gpus)
        monkeypatch.setattr(bundles, "ask", lambda group, number, rehearsal: self.gpus[number])
        monkeypatch.setattr(bundles, "has_arrived", lambda answer: True)
        monkeypatch.setattr(ray, "get", lambda answer: answer)
        monkeypatch.setattr(bundles, "MEASURE_AGAIN_SECONDS", 0.0)

    def look(self, node_pools: Pools) -> list[tuple[int, str, int]]:
        """Index, kind and MiB of each device, as they are now."""
        for _ in range(2):  # a look takes an answer and asks again
            node_pools.follow({NODE: node(GPU=float(len(self.gpus)))})
        return [(device.index, device.kind, device.capacity_mib) for device in node_pools.cluster.devices]


@pytest.mark.usefixtures("removed", "table")
def test_each_gpu_of_a_node_offers_its_own_memory_under_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    t4 = replace(FREE, index=0, name="Tesla T4", total_mib=15360, reserved_mib=424)
    measured = Measured(monkeypatch, replace(FREE, index=2), replace(FULL, index=1), t4)
    node_pools = Pools(SETTINGS, OURS)
    assert measured.look(node_pools) == [(0, "T4", 12888), (2, "H100", 78952)]
    assert node_pools.status == "ready"
    assert "hold 80000 MiB" in node_pools.detail and "GPU 1" in node_pools.detail
    first = node_pools.cluster.devices[0]
    assert first.id == "4af34af3/2", "it is named by its bundle, as Ray chooses which GPU a bundle gets"
    options = node_pools.options(first.id, 0.01)
    assert options["num_gpus"] == 0.01
    assert options["scheduling_strategy"].placement_group_bundle_index == 2


@pytest.mark.usefixtures("removed", "table")
def test_a_node_is_starting_until_its_gpus_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    Measured(monkeypatch, "NVML shows none")
    node_pools = Pools(SETTINGS, OURS)
    node_pools.follow({NODE: node(GPU=1.0)})
    assert (node_pools.status, node_pools.detail) == ("starting", "")
    node_pools.follow({NODE: node(GPU=1.0)})
    assert (node_pools.status, node_pools.detail) == ("no devices", "node 4af34af3: NVML shows none")


@pytest.mark.usefixtures("removed", "table")
def test_other_processes_that_come_and_go_change_what_a_gpu_offers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node_pools = Pools(SETTINGS, OURS)
    measured = Measured(monkeypatch, FREE)
    for other_mib, offered in [(0, [78952]), (20480, [58472]), (80000, []), (80500, []), (0, [78952])]:
        measured.gpus[0] = replace(FREE, other_processes_mib=other_mib)
        assert [mib for _, _, mib in measured.look(node_pools)] == offered
    assert len(caplog.messages) == 1 and "hold 80000 MiB" in caplog.messages[0]


@pytest.mark.usefixtures("removed", "table")
def test_a_gpu_that_is_lost_is_offered_again_once_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    node_pools = Pools(SETTINGS, OURS)
    measured = Measured(monkeypatch, FREE, replace(FREE, index=1))
    lost = replace(FREE, index=1, name="unknown", total_mib=0, reserved_mib=None, knows_ranks=False)
    for second, offering in [(measured.gpus[1], [0, 1]), (lost, [0]), ("NVML shows none", [0]), (FREE, [0, 0])]:
        measured.gpus[1] = second
        assert [index for index, _, _ in measured.look(node_pools)] == offering


@pytest.mark.usefixtures("removed", "table")
def test_ranks_that_cannot_be_told_from_other_processes_do_not_reduce_what_a_gpu_offers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_container = replace(FREE, knows_ranks=False)
    node_pools = Pools(SETTINGS, OURS)
    measured = Measured(monkeypatch, replace(FULL, knows_ranks=False))
    for other_mib, offered in [(80000, []), (20480, [58472]), (60000, [58472])]:
        measured.gpus[0] = replace(in_container, other_processes_mib=other_mib)
        assert [mib for _, _, mib in measured.look(node_pools)] == offered
