"""The command line against a running service and without one: real processes, real Ray, real trainings."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.conftest import Scamp
from tests.services.processes import Served, run_scamp
from tests.services.receiving import receiving
from tests.waiting import until

pytestmark = pytest.mark.ray

CLUSTER = {"SCAMP_VIRTUAL_DEVICES": "2", "SCAMP_DEVICE_MIB": "88", "SCAMP_NOTIFY_NETWORKS": "127.0.0.1"}

# A model that ScaMP has never seen, in a folder: the study, the workload, and a module that the workload imports.
STUDY = """
name: reversal
workload: reverse.py:Reverse
objective: {metric: accuracy}
space: {lr: {low: 1e-3, high: 2e-3, log: true}, width: {choice: [32, 256]}}
start_with: [{width: 32}, {width: 256}]
fixed: {batch: 16}
stopping: {rule: none}
budget: {trials: 2, steps: 4, report_every: 2}
"""
WORKLOAD = """
import torch
from torch.nn import functional
from workloads.protocol import Workload
from reverse_net import Net

class Reverse(Workload):
    num_train, num_eval = 512, 64

    def __init__(self, params):
        super().__init__(params)
        print("a model of width", params["width"])
        self.words = torch.randint(0, 8, (576, 6), generator=torch.Generator().manual_seed(0))

    def build_model(self):
        return Net(self.params["width"])

    def blocks(self, model):
        return list(model.layers)

    def train_batch(self, indices):
        return self.words[indices]

    def eval_batch(self, indices):
        return self.words[512 + indices]

    def loss(self, model, words):
        return functional.cross_entropy(model(words).flatten(0, 1), words.flip(1).flatten())

    def evaluate(self, model, words):
        return {"accuracy": (model(words).argmax(-1) == words.flip(1)).float().mean(1)}
"""
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(8, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6 * width, 2 * width), nn.GELU(), nn.Linear(2 * width, 6 * width)) for _ in range(4)
        )
        self.head = nn.Linear(width, 8)

    def forward(self, words):
        x = self.embedding(words)
        for layer in self.layers:
            x = x + layer(x.flatten(1)).view_as(x)
        return self.head(x)
"""


def folder_of(where: Path, workload: str = WORKLOAD) -> Path:
    where.mkdir()
    for name, text in (("study.yaml", STUDY), ("reverse.py", workload), ("reverse_net.py", NET)):
        (where / name).write_text(text)
    return where


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    service = Served(tmp_path_factory.mktemp("cli") / "data", **CLUSTER)
    yield service
    service.abandon()


def as_json(scamp: Scamp, service: Served, *arguments: str) -> Any:
    done = scamp(service.data_dir, *arguments, "--json", SCAMP_ADDRESS=service.url)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.sample
