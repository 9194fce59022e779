"""Commands for what a trial leaves: its files, and its weights."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from estimators.model import Layout
from scamp_service.cli import main
from scamp_service.model import Report
from tests.services.serving import SECRET, fill, free_port, report, served, settings_in
from workloads.models.vit_digits import VitDigits
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.updates.update import make_optimizer
from workloads.trial import ARTIFACTS, TrialContext


def scamp(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["scamp", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    code: Any = ended.value.code
    return code or 0


@pytest.mark.sample
@pytest.mark.full
def test_files_and_weights_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_in(tmp_path, port=free_port())
    monkeypatch.chdir(tmp_path)
    with served(settings) as (address, store):
        monkeypatch.setenv("SCAMP_ADDRESS", address)
        study = fill(store)
        best, running = store.trials.page(study.id)[:2]
        TrialContext(folder=settings.checkpoints / str(best.id) / ARTIFACTS).keep("plots/loss curve.png", b"png")
        report(store, running.id, steps=[10])
        assert store.reports.add(Report(running.id, 1, SECRET, checkpoint_step=10), now=time.time())
        model = nn.Linear(2, 2)
        optimizer = make_optimizer(VitDigits({"ema_decay": 0.5}), model, Layout(), None, 10)
        before = model.weight.detach().clone()
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        checkpoint.save(settings.checkpoints, CheckpointName(running.id, 10), model, optimizer)

        assert scamp(monkeypatch, "files", str(study.id)) == 0
        assert "plots/loss curve.png" in capsys.readouterr().out
        assert scamp(monkeypatch, "download", str(study.id), "plots/loss curve.png") == 0
        assert (tmp_path / "loss curve.png").read_bytes() == b"png"
        assert scamp(monkeypatch, "download", str(study.id), "missing") == 2
        assert scamp(monkeypatch, "weights", str(study.id), "1", "-o", "w.pt") == 0
        assert "w.pt: 2 tensors, 24 bytes, of trial 1 at step 10, averaged as for its" in capsys.readouterr().out
        assert scamp(monkeypatch, "weights", str(study.id), "1", "--raw", "-o", "raw.pt") == 0
        assert capsys.readouterr().out.endswith("at step 10, those that train\n")
        assert scamp(monkeypatch, "weights", str(study.id)) == 2, "the best trial has no checkpoint"
        (CheckpointName(running.id, 10).folder(settings.checkpoints) / "scalars.json").write_text("{")
        capsys.readouterr()
        assert scamp(monkeypatch, "weights", str(study.id), "1") == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"the checkpoint of study {study.id} trial 1 cannot be read: a file in it is damaged" in said
        assert "/" not in said, "a temporary folder helps nobody"
    averaged, raw = torch.load(tmp_path / "w.pt"), torch.load(tmp_path / "raw.pt")
    nn.Linear(2, 2).load_state_dict(raw)
    assert torch.equal(raw["weight"], model.weight)
    assert torch.allclose(averaged["weight"], (before + model.weight) / 2)
    assert not list(tmp_path.glob("*.part"))
