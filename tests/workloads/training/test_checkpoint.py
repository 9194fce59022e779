from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from workloads.training import checkpoint


def trained(
    optimizer_class: type[torch.optim.Optimizer] = torch.optim.AdamW, steps: int = 3, seed: int = 0
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = optimizer_class(model.parameters(), lr=1e-2)
    for _ in range(steps):
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    "optimizer_class", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.NAdam]
)
def test_what_was_saved_is_what_is_loaded(tmp_path: Path, optimizer_class: type[torch.optim.Optimizer]) -> None:
    model, optimizer = trained(optimizer_class)
    optimizer.param_groups[0]["lr"] = 0.125
    checkpoint.save(tmp_path, 3, model, optimizer)
    other, fresh = trained(optimizer_class, steps=0, seed=1)
    checkpoint.load(tmp_path, 3, other, fresh)
    assert all(value.equal(other.state_dict()[name]) for name, value in model.state_dict().items())
    saved, loaded = optimizer.state_dict(), fresh.state_dict()
    assert loaded["param_groups"] == saved["param_groups"]
    assert loaded["state"].keys() == saved["state"].keys()
    for position, state in saved["state"].items():
        for field, value in state.items():
            assert torch.equal(torch.as_tensor(loaded["state"][position][field]), torch.as_tensor(value)), field


def test_loading_goes_into_the_memory_of_the_model(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, 1, model, optimizer)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    checkpoint.load(tmp_path, 1, model, optimizer)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def test_the_last_two_up_to_this_step_are_kept_and_later_ones_are_left_alone(tmp_path: Path) -> None:
    for step in (40, 10, 20, 30):
        checkpoint.save(tmp_path, step, *trained())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-20", "step-30", "step-40"]
    assert checkpoint.latest(tmp_path, 35) == 30
    assert checkpoint.latest(tmp_path, 19) is None
    assert checkpoint.latest(tmp_path / "never", 100) is None


def test_a_checkpoint_that_was_not_finished_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, 10, *trained())
    assert checkpoint.latest(tmp_path, 10) is None
    (unfinished,) = tmp_path.iterdir()
    checkpoint.save(tmp_path, 10, *trained())
    assert unfinished.exists(), "another gang may be writing it"
    old = time.time() - checkpoint.STALE_SECONDS - 1
    os.utime(unfinished, (old, old))
    checkpoint.save(tmp_path, 20, *trained())
    assert not unfinished.exists()


def test_a_step_that_is_committed_already_is_kept(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 10, *trained())
    before = (tmp_path / "step-10").stat().st_ino
    checkpoint.save(tmp_path, 10, *trained())
    assert (tmp_path / "step-10").stat().st_ino == before
    assert len(list(tmp_path.iterdir())) == 1


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpoint.save(tmp_path, 1, model, optimizer)
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "harm")))
    with pytest.raises(pickle.UnpicklingError, match="has no place in a checkpoint"):
        checkpoint.load(tmp_path, 1, model, optimizer)
    assert not (tmp_path / "harm").exists()
