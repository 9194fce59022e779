"""Placement groups of Ray Tune by ScaMP's sizes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.trainable import wrap_function

from estimators.model import MIB
from scamp_service.errors import InvalidInput
from scamp_service.sizing.tracing.trace_pool import TracePool
from scamp_service.tune import PROCESS_MIB, ScampResources, scamp_resources

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def net(width, scale=1.0):
    if width % 2:
        raise ValueError("width must be even")
    return Net(width), lambda batch: torch.zeros(batch, width), lambda model, x: model(x).square().mean()
"""
SMALL: dict[str, Any] = {"width": 64, "batch": 8}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setenv("SCAMP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def resources(warm_traces: None) -> Iterator[ScampResources]:
    with scamp_resources("net.py:net", count=2, mib=64) as per_trial:
        yield per_trial


@pytest.mark.full
def test_a_trial_gets_a_bundle_for_each_rank_with_the_memory_that_its_candidate_is_predicted_to_need(
    resources: ScampResources,
) -> None:
    (bundle,) = resources(SMALL).bundles
    assert bundle["CPU"] == 1 and PROCESS_MIB * MIB < bundle["memory"] <= (PROCESS_MIB + 64) * MIB
    wide = {"width": np.int64(780), "batch": 8, "lr": np.float64(1e-3)}
    two = resources(wide)
    assert len(two.bundles) == resources.plan(wide).world_size == 2 and two.bundles[0]["memory"] > bundle["memory"]


@pytest.mark.full
def test_tune_asks_for_the_bundles_of_each_config(resources: ScampResources) -> None:
    trainable = wrap_function(tune.with_resources(lambda config: None, resources))
    assert trainable.default_resource_request(SMALL) == resources(SMALL)


def test_a_candidate_that_fits_nowhere_is_refused_by_name_and_the_reason(resources: ScampResources) -> None:
    with pytest.raises(InvalidInput, match=r"width=2000 .*lr=0.1.* needs at least .* 64 offered"):
        resources({"width": 2000, "batch": 8, "lr": 0.1})
    with pytest.raises(InvalidInput, match=r"lr=0.2"):
        resources({"width": 2000, "batch": 8, "lr": 0.2})
    with pytest.raises(InvalidInput, match="width must be even"):
        resources({"width": 3, "batch": 8})


def test_or_only_its_trial_fails(warm_traces: None) -> None:
    with scamp_resources("net.py:net", mib=16, when_too_large="fail trial") as resources:
        assert resources({"width": 2000}).bundles == [{"CPU": 1}]
        with pytest.raises(InvalidInput, match="needs at least"):
            resources.plan({"width": 2000})


def test_a_copy_in_another_process_knows_the_plan_without_a_trace(
    resources: ScampResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resources.plan({**SMALL, "lr": 0.125})
    copy = pickle.loads(pickle.dumps(resources))
    monkeypatch.setattr(TracePool, "submit", None)
    assert copy.plan({**SMALL, "lr": 0.5}) == plan == resources.plan({**SMALL, "lr": 0.25})
    copy.close()


@pytest.mark.full
def test_small_models_share_a_gpu_by_their_memory_and_ranks_of_a_gang_have_one_each(warm_traces: None) -> None:
    with scamp_resources("net.py:net", device="T4", count=2, per_rank={"CPU": 2}) as resources:
        assert resources(SMALL).bundles == [{"CPU": 2, "GPU": 0.25}]  # four gangs at most
        assert resources({"width": 12_000, "batch": 8}).bundles == [{"CPU": 2, "GPU": 1.0}] * 2


def test_a_study_and_an_unknown_workload_are_refused() -> None:
    with pytest.raises(InvalidInput, match="name its workload"):
        scamp_resources("study.yaml")
    with pytest.raises(InvalidInput, match="no_such"):
        scamp_resources("no_such")({})
