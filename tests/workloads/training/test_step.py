"""Steps and evaluations: what they free, divide and show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from estimators.model import Layout, Plan
from estimators.tracing.tracer import trace
from tests.workloads.training.test_runtime import assert_same
from workloads.function import FunctionWorkload
from workloads.parallel.forward_state.state import attach_state
from workloads.protocol import Workload
from workloads.refusals import WrongResult, explain
from workloads.sandbox.recipe import recipe_of
from workloads.training.step import evaluate, train_step

SHOWN = """
import json
from pathlib import Path
import torch
from torch import nn
from workloads.protocol import Workload

class Shown(Workload):
    num_train = num_eval = 16
    def build_model(self): return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    def train_batch(self, indices): return torch.sin(indices[:, None] + torch.arange(4.0))
    eval_batch = train_batch
    def loss(self, model, batch): return (model(batch) - batch).square().mean()
    def evaluate(self, model, batch): return {"loss": (model(batch) - batch).square().mean(1)}
    def illustrate(self, model, step):
        assert not model.training and not torch.is_grad_enabled()
        shown = model(torch.randn(2, 4)).tolist()
        if self.trial.is_real:
            with (Path(__file__).parent / f"shown-{self.trial.rank}").open("a") as file:
                file.write(json.dumps([step, shown]) + "\\n")
"""


def shown(folder: Path, rank: int) -> list[Any]:
    file = folder / f"shown-{rank}"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return lines


@pytest.mark.full
def test_every_rank_shows_the_same_as_one_process(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    of_study: dict[str, Any] = {"workload": "shown.py:Shown", "code_dir": str(tmp_path)}
    curve = ranks.curve(Plan(8), 3, **of_study)
    alone = shown(tmp_path, 0)
    assert [step for step, _ in alone] == [step for step, _ in curve]
    for plan in (Plan(4, dp_shard=2), Plan(4, dp_replicate=2, zero1=True)):
        assert_same(ranks.curve(plan, 3, **of_study), curve)
        for rank in range(2):
            assert [pytest.approx(values, rel=1e-4) for _, rows in shown(tmp_path, rank) for values in rows] == [
                values for _, rows in alone for values in rows
            ]


class Wide(Workload):
    """Its illustrate needs more memory than a step or an evaluation."""

    num_train = num_eval = 16

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.sin(indices[:, None] + torch.arange(4.0))

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean()

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": (model(batch) - batch).square().mean(1)}

    def illustrate(self, model: nn.Module, step: int) -> None:
        model(torch.zeros(2**16, 4))


def test_memory_is_predicted_for_what_is_shown() -> None:
    evaluation = trace(recipe_of(Wide({})), Layout(), 4).evaluation
    assert evaluation is not None
    assert evaluation.peak_bytes(4) > 2**16 * 4 * 12


def test_what_is_shown_rests_on_no_assumption_but_where_its_prediction_ends() -> None:
    class Drawn(Wide):
        def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
            return super().evaluate(model, batch + torch.randn(4))

        def illustrate(self, model: nn.Module, step: int) -> None:
            model(torch.randn(2, 4)).tolist()

    class Looking(Wide):
        def illustrate(self, model: nn.Module, step: int) -> None:
            if model(torch.zeros(2, 4)).sum() > 0:
                self.artifact("positive.txt", b"yes")

    (drawn,) = trace(recipe_of(Drawn({})), Layout(), 4).assumptions
    assert re.match(r"in evaluate, random numbers are drawn .* \(test_step\.py:\d+\)$", drawn), "the line of evaluate"
    (cut,) = trace(recipe_of(Looking({})), Layout(), 4).assumptions
    assert cut.startswith("in illustrate, nothing is predicted after DataDependentOutputException")


class Slope(Wide):
    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        inputs = batch.clone().requires_grad_()
        with torch.set_grad_enabled(self.params["enables"] or torch.is_grad_enabled()):
            (slope,) = torch.autograd.grad(model(inputs).sum(), inputs)
        return {"slope": slope.norm(dim=1)}


def test_derivatives_in_an_evaluation_need_gradients_enabled() -> None:
    def evaluated(*, enables: bool) -> None:
        workload = Slope({"enables": enables})
        model = workload.build_model()
        attach_state(model, Layout(), None)
        evaluate(workload, model, [(workload.eval_batch(torch.arange(4)), torch.ones(4, dtype=torch.bool))])

    evaluated(enables=True)
    with pytest.raises(WrongResult, match="where ScaMP computes no gradients") as raised:
        evaluated(enables=False)
    words = explain(raised.value, Path(__file__).parent, in_training=True).splitlines()
    assert words[0].endswith("(slope,) = torch.autograd.grad(model(inputs).sum(), inputs)")
    assert words[-1].startswith("→ put `with torch.enable_grad():`")
    with pytest.raises(WrongResult, match="where ScaMP computes no gradients"):
        trace(recipe_of(Slope({"enables": False})), Layout(), 4)


class Sharpness(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()


class WithWords(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if closure is None:
            raise RuntimeError("Sharpness needs a closure")


class Broken(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise KeyError("momentum")


def test_an_optimizer_that_needs_a_closure_after_all_gets_the_words_of_one_that_says_so() -> None:
    def step(optimizer: type[torch.optim.SGD]) -> None:
        workload = Wide({})
        model = workload.build_model()
        attach_state(model, Layout(), None)
        train_step(workload, model, optimizer(model.parameters(), lr=0.1), [torch.ones(2, 4)], 1)

    for kind in (Sharpness, WithWords):
        with pytest.raises(WrongResult, match=r'needs a closure.*"SAM in two steps" in docs/updates\.md') as raised:
            step(kind)
        assert explain(raised.value, Path(__file__).parent, in_training=True).startswith("test_step.py, line ")
    with pytest.raises(KeyError):
        step(Broken)


@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "huber_loss"])
def test_the_terms_of_a_loss_are_gone_when_its_backward_pass_has_begun(name: str) -> None:
    gone: list[bool] = []

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        output = model(x)
        value = getattr(functional, name)(output, torch.ones_like(output))
        memory = StorageWeakRef(value.untyped_storage())
        output.register_hook(lambda gradient: gone.append(memory.expired()))
        return value

    def model_and_inputs() -> tuple[Any, ...]:
        return nn.Linear(4, 1000), lambda num: torch.ones(num, 4), loss

    workload = FunctionWorkload(model_and_inputs, {})
    model = workload.build_model()
    batches = (workload.train_batch(torch.arange(2)) for _ in range(2))
    train_step(workload, model, workload.optimizer(model), batches, 2)
    assert gone == [True, True]


def test_a_sum_over_unequal_micro_batches_trains_as_their_mean_at_once() -> None:
    targets = torch.tensor([0, -100, -100, -100, 1, 2, 0, 1])
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, y = batch
        return functional.cross_entropy(model(x), y, reduction="sum", ignore_index=-100), (y >= 0).sum()

    def model_and_inputs() -> tuple[Any, ...]:
        return nn.Linear(4, 3), lambda num: inputs[:num], loss

    workload = FunctionWorkload(model_and_inputs, {})
    model, plain = workload.build_model(), nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    batches = zip(inputs.split(4), targets.split(4), strict=True)
    mean = train_step(workload, model, torch.optim.SGD(model.parameters(), lr=1.0), batches, 2)
    expected = functional.cross_entropy(plain(inputs), targets, ignore_index=-100)
    expected.backward()
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    assert mean.item() == pytest.approx(expected.item())
    torch.testing.assert_close(model.weight, plain.weight)
