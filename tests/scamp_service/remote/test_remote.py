"""A service whose checkpoints are in object storage: a rank dies, the cache goes, and training continues from there."""

from __future__ import annotations

import os
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scamp_service.study.user_code.bundling import bundle_code
from tests.services.kills import CLUSTER
from tests.services.processes import Served, pids_of, trains
from tests.services.s3 import KEY, SECRET, ObjectStorage, object_storage
from tests.waiting import until

pytestmark = pytest.mark.ray

WORKLOAD = """
import time
from pathlib import Path
from workloads.models.vit_digits import VitDigits

class Slow(VitDigits):
    def on_step(self, step, *rest):
        super().on_step(step, *rest)
        if step > 8 and not Path(self.params["gate"]).exists():
            time.sleep(2.0)
"""
STEPS, EVERY = 60, 5
GATE = "gate"
"""A file in the folder of a test, before which trials train slowly."""


def study(folder: Path, steps: int = STEPS) -> tuple[dict[str, Any], Any]:
    """A study of one trial, and its code."""
    (folder / "mine.py").write_text(WORKLOAD)
    (folder / "study.yaml").write_text("")
    spec = {
        "name": "slow",
        "workload": "mine.py:Slow",
        "objective": {"metric": "accuracy"},
        "space": {"lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "fixed": {"depth": 1, "width": 32, "patch": 4, "gate": str(folder / GATE)},
        "search": {"sampler": "random"},
        "stopping": {"rule": "none"},
        "budget": {"trials": 1, "steps": steps, "report_every": EVERY, "max_lost": 5},
    }
    return spec, bundle_code(folder / "study.yaml", "mine.py:Slow")


def served(folder: Path, storage: ObjectStorage) -> Served:
    return Served(folder / "data", **CLUSTER, **storage.environment, SCAMP_CHECKPOINT_DIR=storage.url)


def manifests(storage: ObjectStorage) -> list[str]:
    return [name for name in storage.names() if name.endswith("/manifest.json")]


def lose_rank_and_cache(service: Served) -> None:
    """Kill the rank that trains, and remove all checkpoints of its host."""
    (pid,) = until(lambda: [pid for pid in service.pids("ray::Rank") if trains(pid)], "a rank that trains")
    os.kill(pid, signal.SIGSTOP)
    for folder in (service.data_dir / "checkpoints").glob("[0-9]*"):
        shutil.rmtree(folder)
    os.kill(pid, signal.SIGKILL)


def test_training_continues_from_object_storage(tmp_path: Path) -> None:
    with object_storage() as storage:
        service = served(tmp_path, storage)
        try:
            spec, code = study(tmp_path)
            study_id = service.client.submit(spec, code=code)["id"]
            until(lambda: manifests(storage), "a first checkpoint in the storage")
            lose_rank_and_cache(service)
            (tmp_path / GATE).touch()
            until(lambda: service.client.study(study_id)["finished_at"], "the end of the study")
            trial = service.client.trial(study_id, 0)
            assert trial["state"] == "COMPLETED", trial["reason"]
            rows = list(service.client.metrics(study_id, 0))
            assert [row["step"] for row in rows] == list(range(EVERY, STEPS + 1, EVERY))
            last = trial["attempts"][-1]
            assert len(trial["attempts"]) > 1
            assert min(row["step"] for row in rows if row["attempt"] == last["attempt"]) > EVERY, "it began anew"

            until(lambda: any(f"step-{STEPS}/manifest" in name for name in manifests(storage)), "the last checkpoint")
            shutil.rmtree(service.data_dir / "checkpoints" / str(trial["id"]))
            service.client.checkpoint(study_id, 0, tmp_path / "checkpoint.tar")
            with tarfile.open(tmp_path / "checkpoint.tar") as tar:
                assert {".metadata", "sums.json", "scalars.json"} < set(tar.getnames())
            service.client.weights(study_id, 0, tmp_path / "weights.pt")

            service.client.delete_trial(study_id, 0)
            until(lambda: not storage.names(), "the removal of the objects")
        finally:
            service.abandon()
        until(lambda: not pids_of(service.data_dir), "the end of every process")
        for file in (path for path in tmp_path.rglob("*") if path.is_file()):
            data = file.read_bytes()
            assert SECRET.encode() not in data and KEY.encode() not in data, file


def test_a_storage_that_is_away_stops_no_training(tmp_path: Path) -> None:
    with object_storage() as storage:
        storage.refuses = 503
        service = served(tmp_path, storage)
        try:
            (tmp_path / GATE).touch()
            spec, code = study(tmp_path, steps=20)
            study_id = service.client.submit(spec, code=code)["id"]
            until(lambda: service.client.study(study_id)["finished_at"], "the end of the study")
            assert service.client.trial(study_id, 0)["state"] == "COMPLETED"
            assert storage.names() == []
            storage.refuses = 0
            until(lambda: any("step-20/manifest" in name for name in manifests(storage)), "the last checkpoint")
        finally:
            service.abandon()
