"""The controller process without Ray: its reigns are played, or have an executor that does nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placement.model import Cluster, Device
from scamp_service.control.executor import Demand, Unsized
from scamp_service.control.leadership import Leadership
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.model import Lease
from scamp_service.processes import controller_process, cycles
from scamp_service.processes.controller_process import _Reign, controlling
from scamp_service.processes.sweeper import Remover
from scamp_service.settings import Settings
from scamp_service.sizing.sizer import ProcessSizer
from scamp_service.store.store import Store
from tests.sizing import MemoryBlobs

CLUSTER = Cluster((Device("n/0", "n", 0, "virtual", 96),))


class Nothing:
    """Accepts any arguments, and does nothing."""

    def __init__(self, *given: Any, **options: Any) -> None: ...

    def close(self) -> None: ...


class Failing:
    """A reign whose first cycles fail, and which notes whether its ranks were ended."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures, self.num_cycles, self.ended = num_failures, 0, False

    def tick(self) -> None:
        self.num_cycles += 1
        if self.num_cycles <= self.num_failures:
            raise OSError("PostgreSQL restarts in this second")

    def close(self) -> None: ...

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store("sqlite://")
    yield store
    store.close()


def test_an_error_in_its_first_cycle_ends_no_rank(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reign = Failing(num_failures=1)
    monkeypatch.setattr(controller_process, "ProcessSizer", Nothing)
    monkeypatch.setattr(controller_process, "_Reign", lambda *given: reign)
    with controlling(Settings(data_dir=tmp_path, ray_address="head:6379"), store) as tick:
        while reign.num_cycles < 2:
            tick()
            assert not reign.ended
    assert reign.ended, "they end with the process"


def test_the_lease_is_renewed_while_cycles_pause(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reign = Failing(num_failures=1)
    monkeypatch.setattr(controller_process, "ProcessSizer", Nothing)
    monkeypatch.setattr(controller_process, "_Reign", lambda *given: reign)
    monkeypatch.setattr(controller_process, "STUCK_SECONDS", 0.1)
    monkeypatch.setattr(cycles, "LONGEST_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(cycles, "FIRST_PAUSE_SECONDS", 60.0)
    settings = Settings(data_dir=tmp_path, ray_address="head:6379", lease_seconds=0.1)
    with controlling(settings, store) as tick:
        deadline = time.monotonic() + 30
        while (lease := store.lease(CONTROLLER_LEASE)) is None or lease.renewals < 20:
            assert time.monotonic() < deadline
            tick()
            time.sleep(0.01)
    assert reign.num_cycles == 1


def test_a_reign_begins_without_what_an_earlier_one_has_asked_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_process, "RayExecutor", Nothing)
    sizer = ProcessSizer(MemoryBlobs(), tmp_path, workers=0)
    monkeypatch.setattr(sizer, "_search", lambda demand, cluster: iter([()]))
    sizer.request(1, DEMAND, CLUSTER)
    sizer._results[2] = Unsized("decided for devices of long ago", infeasible=True)
    assert set(sizer._open) == {1}
    leadership = Leadership(store, 10.0)
    lease = leadership.keep()
    assert isinstance(lease, Lease)
    _Reign(Settings(data_dir=tmp_path), store, sizer, Remover(), leadership, lease)
    assert sizer.results() == {} and not sizer._open
    sizer.request(2, DEMAND, CLUSTER)
    assert set(sizer._open) == {2}
    sizer.close()


DEMAND = Demand(candidate=None)  # type: ignore[arg-type]
