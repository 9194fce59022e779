"""A restored service equals the one of the backup, and neither half a backup nor half a restore is taken for whole."""

from __future__ import annotations

import io
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from scamp_service.cli.main import app
from scamp_service.errors import Conflict, InvalidInput, Unavailable
from scamp_service.processes.supervise import lock_data_dir
from scamp_service.settings import Settings
from scamp_service.store import schema
from scamp_service.store.store import Store
from scamp_service.upkeep.archive import MANIFEST
from scamp_service.upkeep.backup import backup, restore
from tests.services.processes import ROOT, Served, environment, run_scamp
from tests.services.serving import fill, fill_several, settings_in
from tests.waiting import PATIENCE_SECONDS, until
from workloads.training.checkpoints.name import CheckpointName, trial_folder

CODE = b"PK code of a user"


@pytest.fixture(params=["file", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """URL of a database; empty for that in the data directory."""
    return "" if request.param == "file" else request.getfixturevalue("postgres_server").create_database()


def filled(folder: Path, url: str = "", **options: Any) -> Settings:
    """A service with studies, users, code, checkpoints and files of trials, and what a backup leaves out."""
    settings = settings_in(folder, database_url=url, **options)
    store = Store(settings.url)
    fill(store, 5)
    fill_several(store)
    store.blobs.put(CODE)
    store.users.create("root", is_admin=True, now=1.0)
    store.tokens.create("root", "a test", now=1.0)
    store.close()
    drawn = random.Random(7)
    for trial_id in range(1, 4):
        for step in (10, 20):
            checkpoint = CheckpointName(trial_id, step).folder(settings.checkpoints)
            checkpoint.mkdir(parents=True)
            (checkpoint / ".metadata").write_bytes(drawn.randbytes(300))
            (checkpoint / "__0_0.distcp").write_bytes(drawn.randbytes(300_000))
        pictures = trial_folder(settings.checkpoints, trial_id) / "artifacts" / "pictures"
        pictures.mkdir(parents=True)
        (pictures / "curve.png").write_bytes(drawn.randbytes(5000))
        (trial_folder(settings.checkpoints, trial_id) / ".step-30-abc.tmp").mkdir()
        (pictures / "link").symlink_to("/etc/passwd")
    (settings.data_dir / "device_kinds").mkdir()
    (settings.data_dir / "device_kinds" / "cpu.json").write_text("{}")
    (settings.data_dir / "logs").mkdir()
    (settings.data_dir / "logs" / "api.log").write_text("a line")
    return settings


def rows(settings: Settings) -> dict[str, list[Any]]:
    """Table → all its rows."""
    store = Store(settings.url)
    with store._database.read() as connection:
        tables = {
            table.name: sorted(map(repr, connection.execute(sa.select(table)).all()))
            for table in schema.metadata.sorted_tables
        }
    store.close()
    return tables


def files(settings: Settings) -> dict[str, bytes]:
    """Path → content of what a backup has beside the database."""
    roots = {"checkpoints": settings.checkpoints, "kinds": settings.data_dir / "device_kinds"}
    return {
        f"{name}/{path.relative_to(root)}": path.read_bytes()
        for name, root in roots.items()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def equal(first: Settings, second: Settings) -> bool:
    assert rows(first) == rows(second)
    assert files(first) == files(second)
    return True


def nothing_else_in(folder: Path) -> bool:
    return not list(folder.glob("scamp-*"))


def test_a_restored_service_has_the_same_rows_and_files(tmp_path: Path, url: str, request: Any) -> None:
    settings = filled(tmp_path / "old", url)
    manifest = backup(settings, tmp_path / "backup")
    new_url = request.getfixturevalue("postgres_server").create_database() if url else ""
    new = settings_in(tmp_path / "new", database_url=new_url)
    assert restore(new, tmp_path / "backup") == manifest
    assert equal(settings, new)
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    assert nothing_else_in(tmp_path) and nothing_else_in(settings.checkpoints)
    assert sorted(path.name for path in new.data_dir.iterdir() if "scamp.db" not in path.name) == [
        "checkpoints", "device_kinds", "service.lock",
    ]  # fmt: skip
    store = Store(new.url)
    assert fill(store).id == 3, "the numbers continue"
    store.close()


@pytest.mark.postgres
@pytest.mark.parametrize("to_postgres", [True, False])
def test_a_service_moves_from_one_database_to_another(tmp_path: Path, to_postgres: bool, postgres_server: Any) -> None:
    urls = ["", postgres_server.create_database()]
    old_url, new_url = urls if to_postgres else reversed(urls)
    settings = filled(tmp_path / "old", old_url)
    backup(settings, tmp_path / "backup")
    new = settings_in(tmp_path / "new", database_url=new_url)
    restore(new, tmp_path / "backup")
    assert equal(settings, new)


def test_a_folder_for_checkpoints_of_its_own_is_kept_in_the_new_one(tmp_path: Path) -> None:
    settings = filled(tmp_path / "old", checkpoint_dir=str(tmp_path / "shared"))
    backup(settings, tmp_path / "backup")
    new = settings_in(tmp_path / "new", checkpoint_dir=str(tmp_path / "other"))
    restore(new, tmp_path / "backup")
    assert equal(settings, new)


@pytest.mark.full
@pytest.mark.sample
def test_a_backup_taken_while_a_study_writes_is_one_moment(tmp_path: Path, url: str, request: Any) -> None:
    settings = filled(tmp_path / "old", url)
    stop = threading.Event()

    def write() -> None:
        store, step = Store(settings.url), 0
        while not stop.is_set():
            fill(store)
            step += 10
            for old in sorted((settings.checkpoints / "2").glob("step-*"), key=lambda path: int(path.name[5:]))[:-2]:
                doomed = old.rename(old.parent / f".{old.name}-x.tmp")
                for file in doomed.iterdir():
                    file.unlink()
                doomed.rmdir()
            written = settings.checkpoints / "2" / f".step-{20 + step}-y.tmp"
            written.mkdir()
            for number in range(3):
                (written / f"__{number}").write_text(str(step))
            written.rename(written.parent / f"step-{20 + step}")
        store.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for turn in range(3):
            backup(settings, tmp_path / f"backup-{turn}")
    finally:
        stop.set()
        thread.join()
    for turn in range(3):
        new_url = request.getfixturevalue("postgres_server").create_database() if url else ""
        new = settings_in(tmp_path / f"new-{turn}", database_url=new_url)
        restore(new, tmp_path / f"backup-{turn}")
        tables, now = rows(new), rows(settings)
        for table in ("scamp_metrics", "scamp_events", "scamp_blobs"):
            assert set(tables[table]) <= set(now[table])
        num_completed = sum("TrialState.COMPLETED" in row for row in tables["scamp_trials"])
        assert num_completed == sum("'COMPLETED'" in row for row in tables["scamp_events"])
        later = [folder for folder in (new.checkpoints / "2").glob("step-*") if int(folder.name[5:]) > 20]
        assert all(len(list(folder.iterdir())) == 3 for folder in later)


KILLED = """
import os, signal, sys
from pathlib import Path
from scamp_service.settings import Settings
from scamp_service.upkeep import archive, backup

left = int(sys.argv[3])

def counted(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call

archive._Hashed.read = counted(archive._Hashed.read)
for module, names in ((backup, "write_copy read_copy"), (os, "link fsync"), (Path, "rename replace unlink")):
    for name in names.split():
        setattr(module, name, counted(getattr(module, name)))
getattr(backup, sys.argv[1])(Settings(), Path(sys.argv[2]))
"""


def killed(command: str, settings: Settings, file: Path, after: int) -> bool:
    """Whether the command was killed after so many steps; it has ended well otherwise."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, command, str(file), str(after)], cwd=ROOT,
        env=environment(settings.data_dir), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.full
def test_a_backup_that_is_killed_leaves_the_last_one_and_nothing_that_looks_whole(tmp_path: Path) -> None:
    settings, file = filled(tmp_path / "old"), tmp_path / "backup"
    num_kills = 0
    for after in range(0, 200, 9):
        before = file.read_bytes() if file.exists() else None
        if not killed("backup", settings, file, after):
            break
        num_kills += 1
        assert (file.read_bytes() if file.exists() else None) == before
    assert num_kills >= 5
    assert nothing_else_in(tmp_path) and nothing_else_in(settings.checkpoints), "what they left goes with the next"
    restore(settings_in(tmp_path / "new"), file)
    assert equal(settings, settings_in(tmp_path / "new"))


@pytest.mark.full
def test_a_restore_that_is_killed_leaves_nothing_that_starts_and_the_next_one_is_whole(tmp_path: Path) -> None:
    settings, file = filled(tmp_path / "old"), tmp_path / "backup"
    backup(settings, file)
    new, num_kills = settings_in(tmp_path / "new"), 0
    for after in range(1, 200, 9):
        if not killed("restore", new, file, after):
            break
        num_kills += 1
        if any(new.data_dir.iterdir()):
            with pytest.raises(Conflict, match="was not finished: run `scamp restore`"):
                lock_data_dir(new.data_dir)
        assert not (new.data_dir / "scamp.db").exists()
    assert num_kills >= 5
    assert equal(settings, new)
    lock_data_dir(new.data_dir).close()


@pytest.mark.parametrize("happens", ["cut off", "a bit flips", "no backup", "a name leads elsewhere", "another format"])
def test_what_is_no_whole_backup_is_refused_and_does_not_start(tmp_path: Path, happens: str) -> None:
    settings, file = filled(tmp_path / "old"), tmp_path / "backup"
    backup(settings, file)
    data = bytearray(file.read_bytes())
    match happens:
        case "cut off":
            del data[len(data) // 2 :]
        case "a bit flips":
            data[len(data) // 2] ^= 1
        case "no backup":
            data = bytearray(b"to do: " * 1000)
        case "a name leads elsewhere":
            data = bytearray(archive_of({"checkpoints/../../evil": b"x"}))
        case "another format":
            data = bytearray(archive_of({MANIFEST: json.dumps({"format": 9, "scamp": "9.0"}).encode()}))
    file.write_bytes(data)
    new = settings_in(tmp_path / "new")
    with pytest.raises(InvalidInput, match="backup"):
        restore(new, file)
    assert not (tmp_path / "evil").exists()
    with pytest.raises(Conflict, match="was not finished"):
        lock_data_dir(new.data_dir)


def archive_of(contents: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def test_nothing_is_restored_over_what_is_there(tmp_path: Path) -> None:
    settings, file = filled(tmp_path / "old"), tmp_path / "backup"
    backup(settings, file)
    before = rows(settings), files(settings)
    with pytest.raises(Conflict, match="is not empty"):
        restore(settings, file)
    with lock_data_dir(tmp_path / "busy"), pytest.raises(Conflict, match="another ScaMP process"):
        restore(settings_in(tmp_path / "busy"), file)
    with pytest.raises(Conflict, match=r"checkpoints .* is not empty"):
        restore(settings_in(tmp_path / "new", checkpoint_dir=str(settings.checkpoints)), file)
    assert (rows(settings), files(settings)) == before


@pytest.mark.postgres
def test_a_database_with_rows_is_not_written(tmp_path: Path, postgres_server: Any) -> None:
    settings = filled(tmp_path / "old", postgres_server.create_database())
    backup(settings, tmp_path / "backup")
    before = rows(settings)
    with pytest.raises(Conflict, match="is not empty: name another"):
        restore(settings_in(tmp_path / "new", database_url=settings.database_url), tmp_path / "backup")
    assert rows(settings) == before


def test_without_a_database_or_space_there_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no study database"):
        backup(settings_in(tmp_path), tmp_path / "backup")
    settings = filled(tmp_path / "old")
    with pytest.raises(Unavailable, match="cannot be written"):
        backup(settings, tmp_path / "nowhere" / "backup")
    assert not (tmp_path / "backup").exists()


def test_the_commands_say_what_they_have_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = filled(tmp_path / "old")
    file = str(tmp_path / "backup")
    done = CliRunner().invoke(app, ["backup", file, "--data-dir", str(settings.data_dir)])
    assert done.exit_code == 0 and "17 files" in done.stdout
    done = CliRunner().invoke(app, ["restore", file, "--data-dir", str(tmp_path / "new")])
    assert done.exit_code == 0 and "scamp serve" in done.stdout
    with sqlite3.connect(tmp_path / "new" / "scamp.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


STUDY: dict[str, Any] = {
    "name": "kept",
    "workload": "vit_digits",
    "objective": {"metric": "accuracy"},
    "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
    "fixed": {"depth": 2, "width": 24, "patch": 4},
    "search": {"sampler": "random"},
    "stopping": {"rule": "none"},
    "budget": {"trials": 2, "steps": 100, "report_every": 10},
}


def metrics(settings: Settings) -> dict[tuple[int, int], Any]:
    """(trial, step) → values that it reported."""
    store = Store(settings.url)
    trials = store.trials.every(1)
    values = {(row.trial_id, row.step): row.values for trial in trials for row in store.reports.metrics(trial.id)}
    store.close()
    return values


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[list[Served]]:
    services: list[Served] = []
    yield services
    for each in services:
        each.abandon()


@pytest.mark.ray
def test_a_study_continues_from_a_backup_that_was_taken_while_it_ran(tmp_path: Path, serving: list[Served]) -> None:
    serving.append(Served(tmp_path / "old"))
    serving[0].client.submit(STUDY)
    until(lambda: any((tmp_path / "old" / "checkpoints").glob("*/step-*")), "a checkpoint")
    done = run_scamp(tmp_path / "old", "backup", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    serving[0].stop()
    done = run_scamp(tmp_path / "new", "restore", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    before = metrics(settings_in(tmp_path / "new"))
    serving.append(Served(tmp_path / "new"))
    until(lambda: serving[1].client.study(1)["state"] == "COMPLETED", "the study's end")
    trials = list(serving[1].client.trials(1))
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 2
    after = metrics(settings_in(tmp_path / "new"))
    assert before and before.items() <= after.items()
