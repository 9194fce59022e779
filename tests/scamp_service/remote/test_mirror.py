"""The process that does the requests of ranks: killed, refused, slowed down, and asked for nonsense."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scamp_service.remote.copies import Copies
from scamp_service.remote.mirror import Mirror
from scamp_service.remote.objects import Objects
from scamp_service.remote.process import mirroring
from scamp_service.settings import Settings
from tests.scamp_service.remote.test_copies import FIRST, SECOND, TRIAL, read, write
from tests.services.s3 import SECRET, ObjectStorage
from tests.waiting import until
from workloads.training.checkpoints import outbox
from workloads.training.checkpoints.name import CheckpointName


@pytest.fixture
def copies(storage: ObjectStorage, tmp_path: Path) -> Copies:
    return Copies(Objects(storage.url), tmp_path / "checkpoints")


@pytest.fixture
def mirror(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """A mirror in a thread of this process."""
    import s3fs

    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr("scamp_service.remote.layout.FIRST_PAUSE_SECONDS", 0.1)
    stop = threading.Event()
    outbox.open_outbox(copies.root)
    thread = threading.Thread(target=Mirror(copies).run, args=(stop,))
    thread.start()
    yield copies
    stop.set()
    thread.join()


def fetch(root: Path, name: object = FIRST, *, or_older: bool = False) -> str:
    return outbox.fetch(root, name, or_older=or_older, lives=lambda: None)  # type: ignore[arg-type]


def test_requests_are_done_and_removed(mirror: Copies, tmp_path: Path) -> None:
    files = write(mirror, FIRST)
    outbox.push(mirror.root, FIRST, [], ends=True)
    until(lambda: not outbox.waiting(mirror.root), "the upload")
    os.rename(FIRST.folder(mirror.root), tmp_path / "away")
    assert fetch(mirror.root) == ""
    assert read(mirror, FIRST) == files
    assert list((mirror.root / outbox.PULL).iterdir()) == list((mirror.root / outbox.ANSWERS).iterdir()) == []


def test_what_is_nowhere_is_answered_at_once(mirror: Copies) -> None:
    assert "the checkpoint of step 5 is not in" in fetch(mirror.root)


def test_an_older_one_comes_if_it_may(mirror: Copies, tmp_path: Path) -> None:
    write(mirror, FIRST)
    outbox.push(mirror.root, FIRST, [], ends=True)
    until(lambda: not outbox.waiting(mirror.root), "the upload")
    os.rename(FIRST.folder(mirror.root), tmp_path / "away")
    assert "step 10 is not in" in fetch(mirror.root, SECOND, or_older=True)
    assert FIRST.folder(mirror.root).exists()


def test_a_storage_that_refuses_is_asked_again_and_everybody_can_read_why(
    mirror: Copies, storage: ObjectStorage
) -> None:
    storage.refuses = 403
    write(mirror, FIRST)
    began = time.time()
    outbox.push(mirror.root, FIRST, [], ends=True)
    until(lambda: any(each.why for each in outbox.waiting(mirror.root, TRIAL)), "the refusal")
    (waits,) = outbox.waiting(mirror.root, TRIAL)
    assert waits.name == FIRST and abs(waits.since - began) < 60
    assert "let these credentials" in waits.why
    assert fetch(mirror.root) == "", "it is on this host"
    storage.refuses = 0
    until(lambda: not outbox.waiting(mirror.root), "the upload")
    assert list((mirror.root / outbox.PUSH).iterdir()) == []
    assert mirror.manifest(FIRST) is not None


def test_a_slow_storage_keeps_nobody_waiting_who_needs_nothing_from_it(mirror: Copies, storage: ObjectStorage) -> None:
    storage.seconds, storage.methods = 0.3, {"PUT"}
    write(mirror, FIRST)
    outbox.push(mirror.root, FIRST, [], ends=True)
    assert fetch(mirror.root) == ""
    assert outbox.waiting(mirror.root)
    until(lambda: not outbox.waiting(mirror.root), "the upload")


def test_a_checkpoint_that_is_asked_for_anew_meanwhile_is_stored_anew(mirror: Copies, storage: ObjectStorage) -> None:
    import shutil

    storage.seconds, storage.methods = 0.2, {"PUT"}
    write(mirror, FIRST, tag="1-a")
    outbox.push(mirror.root, FIRST, [], ends=True)
    until(lambda: storage.requests.get("PUT", 0) > 0, "the first upload")
    shutil.rmtree(FIRST.folder(mirror.root))
    write(mirror, FIRST, tag="2-b")
    outbox.push(mirror.root, FIRST, [], ends=True)
    until(lambda: not outbox.waiting(mirror.root), "both uploads")
    stored = mirror.manifest(FIRST)
    assert stored is not None and stored.tag == "2-b"
    assert not [name for name in storage.names() if "1-a" in name]


@pytest.mark.full
def test_requests_of_users_code_do_no_harm(mirror: Copies, tmp_path: Path) -> None:
    folder = mirror.root / outbox.PUSH
    (tmp_path / "secret").write_text("secret")
    (folder / "7-5").symlink_to(tmp_path / "secret")
    for name, text in (("../x", ""), ("a-b", ""), ("7-6", "[1]"), ("7-7", '{"needed": 5}'), ("7-8", "{")):
        (folder / name.replace("/", "_")).write_text(text)
    (folder / "7-9").mkdir()
    write(mirror, SECOND)
    outbox.push(mirror.root, SECOND, [], ends=True)
    until(lambda: mirror.manifest(SECOND) is not None, "the upload")
    assert (tmp_path / "secret").read_text() == "secret"


def test_nobody_waits_for_a_mirror_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "DEAD_SECONDS", 0.2)
    outbox.open_outbox(tmp_path)
    with pytest.raises(outbox.NotFetched, match=r"mirror\.log"):
        fetch(tmp_path)
    assert list((tmp_path / outbox.PULL).iterdir()) == []


@pytest.mark.full
def test_an_upload_survives_kills_of_the_process(storage: ObjectStorage, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    copies = Copies(Objects(storage.url), settings.checkpoints)
    rng, num_kills = random.Random(0), 0
    storage.seconds, storage.methods = 0.05, {"PUT"}
    with mirroring(settings, storage.url):
        files = write(copies, FIRST, more={f"__{rank}_0.distcp": os.urandom(2000) for rank in range(1, 40)})
        outbox.push(settings.checkpoints, FIRST, [], ends=True)
        pid_file = settings.checkpoints / outbox.FOLDER / "pid"
        killed = 0
        while num_kills < 3:
            puts = storage.requests.get("PUT", 0)
            until(lambda puts=puts: storage.requests.get("PUT", 0) > puts + 1, "another upload")  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 0.1))
            pid = int(pid_file.read_text())
            if pid != killed:
                os.kill(pid, signal.SIGKILL)
                killed, num_kills = pid, num_kills + 1
                assert copies.manifest(FIRST) is None
        until(lambda: not outbox.waiting(settings.checkpoints), "the upload")
        environment = Path(f"/proc/{pid_file.read_text()}/environ").read_text()
        assert SECRET not in environment
    elsewhere = Copies(copies.objects, tmp_path / "elsewhere")
    elsewhere.pull(FIRST)
    assert read(elsewhere, FIRST) == files
    assert SECRET not in (tmp_path / "logs" / "mirror.log").read_text()


@pytest.mark.full
def test_what_waits_at_the_end_of_a_run_is_stored_unless_the_storage_refuses(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    copies = Copies(Objects(storage.url), settings.checkpoints)
    with mirroring(settings, storage.url, last_seconds=1000.0):
        write(copies, FIRST)
        outbox.push(settings.checkpoints, FIRST, [], ends=True)
    assert copies.manifest(FIRST) is not None
    storage.refuses = 403
    with mirroring(settings, storage.url, last_seconds=1000.0):
        write(copies, SECOND)
        outbox.push(settings.checkpoints, SECOND, [], ends=True)
    words = outbox.late_words(settings.checkpoints, TRIAL)
    assert "checkpoint of step 10" in words and "let these credentials" in words
    assert outbox.late_words(settings.checkpoints, TRIAL, before=SECOND) == ""


def test_a_host_forgets_trials_that_were_removed_and_no_others(copies: Copies) -> None:
    outbox.open_outbox(copies.root)
    removed, kept, pending, new = (CheckpointName(trial, 5) for trial in (1, 2, 3, 4))
    for name in (removed, kept, pending):
        write(copies, name)
        os.utime(name.folder(copies.root), (1000.0, 1000.0))
    write(copies, new)
    (copies.root / "5" / "files").mkdir(parents=True)
    for name in (removed, kept):
        copies.push(name, [], ends=True)
    outbox.push(copies.root, pending, [], ends=True)
    copies.remove(removed.trial_id)
    Mirror(copies).sweep(before=2000.0)
    assert sorted(path.name for path in copies.root.glob("[0-9]*")) == ["2", "3", "4", "5"]
