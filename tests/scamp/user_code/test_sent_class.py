"""A class that has no file is sent by value, and loaded like any other file of the user."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle.cloudpickle
import pytest

from scamp.client import Client
from scamp.user_code import sent_class
from scamp.user_code.sent_class import bundle_class
from scamp_service.errors import InvalidInput
from scamp_service.study.user_code.checking import check_code
from workloads.files.archive import unpack_code
from workloads.loading import load_workload
from workloads.refusals import WorkloadError
from workloads.sandbox.dry_run import try_candidates

NOTEBOOK = """
import torch
from torch import nn
from torch.nn import functional
from workloads.protocol import Workload

CLASSES = 3

def network(width):
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, CLASSES))

class Cloud(Workload):
    num_train, num_eval = 30, 9

    def build_model(self):
        return network(self.params["width"])

    def train_batch(self, indices):
        return torch.stack([indices.sin(), indices.cos()], 1), indices % CLASSES

    eval_batch = train_batch

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        return {"accuracy": (model(batch[0]).argmax(-1) == batch[1]).float()}
"""


def _cloud() -> type:
    cells: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, cells)
    cell_class = cells["Cloud"]
    assert isinstance(cell_class, type)
    return cell_class


def test_a_class_of_a_notebook_is_loaded_from_its_zip(tmp_path: Path) -> None:
    name, code = bundle_class(_cloud())
    check_code(name, code)
    cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()  # as in another process
    cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
    workload_class = load_workload(name, unpack_code(code, tmp_path / "code"))
    assert workload_class.__module__ != "__main__"
    (tried,) = try_candidates(workload_class, [{"width": 8}], ["accuracy"])
    assert tried["metrics"] == ["accuracy"] and "width" in tried["read"]
    assert "width" in (tmp_path / "code" / "sent.txt").read_text().split()


def test_another_version_of_python_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sent_class, "VERSION", (3, 9))
        name, code = bundle_class(_cloud())
    here = ".".join(map(str, sys.version_info[:2]))
    with pytest.raises(WorkloadError, match=rf"sent from Python 3\.9, and ScaMP runs Python {here}"):
        load_workload(name, unpack_code(code, tmp_path / "code"))


def test_what_cannot_be_sent_is_refused_before_the_request() -> None:
    cloud: Any = _cloud()
    cloud.lock = threading.Lock()
    with Client() as client:
        with pytest.raises(InvalidInput, match="Cloud cannot be sent, because something that it refers to"):
            client.submit({"name": "cloud"}, workload=cloud)
        with pytest.raises(InvalidInput, match="must be a class"):
            client.submit({"name": "cloud"}, workload=cloud({}))
        with pytest.raises(InvalidInput, match="given twice"):
            client.submit({"name": "cloud", "workload": "vit_digits"}, workload=cloud)
