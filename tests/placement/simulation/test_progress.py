"""Gangs that share a device or a host slow each other as far as their domains say."""

from __future__ import annotations

import math

import pytest

from placement.model import Cluster, Device
from placement.simulation.progress import Domains, Progress, domains_of

GPUS = Cluster(tuple(Device(f"a/{index}", "a", index, "V100-16", 100) for index in range(2)))


def test_gangs_on_one_gpu_take_turns_and_a_gang_is_as_slow_as_its_slowest_rank() -> None:
    running = Progress(domains_of(GPUS))
    running.start("alone", ["a/0"], 10.0)
    assert running.next_end == 10.0
    running.now = 4.0
    running.start("wide", ["a/0", "a/1"], 3.0)
    assert running.left("alone") == 6.0 and running.next_end == 4.0 + 3.0 * 2
    running.now = 10.0
    assert running.ended() == ["wide"] and running.left("alone") == 3.0
    running.stop("wide")
    assert running.next_end == 13.0
    running.now = 13.0
    assert running.ended() == ["alone"]
    assert running.stop("alone") == 0.0
    assert running.next_end == math.inf


def test_virtual_devices_of_a_host_share_its_cores() -> None:
    virtual = Cluster(tuple(Device(f"h/{index}", "h", index, "virtual", 96) for index in range(4)))
    running = Progress(domains_of(virtual, cores=2.0))
    for index in range(4):
        running.start(f"g{index}", [f"h/{index}"], 10.0)
    assert running.next_end == 20.0  # four ranks on two cores
    running.now = 10.0
    assert running.stop("g3") == 5.0 and running.stop("g2") == 5.0
    assert running.next_end == 15.0


def test_a_domain_has_a_capacity() -> None:
    with pytest.raises(ValueError, match="capacity above 0"):
        Domains({}, {"a": 0.0})


def test_a_rank_with_a_smaller_share_loads_its_device_less() -> None:
    progress = Progress(Domains({}, {"slow": 0.5}))
    progress.start("shares", ["fast", "slow"], 10.0, (6, 3))
    progress.start("equal", ["other fast", "other slow"], 10.0)
    assert progress.end_of("shares") == 10.0
    progress.start("beside", ["slow"], 10.0)
    assert progress.end_of("shares") == 30.0, "one and a half ranks on half a device"
    progress.stop("beside")
    assert progress.end_of("shares") == 10.0


def test_gangs_that_share_a_gpu_are_together_as_fast_as_the_gain_says() -> None:
    running = Progress(domains_of(GPUS, sharing_gain=1.6))
    device = GPUS.devices[0].id
    running.start("one", [device], 10.0)
    assert running.end_of("one") == 10.0
    running.start("two", [device], 10.0)
    assert running.end_of("one") == running.end_of("two") == pytest.approx(10.0 * 2 / 1.6)
    with pytest.raises(ValueError, match="cannot be slower"):
        domains_of(GPUS, sharing_gain=0.5)
