"""Pipelines hold as many micro-batches as their schedules say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.curves.forks import in_forks
from estimators.model import Plan
from estimators.tracing.fake_gang import fake_mesh
from estimators.tracing.tracer import trace, trace_peak
from tests.waiting import PATIENCE_SECONDS
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.parallel.apply import apply_plan
from workloads.parallel.pipeline import evaluate_pipeline, run_passes
from workloads.protocol import Batch, Chain, Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.recipe import recipe_of
from workloads.training.building import build_model
from workloads.training.gang import process_group
from workloads.training.losses import StepLosses

SMALL = {"depth": 2, "width": 32, "context": 16}


def activations(num_micro_batches: int, schedule: str) -> dict[str, int]:
    """Bytes of the first stage at its peak."""
    plan = Plan(8, num_micro_batches, pp=2, schedule=schedule)
    return trace_peak(recipe_of(StdlibGpt(SMALL)), plan.layout, 8).parts_at(8)


@pytest.mark.full
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


class Captioned(Chain):
    """Images and captions (a dictionary) → one number for each of four places."""

    enters, leaves = ("words",), ()

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def enter(self, images: Tensor, *, captions: dict[str, Tensor], scale: float | None = None) -> Tensor:
        words = self.words(captions["words"]) * captions["mask"][..., None]
        return images + words * (1.0 if scale is None else scale)

    def leave(self, x: Tensor) -> Tensor:
        return x.mean(2)

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, 4, 6


class Captions(Workload):
    """``scales`` has one for each micro-batch that the loss sees; the last one stays."""

    num_train = num_eval = 16

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        draws = torch.Generator().manual_seed(0)
        self.images = torch.randn(16, 4, 6, generator=draws)
        self.words = torch.randint(9, (16, 4), generator=draws)
        self.scales: list[float | None] = [0.5]

    def build_model(self) -> nn.Module:
        return Captioned()

    def train_batch(self, indices: Tensor) -> Batch:
        return self.images[indices], {"words": self.words[indices], "mask": (self.words[indices] > 2).float()}

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scale = self.scales.pop() if len(self.scales) > 1 else self.scales[0]
        loss: Tensor = model(batch[0], captions=batch[1], scale=scale).square().mean()
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"size": model(batch[0], captions=batch[1]).abs().mean(1)}


def trained_stages(rank: int, folder: Path) -> dict[str, Any]:
    """Gradients and metrics of a pipeline with two stages and two micro-batches."""
    torch.set_num_threads(1)
    plan, workload = Plan(4, 2, pp=2), Captions({})
    with process_group(plan, rank, dist.FileStore(str(folder / "store"), 2), torch.device("cpu")) as mesh:
        model = build_model(workload, plan, 1, torch.device("cpu"), mesh)
        assert isinstance(model, Chain)
        batches = [workload.train_batch(torch.arange(4) + 4 * number) for number in range(2)]
        run_passes(workload.loss, model, batches, 2, lambda loss: loss / 2)
        metrics = evaluate_pipeline(workload, model, batches[0])
        gradients = {
            name: parameter.grad.tolist() for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        return {"gradients": gradients, "metrics": [value.tolist() for value in metrics.values()]}


def test_a_first_stage_gets_several_inputs_trees_of_tensors_and_named_ones(tmp_path: Path) -> None:
    answers = in_forks([partial(trained_stages, rank, tmp_path) for rank in range(2)], PATIENCE_SECONDS)
    assert all(isinstance(answer, dict) for answer in answers), answers
    workload = Captions({})
    model = build_model(workload, Plan(8), 1, torch.device("cpu"), None)
    batch = workload.train_batch(torch.arange(8))
    workload.loss(model, batch).backward()
    gradients = answers[0]["gradients"] | answers[1]["gradients"]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.tensor(gradients[name]).allclose(parameter.grad, atol=1e-7), name
    (sizes,) = workload.evaluate(model, workload.train_batch(torch.arange(4))).values()
    assert answers[1]["metrics"] == [pytest.approx(sizes.tolist())]
    assert trace_peak(recipe_of(Captions({})), Plan(4, 2, pp=2).layout, 4).parts_at(4)["parameters"]


def test_what_differs_between_micro_batches_and_is_no_tensor_is_refused() -> None:
    layout, workload = Plan(2, 2, pp=2).layout, Captions({})
    workload.scales = [1.0, None]
    with fake_mesh(layout) as mesh:
        model = workload.build_model()
        assert isinstance(model, Chain)
        apply_plan(model, workload.blocks(model), layout, mesh)
        batches = [workload.train_batch(torch.arange(2))] * 2
        with pytest.raises(WorkloadError, match=r"something else that differs between micro-batches: make"):
            run_passes(workload.loss, model, batches, 2, StepLosses(min).add)


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
