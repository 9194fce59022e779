"""Deletion and ageing remove some rows and leave others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from scamp_service.lifecycle import StudyState
from scamp_service.model import LogLine, Report
from scamp_service.processes import sweeper
from scamp_service.processes.sweeper import DAY_SECONDS, LOOK_SECONDS, REST_SECONDS, Remover, Sweeper
from scamp_service.remote.copies import Copies
from scamp_service.remote.objects import Objects
from scamp_service.settings import Settings
from scamp_service.store import schema
from scamp_service.store.parts.removals import Removals
from scamp_service.store.store import Store
from tests.services.s3 import object_storage
from tests.services.serving import SECRET, end, fill, settings_in
from tests.waiting import PATIENCE_SECONDS
from workloads.files import untrusted

OWN_TABLES = (schema.logs, schema.metrics, schema.comparisons, schema.measured, schema.attempts, schema.trials)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(settings_in(tmp_path).url)
    yield store
    store.close()


def ended_study(store: Store, settings: Settings) -> int:
    """A study from second 900 to second 1000, with log lines and a checkpoint folder for each trial."""
    study = fill(store)
    began(store, study.id, 900.0)
    first, second, _ = store.trials.page(study.id)
    lines = [LogLine(second.id, 1, 0, number, 1.0, "a line") for number in range(5)]
    assert store.reports.add(Report(second.id, 1, SECRET, logs=lines), now=1.0)
    end(store, second.id)
    for trial in (first, second):
        (settings.checkpoints / str(trial.id) / "step-10").mkdir(parents=True)
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.COMPLETED, now=1000.0)
    return study.id


def began(store: Store, study_id: int, when: float) -> None:
    with store._database.write() as connection:
        connection.execute(sa.update(schema.studies).where(schema.studies.c.id == study_id).values(created_at=when))


class Sweep:
    """A sweeper, whose clocks stand still unless they are turned."""

    def __init__(self, store: Store, settings: Settings, now: float = 2000.0, remover: Remover | None = None) -> None:
        self.now, self.seconds = now, 0.0
        self._remover = remover or Remover()
        self._sweeper = Sweeper(store, settings, self._remover, clock=lambda: self.now, monotonic=lambda: self.seconds)

    def tick(self, times: int, *, hangs: bool = False) -> None:
        """So many steps, in each of which a rest or a removal may end."""
        for _ in range(times):
            self.seconds += REST_SECONDS
            self._sweeper.tick()
            while self._remover.is_busy() and not hangs:
                time.sleep(0.001)

    def look(self) -> None:
        """Everything that is to be done in this hour, then wait for the next."""
        self.tick(50)
        self.seconds += LOOK_SECONDS


def sweep(store: Store, settings: Settings, now: float = 2000.0) -> None:
    """Everything that there is to remove by a wall clock that stands still."""
    sweep_of_store = Sweep(store, settings, now)
    for _ in range(3):
        sweep_of_store.look()


def left(store: Store, study_id: int) -> dict[str, int]:
    """Number of rows in each table that belong to a study."""
    trials = sa.select(schema.trials.c.id).where(schema.trials.c.study_id == study_id)
    queries = {}
    for table in OWN_TABLES:
        trial_id = table.c.id if table is schema.trials else table.c.trial_id
        name = table.name.removeprefix("scamp_")
        queries[name] = sa.select(sa.func.count()).select_from(table).where(trial_id.in_(trials))
    queries["events"] = sa.select(sa.func.count()).where(schema.events.c.study_id == study_id)
    with store._database.read() as connection:
        return {name: connection.execute(query).scalar_one() for name, query in queries.items()}


def test_a_deleted_study_takes_everything_with_it_and_no_other(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path)
    gone, kept = ended_study(store, settings), ended_study(store, settings)
    before = left(store, kept)
    store.requests.delete(gone, now=1500.0)
    sweep(store, settings)
    assert set(left(store, gone).values()) <= {0, 1} and left(store, gone)["events"] == 1  # the newest of all events
    assert left(store, gone) | {"events": 0} == dict.fromkeys(left(store, gone), 0)
    assert left(store, kept) == before
    names = {int(path.name) for path in settings.checkpoints.iterdir()}
    assert names == {trial.id for trial in store.trials.page(kept)[:2]}


def test_a_kill_at_any_step_loses_nothing_else_and_the_next_start_removes_the_rest(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "ROWS_AT_ONCE", 1)
    settings = settings_in(tmp_path)
    gone, kept = ended_study(store, settings), ended_study(store, settings)
    before = left(store, kept)
    store.requests.delete(gone, now=1500.0)
    for _ in range(60):
        Sweep(store, settings).tick(3)  # begin a round, have folders removed, and do one step
        assert left(store, kept) == before
    assert left(store, gone) | {"events": 0} == dict.fromkeys(left(store, gone), 0)


def test_ids_of_deleted_trials_and_studies_are_not_given_again(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path)
    gone = ended_study(store, settings)
    ids, last_event = [trial.id for trial in store.trials.page(gone)], store.events.last_id()
    store.requests.delete(gone, now=1500.0)
    sweep(store, settings)
    study_row = fill(store)
    assert study_row.id > gone
    assert min(trial.id for trial in store.trials.page(study_row.id)) > max(ids)
    assert store.events.last_id() > last_event
    sweep(store, settings)
    assert left(store, gone)["trials"] == 0, "now that there are newer ones"


def test_by_default_an_ended_study_keeps_everything(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path)
    study = ended_study(store, settings)
    before = left(store, study)
    sweep(store, settings, now=1000 * 365 * DAY_SECONDS)
    assert left(store, study) == before
    assert len(list(settings.checkpoints.iterdir())) == 2


def test_what_is_older_than_the_settings_say_is_removed_and_no_more(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path, keep_logs_days=2, keep_checkpoints_days=4, keep_events_days=8)
    study = ended_study(store, settings)
    fill(store)  # this one still runs
    running = left(store, study + 1)
    for days, logs, folders in [(1, 5, 2), (3, 0, 2), (5, 0, 0)]:
        sweep(store, settings, now=1000.0 + days * DAY_SECONDS)
        assert left(store, study)["logs"] == logs
        assert len(list(settings.checkpoints.iterdir())) == folders
        assert left(store, study)["events"] > 0
    sweep(store, settings, now=1000.0 + 9 * DAY_SECONDS)
    assert left(store, study)["events"] == 0
    assert left(store, study)["metrics"] > 0 and left(store, study + 1) == running


def test_traces_age_from_their_last_use(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path, keep_traces_days=2)
    folder = tmp_path / "profiles" / "traces" / "ab"
    folder.mkdir(parents=True)
    for name, used_at in [("old", 0.0), ("new", 2 * DAY_SECONDS)]:
        (folder / name).touch()
        os.utime(folder / name, (used_at, used_at))
    sweep(store, settings, now=3 * DAY_SECONDS)
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_a_clock_that_is_wrong_for_less_than_an_hour_removes_nothing(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path, keep_logs_days=2, keep_checkpoints_days=2, keep_events_days=2)
    study = ended_study(store, settings)
    before = left(store, study)
    service_sweep = Sweep(store, settings, now=50 * 365 * DAY_SECONDS)  # the host has just booted
    service_sweep.look()
    service_sweep.now = 1000.0  # the network has set its clock
    service_sweep.look()
    service_sweep.now = 50 * 365 * DAY_SECONDS
    service_sweep.look()
    assert left(store, study) == before
    assert len(list(settings.checkpoints.iterdir())) == 2
    service_sweep.look()
    assert left(store, study)["logs"] == 0 and not list(settings.checkpoints.iterdir()), "it has really become old"


def test_a_study_that_ended_by_a_wrong_clock_is_as_old_as_its_beginning(tmp_path: Path, store: Store) -> None:
    settings = settings_in(tmp_path, keep_checkpoints_days=1.0)
    began(store, ended_study(store, settings), 5 * DAY_SECONDS)
    sweep(store, settings, now=5.5 * DAY_SECONDS)
    assert len(list(settings.checkpoints.iterdir())) == 2
    sweep(store, settings, now=6.5 * DAY_SECONDS)
    assert not list(settings.checkpoints.iterdir())


def test_a_folder_that_cannot_be_reached_holds_up_nothing_but_folders(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_in(tmp_path, keep_logs_days=2)
    gone, old = ended_study(store, settings), ended_study(store, settings)
    answers, num_calls, remove = threading.Event(), 0, untrusted.remove

    def hang(path: Path) -> None:
        nonlocal num_calls
        num_calls += 1
        assert answers.wait(PATIENCE_SECONDS)
        remove(path)

    monkeypatch.setattr(untrusted, "remove", hang)
    store.requests.delete(gone, now=1500.0)
    remover = Remover()
    for _ in range(3):  # terms of one process
        service_sweep = Sweep(store, settings, 1000.0 + 3 * DAY_SECONDS, remover)
        for _ in range(2):
            service_sweep.tick(50, hangs=True)
            service_sweep.seconds += LOOK_SECONDS
        assert num_calls == 1
    assert left(store, old)["logs"] == 0 and left(store, gone)["events"] == 1
    assert left(store, gone)["trials"] == 3, "rows wait for their folders"
    answers.set()
    service_sweep.tick(50)
    assert left(store, gone)["trials"] == 0
    assert {int(path.name) for path in settings.checkpoints.iterdir()} == {
        trial.id for trial in store.trials.page(old)[:2]
    }


def test_a_folder_that_cannot_be_removed_is_left_to_the_operator(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(f"no right to remove {path.name}")

    monkeypatch.setattr(untrusted, "remove", refuse)
    settings = settings_in(tmp_path)
    gone = ended_study(store, settings)
    fill(store)
    store.requests.delete(gone, now=1500.0)
    sweep(store, settings)
    assert left(store, gone)["trials"] == 0
    assert "remove it by hand" in caplog.text


def test_after_an_error_it_rests_so_that_few_cycles_fail(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    service_sweep = Sweep(store, settings_in(tmp_path))
    service_sweep.tick(1)
    service_sweep.seconds += REST_SECONDS

    def fail(removals: Removals, *, limit: int = 100) -> list[int]:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Removals, "deleted_trials", fail)
    num_failed = 0
    for _ in range(100):
        service_sweep.seconds += 0.1
        try:
            service_sweep._sweeper.tick()
        except RuntimeError:
            num_failed += 1
    assert 1 <= num_failed <= 3


@pytest.mark.full
def test_what_is_in_object_storage_goes_before_the_rows_that_name_it(tmp_path: Path, store: Store) -> None:
    with object_storage() as storage:
        settings = settings_in(tmp_path)
        gone, kept = ended_study(store, settings), ended_study(store, settings)
        copies = Copies(Objects(storage.url), settings.checkpoints)
        for trial in [*store.trials.history(gone), *store.trials.history(kept)]:
            copies.objects.write(f"{trial.id}/step-10/manifest.json", b"{}")
        storage.refuses = 403
        store.requests.delete(gone, now=1500.0)
        sweeps = Sweep(store, settings, remover=Remover(copies))
        sweeps.tick(10, hangs=True)
        assert left(store, gone)["trials"] > 0, "the storage refuses"
        storage.refuses = 0
        sweeps.look()
        trials = {str(trial.id) for trial in store.trials.history(kept)}
        assert {name.partition("/")[0] for name in storage.names()} == trials
        assert left(store, gone)["metrics"] == 0
