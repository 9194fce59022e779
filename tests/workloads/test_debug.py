"""Training without Ray prints what a trial reports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators.model import Plan
from tests.waiting import PATIENCE_SECONDS
from workloads import debug

FILE = Path(__file__).parents[2] / "benchmarks" / "features" / "workloads" / "sequences.py"
OPTIONS = [
    f"{FILE}:Sequences",
    "--param",
    "batch=16",
    "--param",
    "clip_norm=0.3",
    "--steps",
    "4",
    "--report-every",
    "2",
]


def reports(output: str) -> list[Any]:
    lines = re.findall(r"^step (\d+): (.*)$", output, re.M)
    values = [dict(pair.rsplit(" ", 1) for pair in words.split(", ")) for _, words in lines]
    return [
        (int(lines[n][0]), {name: float(value) for name, value in values_of.items()})
        for n, values_of in enumerate(values)
    ]


@pytest.mark.full
def test_two_processes_of_torchrun_print_the_losses_of_a_trial(ranks: Any) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "workloads.debug"]
    plan = ["--plan", "dp_replicate=2,zero1=true,micro_batch=8"]
    done = subprocess.run(
        [*command, *OPTIONS, *plan], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Memory block of unknown size" not in done.stderr, (
        "torch's warning of memory that is older than its profiler"
    )
    trial = {
        "workload": "sequences.py:Sequences",
        "code_dir": str(FILE.parent),
        "params": {"batch": 16, "clip_norm": 0.3},
    }
    expected = ranks.curve(Plan(8, dp_replicate=2, zero1=True), 4, **trial)
    assert reports(done.stdout) == [(step, pytest.approx(values, rel=1e-5)) for step, values in expected]


def test_a_parameter_is_the_number_that_a_study_would_read() -> None:
    params = ["--param", "lr=3e-3", "--param", "betas=[0.9, 1e-3]", "--param", "kind=e3"]
    options = debug._parser().parse_args(["vit_digits", *params])
    assert dict(options.param) == {"lr": 0.003, "betas": [0.9, 0.001], "kind": "e3"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--plan", "dp_shard=2,micro_batch=8"], "needs torchrun --nproc-per-node 2"),
        (["--plan", "micro_batch=4"], "trains 4 samples per step, and the batch is 16"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(more: list[str], words: str) -> None:
    with pytest.raises(SystemExit, match=words):
        debug.main([*OPTIONS, *more])


COUPLED = """
import torch
from torch import nn
from workloads.protocol import Workload

class Coupled(Workload):
    num_train = num_eval = 32
    def build_model(self): return nn.Linear(4, 4)
    def train_batch(self, indices): return torch.sin(indices[:, None] * torch.arange(1.0, 5.0))
    eval_batch = train_batch
    def loss(self, model, batch): return (model(batch) @ model(batch).T).logsumexp(1).mean()
    def evaluate(self, model, batch): return {"norm": model(batch).norm(dim=1)}
"""


READING = """
import torch
from coupled import Coupled

class Reading(Coupled):
    def loss(self, model, batch):
        breakpoint()
        return model(batch).square().mean() * (1.0 if model(batch).sum().item() > 0 else 2.0)
"""


@pytest.mark.full
def test_a_candidate_that_studies_refuse_is_trained_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coupled.py").write_text(COUPLED)
    (tmp_path / "reading.py").write_text(READING)
    stops: list[None] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stops.append(None))
    options = [f"{tmp_path}/reading.py:Reading", "--steps", "3", "--param", "batch=16"]
    debug.main(options)
    words = capsys.readouterr().err
    assert words.startswith("warning: studies refuse this candidate:\nreading.py, line 8: return model(batch)")
    assert "reads a value of a tensor" in words
    assert len(stops) == 3, "once in each step, and not while studies are asked"
    monkeypatch.setattr(debug, "_CHECK_SECONDS", 0)
    debug.main(options)
    assert not capsys.readouterr().err, "nobody knows in no time"


@pytest.mark.full
def test_a_plan_that_studies_refuse_is_trained_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coupled.py").write_text(COUPLED)
    options = [f"{tmp_path}/coupled.py:Coupled", "--steps", "1", "--param", "batch=16"]
    debug.main([*options, "--plan", "micro_batch=8,num_micro_batches=2"])
    assert "warning: studies refuse this plan: the loss of 16 samples is" in capsys.readouterr().err
    debug.main(options)
    assert not capsys.readouterr().err
    with pytest.raises(SystemExit, match="the file has no class 'Other'"):
        debug.main([f"{tmp_path}/coupled.py:Other"])