def test_a_model_never_seen_before_is_tuned_through_a_service(scamp: Scamp, service: Served, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mine")
    mine = folder / "study.yaml", "--working-dir", folder
    with receiving() as hooks:
        notify = f"notify=[{{webhook: '{hooks.url}', on: [study.ended]}}]"
        done = scamp(service.data_dir, "submit", *mine, "--set", notify, SCAMP_ADDRESS=service.url)
        assert done.returncode == 0, done.stderr
        headers, body = until(lambda: hooks.requests, "the receiver is told")[0]
    secret = scamp(service.data_dir, "webhook-secret").stdout.strip()
    assert Webhook(secret).verify(body, headers)["data"]["study"]["state"] == "COMPLETED"
    assert "study 1: http" in done.stdout and "2 completed" in done.stdout
    small, large = sorted(as_json(scamp, service, "trials", "1"), key=lambda trial: trial["number"])
    assert (small["num_ranks"], large["num_ranks"]) == (1, 2), "the larger one does not fit on one device"
    assert {small["state"], large["state"]} == {"COMPLETED"}
    view = as_json(scamp, service, "status", "1")
    assert view["summary"]["trials"] == {"COMPLETED": 2} and view["summary"]["best_metrics"]["accuracy"] > 0
    assert [study["name"] for study in as_json(scamp, service, "list")] == ["reversal"]
    logs = scamp(service.data_dir, "logs", "1", "1", SCAMP_ADDRESS=service.url)
    assert "a model of width 256" in logs.stdout
    files = [path for path in service.data_dir.rglob("*") if not path.is_symlink()]
    assert {path.name for path in files} >= {"reverse_net.py", "controller.log", "ray.log", ".metadata", "scamp.db"}
    assert [path for path in files if path.stat().st_mode & 0o077] == [], "nobody else may read them"


def test_a_candidate_trains_with_the_largest_batch_that_fits_and_says_why(
    scamp: Scamp, service: Served, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "largest")
    (folder / "study.yaml").write_text(
        STUDY.replace("batch: 16", "batch: largest, smallest_batch: 4, largest_batch: 96")
    )
    done = scamp(service.data_dir, "submit", folder / "study.yaml", "--working-dir", folder, SCAMP_ADDRESS=service.url)
    assert done.returncode == 0, done.stderr
    study = as_json(scamp, service, "list")[-1]["id"]  # other tests have studies on this service, too
    small, large = sorted(as_json(scamp, service, "trials", str(study)), key=lambda trial: trial["number"])
    assert (small["state"], small["batch"], small["params"]["batch"]) == ("COMPLETED", 96, "largest")
    assert small["plan_reason"].endswith("; batch 96: the largest allowed, and it fits")
    assert large["state"] == "COMPLETED" and large["num_ranks"] == 2


@pytest.mark.soak  # two services; that a trial is planned again with its batch is a test of control/decide/size
def test_a_chosen_batch_stays_when_the_service_starts_again_with_larger_devices(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "mine")
    text = STUDY
    for old, new in (
        ("batch: 16", "batch: largest, largest_batch: 500"),
        ("{width: 32}, {width: 256}", "{width: 64}"),
        ("[32, 256]", "[64, 256]"),
        ("trials: 2, steps: 4, report_every: 2", "trials: 1, steps: 3000, report_every: 20"),
    ):
        text = text.replace(old, new)
    (folder / "study.yaml").write_text(text)
    batches: list[tuple[int, str]] = []
    for count, mib in (("1", "13"), ("2", "200")):
        service = Served(tmp_path / "data", SCAMP_VIRTUAL_DEVICES=count, SCAMP_DEVICE_MIB=mib)
        try:
            if not batches:
                service.client.submit(folder / "study.yaml", working_dir=folder)
            until(lambda s=service: _trains(s, len(batches) + 1), f"attempt {count}")  # type: ignore[misc]
            (trial,) = service.client.trials(1)
            batches.append((trial["batch"], trial["plan_reason"]))
        finally:
            service.abandon()
    assert batches[0] == batches[1] and 200 < batches[0][0] < 500
    assert "from 1 to 500: 1 rank computes at most" in batches[0][1]


def _trains(service: Served, attempt: int) -> bool:
    """Whether the only trial has trained in this attempt."""
    trials = list(service.client.trials(1))
    return bool(trials) and trials[0]["attempt"] >= attempt and trials[0]["step"] >= 100 * attempt


def test_mistakes_are_one_line_and_store_nothing(scamp: Scamp, service: Served, tmp_path: Path) -> None:
    studies = as_json(scamp, service, "list")
    (tmp_path / "not-yaml.yaml").write_text("{")
    typo = folder_of(tmp_path / "typo") / "study.yaml"
    typo.write_text(STUDY.replace("budget:", "budgets:"))
    broken = folder_of(tmp_path / "broken", f"raise ImportError('no such thing')\n{WORKLOAD}")
    mistakes: list[tuple[list[str | Path], str]] = [
        (["submit", tmp_path / "no-such.yaml"], "no-such.yaml"),
        (["submit", tmp_path / "not-yaml.yaml"], "YAML"),
        (["submit", typo], "budgets"),
        (["submit", broken / "study.yaml"], "no such thing"),
        (["run", broken / "study.yaml", "--data-dir", tmp_path / "data"], "no such thing"),
        (["run", folder_of(tmp_path / "fine") / "study.yaml", "--working-dir", tmp_path / "fine"], "is using"),
        (["status", "99"], "99"),
        (["trials", "one"], "whole number"),
        (["serve", "--host", "0.0.0.0", "--data-dir", tmp_path / "data"], "SCAMP_API_TOKEN"),
        (["list", "--address", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ]
    for arguments, words in mistakes:
        done = scamp(service.data_dir, *arguments, SCAMP_ADDRESS=service.url)
        assert done.returncode == 2, f"{arguments}: {done.stdout}{done.stderr}"
        assert words in done.stderr
        assert done.stderr.startswith("scamp: ")
        assert done.stdout == ""
    assert as_json(scamp, service, "list") == studies


def test_a_study_of_which_no_trial_succeeds_has_exit_code_1(scamp: Scamp, service: Served, tmp_path: Path) -> None:
    fails = WORKLOAD.replace("        return self.words[512", "        1 / 0\n        return self.words[512")
    folder = folder_of(tmp_path / "ends", fails)
    arguments = ["submit", folder / "study.yaml", "--working-dir", folder, "--json"]
    done = scamp(service.data_dir, *arguments, SCAMP_ADDRESS=service.url)
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["trials"] == {"FAILED": 2} and summary["best"] is None
    assert all(
        "ZeroDivisionError" in trial["reason"] for trial in as_json(scamp, service, "trials", str(summary["study"]))
    )


def test_a_chosen_port_that_is_in_use_is_an_error_in_one_line(scamp: Scamp, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, chosen in [(["--port", port], {}), ([], {"SCAMP_PORT": port})]:
            done = scamp(tmp_path / "data", "serve", *arguments, **chosen)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"scamp: port {port} on 127.0.0.1 is in use;")
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.soak  # a minute of processor time
def test_a_language_model_is_better_than_one_who_knows_letters_alone(tmp_path: Path) -> None:
    study = tmp_path / "gpt.yaml"
    study.write_text(
        "name: gpt\nworkload: stdlib_gpt\nobjective: {metric: loss, direction: minimize}\n"
        "space: {lr: {low: 3e-3, high: 6e-3}}\nfixed: {depth: 2, width: 64, heads: 4, context: 64, batch: 32}\n"
        "budget: {trials: 1, steps: 60, report_every: 30}\n"
    )
    done = run_scamp(tmp_path / "data", "run", study, "--json", SCAMP_VIRTUAL_DEVICES="1")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    names = {"trials", "best", "degrees", "colocated", "healed", "prediction_error_pct", "wall_seconds"}
    assert names <= summary.keys()
    assert summary["trials"] == {"COMPLETED": 1}
    assert summary["degrees"] == {"1": 1}
    assert summary["best_metrics"]["loss"] < 0.85 * summary["best_metrics"]["unigram_entropy"]
    assert abs(summary["prediction_error_pct"]["max"]) < 1
