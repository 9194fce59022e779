"""Which optimizers update each parameter by itself, so that ZeRO-1 may divide them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from estimators.model import Plan
from workloads.parallel.optimizers.alone import updates_each_alone


class Lamb(Optimizer):
    """Momentum with a step of the length of the parameter's own norm."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})
        self.num_steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.num_steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                    self.update(p, mean, group["lr"])

    def update(self, p: Tensor, mean: Tensor, lr: float) -> None:
        p.sub_(mean * p.norm() / mean.norm(), alpha=lr)


class Clipping(Lamb):
    """The norm of all gradients."""

    def update(self, p: Tensor, mean: Tensor, lr: float) -> None:
        gradients = [other.grad for group in self.param_groups for other in group["params"] if other.grad is not None]
        p.sub_(mean / torch.stack([g.norm() for g in gradients]).norm(), alpha=lr)


class Skipping(Lamb):
    """No step where a gradient has overflowed, or where all together are much larger than usual."""

    most = float("inf")

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if all(bool(gradient.isfinite().all()) and float(gradient.abs().max()) < self.most for gradient in gradients):
            super().step()


class Careful(Skipping):
    most = 1e4


class Averaging(Lamb):
    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.averages = [p.detach().clone() for group in self.param_groups for p in group["params"]]


class Holding(Lamb):
    """Steps the parameters that it was made with."""

    def __init__(self, params: Any) -> None:
        params = list(params)
        super().__init__(params)
        self.inner = torch.optim.SGD(params, 0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


class Drawing(Lamb):
    def update(self, p: Tensor, mean: Tensor, lr: float) -> None:
        p.sub_(mean + torch.randn_like(mean), alpha=lr)


@pytest.mark.parametrize(
    ("make", "alone"),
    [
        (Lamb, True),
        (torch.optim.AdamW, True),
        (Clipping, False),
        (Skipping, False),
        (Careful, False),
        (Averaging, False),
        (Holding, False),
        (Drawing, False),
    ],
)
def test_a_copy_of_an_optimizer_shows_whether_parameters_need_each_other(
    make: Callable[..., Optimizer], alone: bool
) -> None:
    model = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30))
    optimizer = make(model.parameters())
    versions = [parameter._version for parameter in model.parameters()]
    assert updates_each_alone(optimizer) == alone
    assert versions == [parameter._version for parameter in model.parameters()] and not optimizer.state
    assert getattr(optimizer, "num_steps", 0) == 0


def test_it_is_tried_in_a_trace_too() -> None:
    with torch._subclasses.FakeTensorMode():
        assert updates_each_alone(Lamb(nn.Linear(400, 300).parameters()))


LAMB = """
import torch
from torch import nn
from torch.nn import functional
from scamp import Workload

POINTS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.5)
                p.sub_(mean * (p.norm() + 0.1) / (mean.norm() + 0.1), alpha=group["lr"])


class Own(Workload):
    num_train, num_eval = 64, 16
    def build_model(self): return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    def optimizer(self, model): return Lamb(model.parameters(), 0.1)
    def train_batch(self, indices): return POINTS[indices]
    eval_batch = train_batch
    def loss(self, model, x): return functional.mse_loss(model(x), x[:, :1])
    def evaluate(self, model, x): return {"loss": (model(x) - x[:, :1]).square().mean(1)}
"""


@pytest.mark.full
def test_replicas_divide_an_optimizer_of_the_users_own_and_resume(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(LAMB)
    options = {"workload": "own.py:Own", "code_dir": str(tmp_path), "params": {"batch": 32}, "steps": 6}
    expected, plan = dict(ranks.curve(Plan(32), **options)), Plan(16, dp_replicate=2, zero1=True)
    assert expected[6]["loss"] < expected[2]["loss"]
    ranks.train(plan, **options, stop_after=2, checkpoint_root=str(tmp_path / "stopped"))
    resumed = ranks.curve(plan, **options, resume_step=2, checkpoint_root=str(tmp_path / "stopped"))
    assert resumed
    for step, values in [*ranks.curve(plan, **options), *resumed]:
        assert values == pytest.approx(expected[step], abs=1e-5)


CAREFUL = """
class Careful(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
        if any(gradient.abs().max().item() > 0.2 for gradient in gradients):
            for gradient in gradients:
                gradient.mul_(0.1 / norm)
        if not any(bool((gradient > 0.05).all()) for gradient in gradients):
            super().step(closure)
"""


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("spread", [{"dp_shard": 2}, {"dp_shard": 2, "reshard": False}], ids=["FSDP", "ZeRO-2"])
def test_an_optimizer_of_the_users_own_reads_numbers_of_all_shards(ranks: Any, tmp_path: Path, spread: Any) -> None:
    text = LAMB.replace("\n\nclass Own", f"\n{CAREFUL}\n\nclass Own").replace("return Lamb(", "return Careful(")
    (tmp_path / "own.py").write_text(text)
    options = {"workload": "own.py:Own", "code_dir": str(tmp_path), "params": {"batch": 32}, "steps": 6}
    expected = dict(ranks.curve(Plan(32), **options))
    for step, values in ranks.curve(Plan(16, **spread), **options):
        assert values == pytest.approx(expected[step], abs=1e-6)
