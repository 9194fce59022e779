"""Files that a trial keeps, and its checkpoint, over a real database."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from scamp_service.model import Report
from tests.services.serving import SECRET, InProcess, fill
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.name import CheckpointName
from workloads.trial import ARTIFACTS, TrialContext


def test_kept_files_are_listed_and_downloaded(api: InProcess) -> None:
    study = fill(api.store)
    trial = api.store.trials(study.id)[0]
    path = f"/v1/studies/{study.id}/trials/0/files"
    assert api.get(path).json() == {"items": [], "next": None}
    kept = TrialContext(folder=api.app.state.settings.checkpoints / str(trial.id) / ARTIFACTS)
    kept.keep("plots/a b.html", b"<script>")
    [listed] = api.get(path).json()["items"]
    assert (listed["name"], listed["num_bytes"]) == ("plots/a b.html", 8)
    answer = api.get(f"{path}/plots/a%20b.html")
    assert answer.content == b"<script>" and answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("name", ["none.txt", "..%2F..%2Fscamp.db", "plots", "%00"])
def test_other_names_are_not_found(api: InProcess, name: str) -> None:
    study = fill(api.store)
    trial = api.store.trials(study.id)[0]
    TrialContext(folder=api.app.state.settings.checkpoints / str(trial.id) / ARTIFACTS).keep("plots/a", b"")
    assert api.get(f"/v1/studies/{study.id}/trials/0/files/{name}").status_code == 404


def test_a_link_does_not_lead_out_of_the_folder(api: InProcess, tmp_path: Path) -> None:
    study = fill(api.store)
    folder = api.app.state.settings.checkpoints / str(api.store.trials(study.id)[0].id) / ARTIFACTS
    folder.mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "scamp.db")
    assert api.get(f"/v1/studies/{study.id}/trials/0/files/link").status_code == 404
    assert api.get(f"/v1/studies/{study.id}/trials/0/files").json()["items"] == []


def test_a_checkpoint_is_one_archive_with_the_state_dictionary(api: InProcess, tmp_path: Path) -> None:
    study = fill(api.store)
    trial = api.store.trials(study.id)[1]
    path = f"/v1/studies/{study.id}/trials/1/checkpoint"
    assert "has no checkpoint" in api.get(path).json()["detail"]
    assert api.store.report(Report(trial.id, 1, SECRET, checkpoint_step=10), now=time.time())
    assert "is not in" in api.get(path).json()["detail"]
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    checkpoint.save(
        api.app.state.settings.checkpoints,
        CheckpointName(trial.id, 10),
        model,
        torch.optim.SGD(model.parameters()),
    )
    with tarfile.open(fileobj=io.BytesIO(api.get(path).content)) as packed:
        packed.extractall(tmp_path / "out", filter="data")
    loaded = checkpoint.load_weights(tmp_path / "out").state
    assert loaded.keys() == model.state_dict().keys()
    assert all(value.equal(loaded[name]) for name, value in model.state_dict().items())
