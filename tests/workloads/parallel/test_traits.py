"""Traits of a candidate's code: the trace of the plain layout finds them, and plans are refused in its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.tracing.tracer import trace
from workloads.protocol import Chain, Context, Divided, Phase, Workload
from workloads.refusals import WorkloadError
from workloads.sandbox.recipe import recipe_of

FSDP, REPLICAS, ZERO1 = Layout(dp_shard=2), Layout(dp_replicate=2), Layout(dp_replicate=2, zero1=True)
ADASUM, ACCUMULATING = Layout(dp_replicate=2, adasum=True), Layout(accumulate=True)
SLABS = Layout(spatial=2)


class Plain(Workload):
    num_train = num_eval = 16

    def build_model(self) -> Any:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.sin(indices[:, None] + torch.arange(4.0))

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean()

    def evaluate(self, model: nn.Module, batch: Tensor) -> Any:
        return {"loss": (model(batch) - batch).square().flatten(1).mean(1)}

    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class Phased(Plain):
    def phases(self) -> Sequence[Phase]:
        return [Phase("all", lambda model, batch: model(batch).square().mean(), Plain.optimizer.__get__(self))]


class Several(Plain):
    def optimizer(self, model: Any) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]


class Clipping(torch.optim.Optimizer):
    """Steps of the same length over all parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.stack([parameter.grad.norm() for parameter in parameters]).norm()
        for parameter in parameters:
            parameter.sub_(parameter.grad / norm, alpha=0.01)


class Own(Plain):
    def optimizer(self, model: nn.Module) -> Any:
        return Clipping(model.parameters())


class Whole(Plain):
    def optimizer(self, model: nn.Module) -> Any:
        return torch.optim.Rprop(model.parameters())


class Sparse(Plain):
    def build_model(self) -> Any:
        return nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(torch.zeros(len(batch), dtype=torch.long)).square().mean()

    def evaluate(self, model: nn.Module, batch: Tensor) -> Any:
        return {"loss": model(torch.zeros(len(batch), dtype=torch.long)).square().mean(1)}


class Tabled(Sparse):
    def build_model(self) -> Any:
        model = super().build_model()
        model.divided = Divided(("0",))
        return model


class Listed(Plain):
    def build_model(self) -> Any:
        model = super().build_model()
        model.weights = [layer.weight for layer in model]
        return model


class Queue(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("queue", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.queue.copy_(x[0])  # type: ignore[operator]
        return super().forward(x)


class Queued(Plain):
    def build_model(self) -> Any:
        return nn.Sequential(Queue())


class Count(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)  # type: ignore[operator]
        return super().forward(x)


class Counted(Plain):
    def build_model(self) -> Any:
        return nn.Sequential(Count())


class Penalised(Plain):
    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        inputs = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).square().sum(), inputs, create_graph=True)
        return slope.square().mean()


class Sequences(Plain):
    def build_model(self) -> Any:
        model = super().build_model()
        model.spatial = Context(dims=(1,))
        return model

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.sin(indices[:, None, None] + torch.arange(16.0).view(4, 4))

    eval_batch = train_batch


class Summarized(Sequences):
    def evaluate(self, model: nn.Module, batch: Tensor) -> Any:
        return {}, model(batch)

    def summarize(self, outputs: Any) -> Any:
        return {"mean": outputs.mean()}


class Shown(Sequences):
    def illustrate(self, model: nn.Module, step: int) -> None:
        model(torch.zeros(1, 4))


class TwoBlocks(Chain):
    enters, leaves = (), ()

    def __init__(self, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.blocks = blocks

    def enter(self, x: Tensor) -> Any:
        return x

    def leave(self, x: Tensor) -> Tensor:
        return x

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, 4


class Cut(Own):
    def build_model(self) -> Any:
        return TwoBlocks(nn.ModuleList(super().build_model()))


class Turned(Plain):
    def build_model(self) -> Any:
        model = super().build_model()
        model.turn = nn.Parameter(torch.ones(1, dtype=torch.complex64))
        return model

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        return super().loss(model, batch) + model.turn.abs().sum()


CASES: Sequence[tuple[type[Workload], Sequence[str], Layout, Any]] = (
    (Plain, (), FSDP, {}),
    (Phased, ("has_phases",), ZERO1, {}),
    (Several, ("has_several_optimizers",), ZERO1, {}),
    (Own, ("has_own_optimizer",), ZERO1, {}),
    (Cut, ("has_own_optimizer",), Layout(pp=2, num_micro_batches=2), {}),
    (Whole, ("updates_whole_parameters",), FSDP, {}),
    (Sparse, ("has_sparse_gradients",), REPLICAS, {}),
    (Tabled, ("has_sparse_tables",), REPLICAS, {}),
    (Tabled, ("has_sparse_tables",), Layout(dp_replicate=2, divided=True), {}),
    (Listed, ("needs_one_rank",), FSDP, {}),
    (Queued, ("keeps_samples", "changes_state"), ACCUMULATING, {}),
    (Counted, ("changes_state",), FSDP, {}),
    (Penalised, ("repeats_backward",), FSDP, {}),
    (Summarized, ("summarizes",), SLABS, {}),
    (Shown, ("illustrates",), SLABS, {}),
    (Turned, ("has_complex_copies",), FSDP, {"precision": "bf16-params"}),
)


@pytest.mark.parametrize(("kind", "names", "layout", "params"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_plain_trace_finds_for_what_other_layouts_are_refused(
    kind: type[Workload], names: Sequence[str], layout: Layout, params: Any
) -> None:
    recipe = recipe_of(kind(params))
    traits = trace(recipe, Layout(), 4).traits
    assert tuple(name for name, why in asdict(traits).items() if why) == tuple(names)
    if refusal := traits.refusal(layout):
        with pytest.raises(WorkloadError) as refused:
            trace(recipe, layout, 4)
        assert str(refused.value) == refusal
    else:
        trace(recipe, layout, 4)
