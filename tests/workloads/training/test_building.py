"""A rank's part of a model is all that is left of building it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from estimators.model import Layout, Plan
from estimators.tracing.fake_gang import fake_mesh
from workloads.function import FunctionWorkload
from workloads.training.building import build_model


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_is_left_of_a_drawn_model_that_refers_to_itself() -> None:
    drawn: list[weakref.ref[torch.Tensor]] = []

    def normalised() -> Any:
        model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(64, 64)), nn.Linear(64, 8))
        drawn.extend(weakref.ref(parameter) for parameter in model.parameters() if not parameter.is_meta)
        return model, lambda batch: torch.randn(batch, 64)

    workload, cpu = FunctionWorkload(normalised, {"batch": 2}), torch.device("cpu")
    plan = Plan(1, dp_shard=2)
    with fake_mesh(Layout(dp_shard=2)) as mesh:
        model = build_model(workload, plan, 0, cpu, mesh)
    assert drawn and all(reference() is None for reference in drawn)
    assert sum(1 for _ in model.parameters()) == 4
