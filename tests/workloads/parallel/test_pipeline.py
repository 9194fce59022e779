"""Pipelines hold as many micro-batches as their schedules say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Plan
from estimators.tracing.fake_gang import fake_mesh
from estimators.tracing.tracer import trace, trace_peak
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.parallel.apply import apply_plan
from workloads.parallel.pipeline import run_passes
from workloads.protocol import Chain
from workloads.refusals import WorkloadError
from workloads.sandbox.recipe import recipe_of
from workloads.training.losses import StepLosses

SMALL = {"depth": 2, "width": 32, "context": 16}


def activations(num_micro_batches: int, schedule: str) -> dict[str, int]:
    """Bytes of the first stage at its peak."""
    plan = Plan(8, num_micro_batches, pp=2, schedule=schedule)
    return trace_peak(recipe_of(StdlibGpt(SMALL)), plan.layout, 8).parts_at(8)


def test_1f1b_holds_as_many_micro_batches_as_stages_and_gpipe_holds_all() -> None:
    few, many = activations(2, "1f1b"), activations(8, "1f1b")
    held = few["activations"] / 2
    # What is received is set apart for all micro-batches in advance: 8 × 16 × 32 numbers each.
    assert many["activations"] - few["activations"] < 1.5 * held
    assert activations(8, "gpipe")["activations"] > 7 * held


class Forgetful(StdlibGpt):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return batch.float().mean()


class Twice(StdlibGpt):
    """Calls the model once in its loss, and twice to evaluate."""

    def evaluate(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        super().evaluate(model, batch)
        return super().evaluate(model, batch)


def test_an_evaluation_that_calls_the_model_twice_is_refused() -> None:
    recipe = recipe_of(Twice({**SMALL, "depth": 4}))
    trace(recipe, Plan(2, 2, pp=2).layouts[0], 2)
    with pytest.raises(WorkloadError, match=r"evaluate calls the model more than once, and a pipeline runs it once"):
        trace(recipe, Plan(2, 2, pp=2).layouts[1], 2)


def test_a_loss_that_does_not_call_the_model_is_refused() -> None:
    layout, workload = Plan(2, 2, pp=2).layout, Forgetful(SMALL)
    with fake_mesh(layout) as mesh:
        model = workload.build_model()
        assert isinstance(model, Chain)
        apply_plan(model, workload.blocks(model), layout, mesh)
        with pytest.raises(ValueError, match=r"Forgetful\.loss does not call the model, so a pipeline cannot run it"):
            run_passes(workload.loss, model, [torch.zeros(2, 17, dtype=torch.long)] * 2, 2, StepLosses(min).add)


class Waves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x)


class Complex(StdlibGpt):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        assert isinstance(model, Chain)
        model.blocks = nn.ModuleList(Waves() for _ in model.blocks)
        return model


def test_complex_numbers_between_stages_are_refused_as_their_imaginary_parts_would_be_lost() -> None:
    with pytest.raises(WorkloadError, match="stages of a pipeline send real numbers, and a block returns complex"):
        trace_peak(recipe_of(Complex(SMALL)), Plan(8, 2, pp=2).layout, 8)
