"""Memory of parameters that the traced step does not train: unfrozen later, chosen by data, or frozen for good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.trace import Trace
from estimators.tracing.session.session import GET_GRADIENTS
from estimators.tracing.tracer import trace
from workloads.protocol import Batch, Workload
from workloads.sandbox.recipe import recipe_of
from workloads.unfreezing import unfreezes

WIDTH = 64
PLAIN, PAIR = Layout(), Layout(dp_shard=2)


class Plain(Workload):
    """Six linear layers."""

    num_train = num_eval = 64

    def build_model(self) -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))

    def train_batch(self, indices: Tensor) -> Batch:
        return torch.ones(len(indices), WIDTH), torch.arange(len(indices)) % 2

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = model(batch[0]).mean()
        return result

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"score": model(batch[0]).mean(1)}


class Frozen(Plain):
    """All but the last layer are frozen for good, and the optimizer has them nevertheless."""

    def build_model(self) -> nn.Module:
        self.model = super().build_model()
        freeze(self.model, 5)
        return self.model


class Scheduled(Frozen):
    """A schedule of learning rates unfreezes nothing."""

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / steps)


class Unfreezing(Frozen):
    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        freeze(self.model, 5 - step // 4)


def freeze(model: nn.Module, num: int) -> None:
    assert isinstance(model, nn.Sequential)
    for number, layer in enumerate(model):
        for parameter in layer.parameters():
            parameter.requires_grad_(number >= num)


class LeftOut(Unfreezing):
    """The optimizer never has the frozen layers."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameter for parameter in model.parameters() if parameter.requires_grad)


class ByName(Frozen):
    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        self._thaw(step)

    def _thaw(self, step: int) -> None:
        for parameter in self.model.parameters():
            setattr(parameter, "requires_grad", step > 3)  # noqa: B010


class Experts(nn.Module):
    """The first two samples go to the first two of eight experts."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(8)])

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            if rows.any():
                out[rows] = expert(x[rows])
        return out


class ByData(Plain):
    def build_model(self) -> nn.Module:
        return Experts()

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return []

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        result: Tensor = model(*batch).mean()
        return result

    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return {"score": model(*batch).mean(1)}


class Unused(Plain):
    """The last layer is never used, whatever the data are."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        result: Tensor = model[:5](batch[0]).mean()
        return result


def traced(kind: type[Workload], layout: Layout = PLAIN) -> Trace:
    return trace(recipe_of(kind({})), layout, 8)


NUM_BYTES = 4 * (WIDTH + 1) * WIDTH
"""Bytes of the parameters of a layer."""


@pytest.mark.parametrize(
    ("kind", "layout"),
    [(Unfreezing, Layout()), (Unfreezing, Layout(accumulate=True)), (ByName, Layout()), (ByName, PAIR)],
    ids=str,
)
def test_what_on_step_may_unfreeze_needs_memory_as_if_it_were_trained_from_the_start(
    kind: type[Workload], layout: Layout
) -> None:
    plain, unfrozen = traced(Plain, layout), traced(kind, layout)
    assert unfrozen.curve == plain.curve and unfrozen.state_bytes == plain.state_bytes
    (assumed,) = unfrozen.assumptions
    assert assumed.startswith(
        "all parameters of the optimizer train, as on_step may unfreeze them (test_unfreezing.py:"
    )


@pytest.mark.parametrize("kind", [Frozen, Scheduled, LeftOut])
def test_what_stays_frozen_stays_cheap(kind: type[Workload]) -> None:
    few = traced(kind)
    assert few.assumptions == ()
    assert few.state_bytes < (6 + 3.1) * NUM_BYTES, "gradients and two states of one layer"


@pytest.mark.parametrize("layout", [Layout(accumulate=True), PAIR], ids=str)
def test_experts_that_data_choose_all_have_states(layout: Layout) -> None:
    experts = traced(ByData, layout)
    assert GET_GRADIENTS in experts.assumptions
    assert experts.state_bytes >= 8 * 4 * NUM_BYTES // layout.dp_shard


def test_what_no_data_use_has_neither_gradients_nor_states() -> None:
    unused = traced(Unused)
    assert unused.assumptions == () and unused.state_bytes < (6 + 5 * 3.1) * NUM_BYTES


def test_only_code_that_on_step_reaches_unfreezes() -> None:
    assert [bool(unfreezes(kind({}))) for kind in (Plain, Frozen, Scheduled, Unfreezing, ByName)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def unused_names(model: Any) -> Any:
    """Nothing reaches this: it says requires_grad."""
    return model.requires_grad
