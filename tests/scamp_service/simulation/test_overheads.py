"""The service's own work in virtual time takes cores of virtual devices, and no GPU."""

from __future__ import annotations

import math

import pytest

from placement.model import VIRTUAL_KIND, Cluster, Device
from placement.simulation.progress import Progress, domains_of
from scamp_service.simulation.overheads import VirtualRanks, VirtualTraces
from scamp_service.sizing.sizer import WORKERS


def cluster(kind: str) -> Cluster:
    return Cluster(tuple(Device(f"a/{n}", "a", n, kind, 100) for n in range(2)))


def test_traces_take_turns_and_share_the_cores_with_trainings_on_virtual_devices() -> None:
    progress = Progress(domains_of(cluster(VIRTUAL_KIND), cores=2.0))
    progress.start("gang", ["a/0", "a/1"], 10.0)
    traces = VirtualTraces(progress, cluster(VIRTUAL_KIND), 3.0)
    for trial in range(3):
        traces.begin(trial)
        traces.begin(trial)
    assert traces.next_end == pytest.approx(3.0 * 2), "four ranks on two cores"
    progress.now = 6.0
    traces.advance(6.0)
    assert [trial in traces for trial in range(3)] == [False, False, True]
    assert traces.next_end == pytest.approx(6.0 + 3.0 * 1.5)
    traces.forget([2])
    assert 2 not in traces and traces.next_end == math.inf
    assert progress.end_of("gang") == pytest.approx(6.0 + 7.0)


def test_traces_beside_gpus_slow_no_gang() -> None:
    progress = Progress(domains_of(cluster("T4")))
    progress.start("gang", ["a/0"], 10.0)
    traces = VirtualTraces(progress, cluster("T4"), 3.0)
    for trial in range(WORKERS + 1):
        traces.begin(trial)
    assert traces.next_end == 3.0
    assert progress.end_of("gang") == 10.0
    assert VirtualRanks(cluster("T4"), 60.0).take(["a/0", "a/1"], 0.0) == 0


def test_without_seconds_nothing_is_traced_in_virtual_time() -> None:
    traces = VirtualTraces(Progress(domains_of(cluster("T4"))), cluster("T4"), 0.0)
    traces.begin(1)
    assert 1 not in traces and traces.next_end == math.inf


def test_a_rank_starts_where_no_idle_one_is_left() -> None:
    ranks = VirtualRanks(cluster(VIRTUAL_KIND), 60.0)
    assert ranks.take(["a/0", "a/1"], 5.0) == 0 and ranks.take(["a/0", "a/1"], 6.0) == 2
    ranks.give_back(["a/0"], 7.0)
    ranks.give_back(["a/0"], 8.0)
    assert ranks.take(["a/0", "a/1"], 10.0) == 1
    assert ranks.take(["a/0"], 100.0) == 1, "it was idle for too long"
