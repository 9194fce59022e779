"""A failed training in debug says why in the words of a trial, once in a gang, below the lines of the user's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.waiting import PATIENCE_SECONDS
from workloads import debug, refusals
from workloads.training import failing
from workloads.training.attempt.loop import NonFiniteLoss
from workloads.training.runtime import PeerLost

WRONG = """
import torch
from torch import nn
from workloads.protocol import Workload

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)

class Wrong(Workload):
    num_train = num_eval = 32
    def build_model(self): return Net()
    def train_batch(self, indices): return torch.ones(len(indices), 4)
    eval_batch = train_batch
    def loss(self, model, batch):
        return model(batch[:, :3]).mean()
    def evaluate(self, model, batch): return {"norm": model(batch).norm(dim=1)}

class Endless(Wrong):
    def loss(self, model, batch): return (model(batch) * torch.inf).mean()

class Ending(Wrong):
    def loss(self, model, batch): raise SystemExit(3)
"""
WORDS = [
    "wrong.py, line 11: return self.layer(x)",
    "sizes of tensors do not match: mat1 and mat2 shapes cannot be multiplied (16x3 and 4x4)",
    "→ compare the sizes of the inputs with those of the layers",
]


def failure(folder: Path, name: str, *more: str) -> list[str]:
    (folder / "wrong.py").write_text(WRONG)
    with pytest.raises(SystemExit) as raised:
        debug.main([f"{folder}/wrong.py:{name}", "--steps", "2", "--param", "batch=16", *more])
    return str(raised.value).splitlines()


@pytest.mark.full
def test_the_words_come_last_below_the_lines_of_the_users_files(tmp_path: Path) -> None:
    lines = failure(tmp_path, "Wrong")
    assert lines[-3:] == WORDS
    files = [line for line in lines if line.startswith("  File")]
    assert files == [
        f'  File "{tmp_path}/wrong.py", line {n}, in {name}' for n, name in ((19, "loss"), (11, "forward"))
    ]
    whole_lines = failure(tmp_path, "Wrong", "--traceback")
    assert whole_lines[-3:] == WORDS
    assert any("torch/nn/modules/linear.py" in line for line in whole_lines)


def test_a_line_alone_is_shown_once(tmp_path: Path) -> None:
    assert failure(tmp_path, "Endless")[0].startswith("the training loss became nan at step 1")
    assert failure(tmp_path, "Ending") == [
        "wrong.py, line 26: def loss(self, model, batch): raise SystemExit(3)",
        "SystemExit: 3",
    ]


def test_files_of_scamp_and_libraries_are_not_the_users_even_in_a_folder_of_the_user() -> None:
    root = Path(refusals.__file__).parents[1]
    assert refusals.is_users(str(root / "net.py"), root)
    assert not refusals.is_users(debug.__file__, root)
    assert not refusals.is_users(pytest.__file__, root)
    assert refusals.is_users(str(root / "workloads" / "models" / "vit_digits.py"), root / "workloads" / "models")


def test_one_rank_of_a_gang_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr(failing, "_CAUSE_SECONDS", 0.1)

    def ending(error: BaseException, store: dist.Store) -> object:
        with pytest.raises(SystemExit) as raised:
            failing.end_rank(error, tmp_path, store, shows_all=False)
        return raised.value.code

    lost, cause = PeerLost("another rank\nis gone"), NonFiniteLoss("the loss is nan")
    store = dist.HashStore()
    assert ending(cause, store) == "the loss is nan"
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"] == "the loss is nan"
    assert [ending(error, store) for error in (cause, lost)] == [1, 1]
    assert ending(lost, dist.HashStore()) == "another rank is gone", "where no rank could say why"


@pytest.mark.soak  # ``test_debug.py`` starts ranks by torchrun as well
def test_torchrun_ends_with_the_words(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    options = ["-m", "workloads.debug", f"{tmp_path}/wrong.py:Wrong", "--param", "batch=32"]
    environment = os.environ | {"PYTHONPATH": str(Path(debug.__file__).parents[1])}
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 1
    ranks_lines, _, summary = done.stderr.partition("ChildFailedError")
    assert ranks_lines.count(WORDS[1]) == 1, done.stderr
    assert "workloads/training" not in ranks_lines
    assert [line.strip() for line in summary.splitlines()[-4:-1]] == [f"traceback : {WORDS[0]}", *WORDS[1:]]
