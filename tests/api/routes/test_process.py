"""Whether the process answers, and can do its work."""

from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api import ready_probe
from tests.services.postgres import postgres
from tests.services.serving import InProcess, settings_in
from tests.waiting import PATIENCE_SECONDS


def test_ready_needs_a_controller_that_holds_the_lease(api: InProcess) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["controller"]) == (503, "no controller holds the lease")
    first = api.store.leases.take("controller", "c", None, now=time.time() - 30)
    assert "silent for 30 s" in api.get("/readyz").json()["controller"]
    assert first and api.store.leases.renew("controller", first, now=time.time())
    answer = api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "database": "ok", "data_directory": "ok", "controller": "ok"}


def test_a_full_disk_is_reported(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = api.store.leases.take("controller", "c", None, now=time.time())
    assert lease and api.get("/readyz").status_code == 200
    assert api.get("/v1/cluster").json()["data_directory"] == ""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    answer = api.get("/readyz")
    assert answer.status_code == 503 and "is on a full disk: free some space" in answer.json()["data_directory"]
    assert answer.json()["data_directory"] == api.get("/v1/cluster").json()["data_directory"]
    assert api.get("/healthz").status_code == 200, "a restart would not help"


def test_an_api_that_runs_alone_needs_no_data_directory(tmp_path: Path) -> None:
    alone = InProcess(settings_in(tmp_path).model_copy(update={"data_dir": tmp_path / "none"}))
    assert alone.store.leases.take("controller", "c", None, now=time.time())
    assert alone.get("/readyz").json()["data_directory"] == "ok"
    alone.close()


def test_a_database_that_cannot_be_written_is_reported(api: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_probe, "FRESH_SECONDS", 0.0)
    assert api.store.leases.take("controller", "c", None, now=time.time())
    before = api.store.identity()
    assert api.get("/readyz").json()["database"] == "ok" and api.store.identity() == before
    path = api.store._database.path
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE notes (study INTEGER REFERENCES scamp_studies (study_id))")
        answer = api.get("/readyz")
        assert answer.status_code == 503 and "foreign key mismatch" in answer.json()["database"]
        other.execute("DROP TABLE notes")
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(ready_probe, "WAIT_SECONDS", 0.05)
        for _ in range(2):
            assert "another process may have locked" in api.get("/readyz").json()["database"]
        assert api.get("/healthz").status_code == 200
        other.execute("ROLLBACK")
    monkeypatch.setattr(ready_probe, "WAIT_SECONDS", 60.0)
    assert api.get("/readyz").json()["database"] == "ok"
    monkeypatch.setattr(ready_probe, "FRESH_SECONDS", 60.0)
    monkeypatch.setattr(api.store, "write_nothing", lambda: pytest.fail("one write is enough for all of a minute"))
    assert api.get("/readyz").json()["database"] == "ok"


@pytest.mark.full
@pytest.mark.postgres
def test_a_server_that_hangs_is_reported_and_takes_no_thread_from_other_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres() as server:
        api = InProcess(settings_in(tmp_path, database_url=server.create_database()))
        lease = api.store.leases.take("controller", "c", None, now=time.time())
        assert lease and api.get("/readyz").status_code == 200
        with server.frozen():
            monkeypatch.setattr(ready_probe, "WAIT_SECONDS", 0.2)
            num_threads = threading.active_count()
            for _ in range(3):
                answers = api.together("/readyz", 50)
                assert {answer.status_code for answer in answers} == {503}
                assert "its server or a disk hangs" in answers[0].json()["database"]
            assert threading.active_count() <= num_threads + 1
            assert api.get("/healthz").status_code == api.get("/login").status_code == 200
        monkeypatch.setattr(ready_probe, "WAIT_SECONDS", PATIENCE_SECONDS)
        api.get("/readyz")  # the check that had hung
        assert api.store.leases.renew("controller", lease, now=time.time())
        assert api.get("/readyz").status_code == 200
        api.close()


def test_a_database_that_cannot_be_read_is_reported_by_ready_and_by_every_answer(
    api: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scamp_service.errors import Unavailable

    def broken(*_: Any, **__: Any) -> None:
        raise Unavailable("the database cannot be reached")

    monkeypatch.setattr(api.store.leases, "age", broken)
    monkeypatch.setattr(type(api.store.studies), "page", broken)
    ready, studies = api.get("/readyz"), api.get("/v1/studies")
    assert (ready.status_code, ready.json()["database"]) == (503, "the database cannot be reached")
    assert (studies.status_code, studies.json()["detail"]) == (503, "the database cannot be reached")
    assert api.get("/healthz").status_code == 200
