"""Buffers that forward passes change are those of one process after every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from workloads.parallel.forward_state.state import attach_state
from workloads.parallel.recompute import recomputed
from workloads.refusals import WorkloadError


class InPlace(nn.Module):
    """Changes its buffer in place in every forward pass; those below keep the same value in other ways."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.value.mul_(0.5).add_(1.0)
        return x * self.value


class ByData(InPlace):
    """Replaces the data of its buffer."""

    def forward(self, x: Tensor) -> Tensor:
        self.value.data = self.value.data * 0.5 + 1.0
        return x * self.value


class Reassigned(InPlace):
    """Assigns another tensor to its buffer."""

    def forward(self, x: Tensor) -> Tensor:
        self.value = self.value * 0.5 + 1.0
        return x * self.value


class Unregistered(nn.Module):
    """Assigns another tensor to an attribute that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.value = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.value = self.value * 0.5 + 1.0
        return x * self.value


class Counter(nn.Module):
    """Keeps a Python number."""

    def __init__(self) -> None:
        super().__init__()
        self.value = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.value = self.value * 0.5 + 1.0
        return x * self.value


class Clamped(nn.Module):
    """Changes its parameter in place."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.value.data.mul_(0.5).add_(1.0)
        return x * self.value


class Seen(InPlace):
    """Notes how many dispatch modes are active forward, and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        self.modes.append(torch._C._len_torch_dispatch_stack())
        out.register_hook(lambda gradient: self.modes.append(torch._C._len_torch_dispatch_stack()))
        return out


MODELS = [InPlace, ByData, Reassigned, Unregistered, Counter, Clamped]


def value_of(model: Any) -> float:
    return float(torch.as_tensor(model.value).detach())


@pytest.mark.parametrize(
    ("layout", "modes"), [(Layout(), [1, 0, 1, 0, 0]), (Layout(dp_shard=2), [1, 1, 1, 0, 0])], ids=["plain", "FSDP"]
)
def test_the_first_pass_is_not_watched_backward_so_that_gradients_are_added_in_place(
    layout: Layout, modes: list[int]
) -> None:
    model = Seen()
    state = attach_state(model, layout, None)
    for _ in range(2):
        with state.micro_batch(None, 1):
            model(torch.ones(2, requires_grad=True)).sum().backward()
            if len(model.modes) == 2:
                model.modes.append(torch._C._len_torch_dispatch_stack())
    assert model.modes == modes


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_of_several_micro_batches_changes_state_once(kind: type[nn.Module]) -> None:
    model = kind()
    state = attach_state(model, Layout(), None)
    outputs = []
    for _ in range(2):
        for _ in range(3):
            with state.micro_batch(torch.ones(2), 3):
                outputs.append(float(model(torch.ones(2)).sum().detach()))
        state.end_step()
    assert value_of(model) == 1.5
    assert outputs == [2.0] * 3 + [3.0] * 3  # all micro-batches of a step see the same state


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("selective", [False, True])
def test_recompute_changes_state_once_and_sees_what_the_first_pass_saw(kind: type[nn.Module], selective: bool) -> None:
    model = nn.Sequential(kind(), nn.Linear(2, 2))
    state = attach_state(model, Layout(), None)
    model[0].forward = recomputed(model[0], state, selective=selective)
    x = torch.ones(2, requires_grad=True)
    for expected in (1.0, 1.5):
        with state.micro_batch(x, 1):
            x.grad = None
            model[0](x).sum().backward()
        state.end_step()
        assert value_of(model[0]) == expected
        assert x.grad is not None and x.grad.tolist() == [expected] * 2


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("trained_before", [False, True])
def test_evaluation_changes_nothing(kind: type[nn.Module], trained_before: bool) -> None:
    model = kind()
    state = attach_state(model, Layout(), None)
    if trained_before:
        with state.micro_batch(torch.ones(2), 1):
            model(torch.ones(2))
        state.end_step()
    before = value_of(model)
    for _ in range(2):
        with state.unchanged(torch.ones(2)), torch.no_grad():
            model(torch.ones(2))
    assert value_of(model) == before


def test_running_statistics_are_the_mean_over_micro_batches() -> None:
    model = nn.BatchNorm1d(1, momentum=0.5)
    state = attach_state(model, Layout(), None)
    for value in (0.0, 4.0):
        samples = torch.full((2, 1), value)
        with state.micro_batch(samples, 2):
            model(samples)
    state.end_step()
    assert model.running_mean is not None and model.num_batches_tracked is not None
    assert model.running_mean.item() == 1.0
    assert model.num_batches_tracked.item() == 1


class Queue(nn.Module):
    """Copies its samples into a buffer."""

    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.queue.copy_(x.detach())
        return x.sum()


class ReassignedQueue(Queue):
    """Assigns a buffer that depends on its samples."""

    def forward(self, x: Tensor) -> Tensor:
        self.queue = self.queue * 0.5 + x.detach()
        return x.sum()


@pytest.mark.parametrize("kind", [Queue, ReassignedQueue])
def test_state_made_of_samples_is_refused_where_a_batch_is_divided(kind: type[nn.Module]) -> None:
    batch = torch.ones(2)
    model = nn.Sequential(kind())
    state = attach_state(model, Layout(), None)
    with state.micro_batch(batch, 1):
        model(batch)
    state.end_step()  # one rank with one micro-batch may
    for layout, num in ((Layout(), 2), (Layout(dp_replicate=2), 1)):
        model = nn.Sequential(kind())
        with pytest.raises(WorkloadError, match=r"changes 0\.queue by the samples"):
            with attach_state(model, layout, None).micro_batch(batch, num):
                model(batch)


def test_fsdp_is_refused_for_a_model_that_changes_parameters() -> None:
    model = nn.Sequential(Clamped())
    state = attach_state(model, Layout(dp_shard=2), None)
    with pytest.raises(WorkloadError, match=r"changes the parameter 0\.value, and FSDP frees.*dp_replicate"):
        with state.micro_batch(torch.ones(2), 1):
            model(torch.ones(2))


def test_fsdp_is_refused_for_gradients_of_gradients() -> None:
    weight = torch.ones(2, requires_grad=True)
    with pytest.raises(WorkloadError, match=r"takes gradients of gradients.*use plans without FSDP"):
        with attach_state(nn.Linear(2, 2), Layout(dp_shard=2), None).micro_batch(torch.ones(2), 1):
            torch.autograd.grad(weight.square().sum(), weight, create_graph=True)


def test_results_that_a_pass_leaves_in_attributes_are_kept() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            self.auxiliary = y.square().mean()
            return y

    model = Auxiliary()
    state = attach_state(model, Layout(dp_replicate=2), None)
    for _ in range(2):
        for _ in range(2):
            with state.micro_batch(torch.ones(1, 2), 2):
                (model(torch.ones(1, 2)).sum() + model.auxiliary).backward()
        state.end_step()


@pytest.mark.parametrize("selective", [False, True])
def test_recompute_sees_what_an_earlier_call_of_the_same_pass_has_left(selective: bool) -> None:
    class Neuron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.potential: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            charged: Tensor = self.linear(x).tanh()
            self.potential = charged if self.potential is None else charged * self.potential.sigmoid()
            return self.potential * 2

    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = Neuron()
        state = attach_state(model, Layout(recompute=recompute, selective=recompute and selective), None)
        if recompute:
            model.forward = recomputed(model, state, selective=selective)  # type: ignore[method-assign]
        for number in range(2):
            x = torch.full((1, 2), 1.0 + number)
            with state.micro_batch(x, 2):
                model.potential = None
                torch.stack([model(x * time) for time in range(4)]).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))  # type: ignore[union-attr]
    plain, recomputed_again = gradients
    assert torch.equal(plain, recomputed_again)
