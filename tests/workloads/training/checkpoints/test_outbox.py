"""Ranks that share no folder: each host has its own, and a mirror with an object storage that all of them see."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from scamp_service.remote.copies import Copies
from scamp_service.remote.mirror import Mirror
from scamp_service.remote.objects import Objects
from tests.services.s3 import ObjectStorage, object_storage
from tests.waiting import until
from tests.workloads.conftest import Ranks
from tests.workloads.one_rank import TRIAL
from workloads.training.checkpoints import outbox
from workloads.training.checkpoints.name import CheckpointName, written_checkpoints

SHARDED = Plan(8, dp_shard=2)
SECOND, FOURTH = (CheckpointName(TRIAL, step) for step in (2, 4))


@contextmanager
def mirrors(storage: ObjectStorage, folder: Path, *names: str) -> Iterator[None]:
    """Mirrors of these hosts."""
    stop = threading.Event()
    with ExitStack() as stack:
        for name in names:
            outbox.open_outbox(folder / name)
            thread = threading.Thread(target=Mirror(Copies(Objects(storage.url), folder / name)).run, args=(stop,))
            thread.start()
            stack.callback(thread.join)
        stack.callback(stop.set)
        yield


def on(folder: Path, host: str, **more: Any) -> dict[str, Any]:
    return {"is_mirrored": True, "checkpoint_root": str(folder / host), **more}


@pytest.fixture(scope="module")
def storage() -> Iterator[ObjectStorage]:
    with object_storage() as storage:
        yield storage


@pytest.mark.full
def test_a_gang_of_two_hosts_continues_on_others_under_another_plan(
    ranks: Ranks, storage: ObjectStorage, tmp_path: Path
) -> None:
    curve = ranks.curve(SHARDED)
    with mirrors(storage, tmp_path, "a-0", "a-1", "b-0", "b-1", "c"):
        ranks.curve(SHARDED, 4, **on(tmp_path, "a-{rank}"))
        until(lambda: not [each for host in ("a-0", "a-1") for each in outbox.waiting(tmp_path / host)], "the uploads")
        files = [{path.name for path in FOURTH.folder(tmp_path / host).glob("*.distcp")} for host in ("a-0", "a-1")]
        assert all(files) and not files[0] & files[1], "each host has the files of its own rank"
        resumed = ranks.curve(SHARDED, 4, **on(tmp_path, "b-{rank}", resume_step=2, attempt=2))
        assert resumed == curve[1:]
        alone = ranks.curve(Plan(16), 4, **on(tmp_path, "c", resume_step=2, attempt=3))
        assert [step for step, _ in alone] == [4]
        assert alone[0][1]["loss"] == pytest.approx(curve[1][1]["loss"], rel=1e-4)
        back = ranks.curve(SHARDED, 4, **on(tmp_path, "a-{rank}", resume_step=2, attempt=4))
        assert back == curve[1:]


@pytest.mark.full
def test_training_continues_from_an_older_checkpoint_if_the_newest_was_only_on_a_lost_host(
    ranks: Ranks, storage: ObjectStorage, tmp_path: Path
) -> None:
    storage.prefix = "lost"
    with mirrors(storage, tmp_path, "a"):
        curve = ranks.curve(Plan(16), 6)
        ranks.train(Plan(16), 6, **on(tmp_path, "a"), stop_after=3)
        until(lambda: not outbox.waiting(tmp_path / "a"), "the upload")
    stored = written_checkpoints(tmp_path / "a", TRIAL)
    newest = stored[-1].step
    with mirrors(storage, tmp_path, "b"):
        shutil.rmtree(tmp_path / "a")
        resumed = ranks.curve(Plan(16), 6, **on(tmp_path, "b", resume_step=newest + 1, attempt=2))
    assert resumed == [row for row in curve if row[0] > newest]


def test_an_attempt_ends_when_nothing_can_be_fetched(ranks: Ranks, storage: ObjectStorage, tmp_path: Path) -> None:
    storage.prefix = "nothing"
    with mirrors(storage, tmp_path, "a"):
        (answer,) = ranks.train(Plan(16), 4, **on(tmp_path, "a", resume_step=2, attempt=2))
    assert answer["error"] == "StorageFault"
    assert "step 2 is not in s3://" in answer["message"]
