"""Files that a trial keeps, and its checkpoint, over a real database."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR

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
    trial = api.store.trials.page(study.id)[0]
    path = f"/v1/studies/{study.id}/trials/0/files"
    assert api.get(path).json() == {"items": [], "next": None}
    kept = TrialContext(folder=api.app.state.settings.checkpoints / str(trial.id) / ARTIFACTS)
    kept.keep("plots/a b.html", b"<script>")
    [listed] = api.get(path).json()["items"]
    assert (listed["name"], listed["num_bytes"]) == ("plots/a b.html", 8)
    answer = api.get(f"{path}/plots/a%20b.html")
    assert answer.content == b"<script>" and answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    kept.keep("plots/curve.SVG", b"<svg/>")
    picture = api.get(f"{path}/plots/curve.SVG").headers
    assert picture["content-type"] == "image/svg+xml" and picture["content-disposition"].startswith("attachment")
    assert picture["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert picture["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["none.txt", "..%2F..%2Fscamp.db", "plots", "%00"])
def test_other_names_are_not_found(api: InProcess, name: str) -> None:
    study = fill(api.store)
    trial = api.store.trials.page(study.id)[0]
    TrialContext(folder=api.app.state.settings.checkpoints / str(trial.id) / ARTIFACTS).keep("plots/a", b"")
    assert api.get(f"/v1/studies/{study.id}/trials/0/files/{name}").status_code == 404


@pytest.mark.parametrize("trap", ["link", "folder", "fifo", "artifacts", "trial"])
def test_no_trap_among_kept_files_is_read_or_listed(api: InProcess, tmp_path: Path, trap: str) -> None:
    """A link as a file, as a folder, as the folder of all files, and as that of the trial; and a FIFO."""
    study = fill(api.store)
    folder = api.app.state.settings.checkpoints / str(api.store.trials.page(study.id)[0].id) / ARTIFACTS
    outside = tmp_path / "outside"
    (outside / ARTIFACTS).mkdir(parents=True)
    for secret in (outside / "secret", outside / ARTIFACTS / "secret"):
        secret.write_text("secret")
    (folder if trap in ("link", "folder", "fifo") else folder.parent.parent).mkdir(parents=True)
    traps: dict[str, Callable[[], None]] = {
        "link": lambda: (folder / "secret").symlink_to(outside / "secret"),
        "folder": lambda: (folder / "below").symlink_to(outside),
        "fifo": lambda: os.mkfifo(folder / "secret"),
        "artifacts": lambda: (folder.parent.mkdir(), folder.symlink_to(outside))[-1],
        "trial": lambda: folder.parent.symlink_to(outside),
    }
    traps[trap]()
    path = f"/v1/studies/{study.id}/trials/0/files"
    name = "below/secret" if trap == "folder" else "secret"
    assert trap == "fifo" or (folder / name).read_text() == "secret", "the trap works for who follows it"
    answer = api.get(f"{path}/{name}")
    assert answer.status_code == 404
    assert str(tmp_path) not in answer.text
    assert api.get(path).json()["items"] == []


@pytest.mark.parametrize("trap", ["link", "fifo", "step", "hard link"])
def test_no_trap_in_a_checkpoint_is_read(
    api: InProcess, tmp_path: Path, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = fill(api.store)
    trial = api.store.trials.page(study.id)[1]
    assert api.store.reports.add(Report(trial.id, 1, SECRET, checkpoint_step=10), now=time.time())
    step = CheckpointName(trial.id, 10).folder(api.app.state.settings.checkpoints)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    if trap == "step":
        step.parent.mkdir(parents=True)
        step.symlink_to(outside)
    else:
        step.mkdir(parents=True)
        (step / "scalars.json").write_text("{}")
    if trap == "link":
        (step / "secret").symlink_to(outside / "secret")
    elif trap == "fifo":
        os.mkfifo(step / "secret")
    elif trap == "hard link":
        (step / "secret").hardlink_to(outside / "secret")
        stat = os.fstat
        as_anothers = lambda folder: os.stat_result(  # noqa: E731
            [value + (index == 4) for index, value in enumerate(stat(folder))]
        )
        monkeypatch.setattr(os, "fstat", lambda file: as_anothers(file) if S_ISDIR(stat(file).st_mode) else stat(file))
    answer = api.get(f"/v1/studies/{study.id}/trials/1/checkpoint")
    assert answer.status_code == 404 and "step 10 cannot be read" in answer.json()["detail"]
    assert str(tmp_path) not in answer.text


def test_an_unchanged_file_is_not_sent_again(api: InProcess) -> None:
    study = fill(api.store)
    kept = TrialContext(
        folder=api.app.state.settings.checkpoints / str(api.store.trials.page(study.id)[0].id) / ARTIFACTS
    )
    kept.keep("a", b"old")
    path = f"/v1/studies/{study.id}/trials/0/files/a"
    condition = {"If-None-Match": api.get(path).headers["etag"]}
    assert api.get(path, headers=condition).status_code == 304
    kept.keep("a", b"new")
    assert api.get(path, headers=condition).content == b"new"


def test_a_part_of_a_file_is_sent(api: InProcess) -> None:
    study = fill(api.store)
    kept = TrialContext(
        folder=api.app.state.settings.checkpoints / str(api.store.trials.page(study.id)[0].id) / ARTIFACTS
    )
    kept.keep("a", b"0123456789")
    path = f"/v1/studies/{study.id}/trials/0/files/a"
    answer = api.get(path, headers={"Range": "bytes=8-99"})
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, b"89", "bytes 8-9/10")
    assert api.get(path, headers={"Range": "bytes=-3"}).content == b"789"
    assert api.get(path, headers={"Range": "bytes=10-"}).status_code == 416
    assert api.get(path, headers={"Range": "bytes=1-", "If-Range": '"other"'}).content == b"0123456789"


def test_a_checkpoint_is_one_archive_with_the_state_dictionary(api: InProcess, tmp_path: Path) -> None:
    study = fill(api.store)
    trial = api.store.trials.page(study.id)[1]
    path = f"/v1/studies/{study.id}/trials/1/checkpoint"
    assert "has no checkpoint" in api.get(path).json()["detail"]
    assert api.store.reports.add(Report(trial.id, 1, SECRET, checkpoint_step=10), now=time.time())
    assert "step 10 cannot be read: No such file or directory" in api.get(path).json()["detail"]
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
