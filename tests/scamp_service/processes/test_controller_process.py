"""The controller process without Ray: its leaders are played, or have an executor that does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scamp_service.errors import Unavailable
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.processes import controller_process, cycles, keeper
from scamp_service.processes.controller_process import controlling, run_study
from scamp_service.processes.news import News
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from tests.services.serving import SPEC
from tests.waiting import until


class Nothing:
    """Accepts any arguments, and does nothing."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def close(self) -> None: ...


class Failing:
    """A leader whose first cycles fail, and which notes whether its ranks were ended."""

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
    leader = Failing(num_failures=1)
    monkeypatch.setattr(controller_process, "ProcessSizer", Nothing)
    monkeypatch.setattr(controller_process, "_Leader", lambda *args: leader)
    with controlling(Settings(data_dir=tmp_path, ray_address="head:6379"), store, news=News()) as tick:
        while leader.num_cycles < 2:
            tick()
            assert not leader.ended
    assert leader.ended, "they end with the process"


def test_the_lease_is_renewed_while_cycles_pause(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Failing(num_failures=1)
    monkeypatch.setattr(controller_process, "ProcessSizer", Nothing)
    monkeypatch.setattr(controller_process, "_Leader", lambda *args: leader)
    monkeypatch.setattr(keeper, "STUCK_SECONDS", 0.1)
    monkeypatch.setattr(cycles, "LONGEST_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(cycles, "FIRST_PAUSE_SECONDS", 60.0)
    settings = Settings(data_dir=tmp_path, ray_address="head:6379", lease_seconds=0.1)
    with controlling(settings, store, news=News()) as tick:

        def is_renewed() -> bool:
            tick()
            return (lease := store.leases.get(CONTROLLER_LEASE)) is not None and lease.renewals >= 20

        until(is_renewed, "twenty renewals")
    assert leader.num_cycles == 1


def test_a_ray_where_nobody_listens_is_refused_before_a_study_is_made(tmp_path: Path) -> None:
    spec = StudySpec.model_validate(SPEC)
    for address in ("nonsense.invalid:1", "127.0.0.1:1"):
        with pytest.raises(Unavailable, match=rf"the Ray cluster at {address} cannot be reached .*RAY_ADDRESS"):
            run_study(Settings(data_dir=tmp_path, ray_address=address), spec, None, lambda store, study: None)
    assert not list(tmp_path.iterdir())
