"""Each phase updates its own parameters in its turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from estimators.model import Layout
from workloads.protocol import Phase, Workload
from workloads.refusals import WorkloadError, WrongResult
from workloads.training.step import train_step
from workloads.training.updates.update import make_optimizer, updates_of


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)


class Turns(Workload):
    num_train = num_eval = 8

    def __init__(self, phases: Callable[[], Sequence[Any]]) -> None:
        super().__init__({})
        self._phases = phases

    def build_model(self) -> nn.Module:
        return Pair()

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        raise AssertionError("each phase has a loss of its own")

    def phases(self) -> Sequence[Phase]:
        return self._phases()

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.ones(len(indices), 2)

    eval_batch = train_batch

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"loss": batch[:, 0]}


def loss(model: Any, batch: Tensor) -> Tensor:
    return (model.a(batch) + model.b(batch)).mean()


def of(*names: str) -> Callable[[Any], Optimizer]:
    return lambda model: SGD([parameter for name in names for parameter in getattr(model, name).parameters()], lr=1.0)


def test_each_phase_updates_its_own_parameters_in_every_such_step() -> None:
    workload = Turns(lambda: [Phase("first", loss, of("a")), Phase("second", loss, of("b"), every=2)])
    model = workload.build_model()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(workload, model, Layout(), None, 4)
    for step in range(3):
        updates_of(model).step = step
        train_step(workload, model, optimizer, [torch.ones(4, 2)], 1)
        assert list(updates_of(model).losses) == (["first"] if step == 1 else ["first", "second"])
    moved = {name: float((before[name] - parameter).detach().mean()) for name, parameter in model.named_parameters()}
    assert moved == pytest.approx({"a.weight": 3.0, "b.weight": 2.0})
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_phase_may_have_its_first_turn_later() -> None:
    workload = Turns(lambda: [Phase("critic", loss, of("a")), Phase("generator", loss, of("b"), every=3, first=2)])
    model = workload.build_model()
    optimizer = make_optimizer(workload, model, Layout(), None, 9)
    turns = []
    for step in range(9):
        updates_of(model).step = step
        train_step(workload, model, optimizer, [torch.ones(4, 2)], 1)
        turns += [step] * ("generator" in updates_of(model).losses)
    assert turns == [2, 5, 8]
    assert [workload.phases()[1].turns_before(step) for step in (0, 2, 3, 5, 6, 9)] == [0, 0, 1, 1, 2, 3]


def test_a_phase_may_clip_its_gradients_by_itself() -> None:
    workload = Turns(lambda: [Phase("first", loss, of("a"), clip_norm=0.5), Phase("second", loss, of("b"))])
    model = workload.build_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train_step(workload, model, make_optimizer(workload, model, Layout(), None, 4), [torch.ones(4, 2)], 1)
    moved = [(old - new).detach().norm() for old, new in zip(before, model.parameters(), strict=True)]
    assert [float(norm) for norm in moved] == pytest.approx([0.5, 2**0.5])


class Together(Turns):
    """One loss, and an optimizer for each part."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return loss(model, batch)

    def optimizer(self, model: nn.Module) -> Any:
        return [of(*names)(model) for names in self.params["parts"]]


def together(*parts: str) -> Together:
    workload = Together(list)
    workload.params = {"parts": parts}
    return workload


def test_several_optimizers_of_one_loss_update_together() -> None:
    workload = together("a", "b")
    workload.params = {**workload.params, "clip_norm": 1.0}
    model = workload.build_model()
    before = torch.cat([parameter.detach().clone() for parameter in model.parameters()])
    optimizer = make_optimizer(workload, model, Layout(), None, 4)
    train_step(workload, model, optimizer, [torch.ones(4, 2)], 1)
    moved = before - torch.cat([parameter.detach() for parameter in model.parameters()])
    torch.testing.assert_close(moved, torch.full((2, 2), 0.5))  # the norm of all gradients together is clipped
    assert len(optimizer.param_groups) == 2


def test_optimizers_that_cannot_update_together_are_refused_in_words() -> None:
    for workload, layout, words in (
        (together("a", "ab"), Layout(), "optimizer 1 and optimizer 2 both train a.weight"),
        (
            together("a", "b"),
            Layout(dp_replicate=2, zero1=True),
            "several optimizers, and ZeRO-1 divides the updates",
        ),
        (together(), Layout(), "instead of a torch optimizer, or a list of them"),
    ):
        with pytest.raises((WrongResult, WorkloadError), match=words):
            make_optimizer(workload, workload.build_model(), layout, None, 4)


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([Phase("first", loss, of())], "phase 'first' trains no parameter: give its optimizer"),
        (
            [Phase("first", loss, of("a")), Phase("second", loss, of("a", "b"))],
            "phase 'first' and phase 'second' both train a.wei",
        ),
        ([Phase("first", loss, of("a")), Phase("first", loss, of("b"))], "names its phases 'first', 'first'"),
        ([Phase("first", loss, of("a"), every=0)], "gives phase 'first' every=0: count steps"),
        ([Phase("first", loss, of("a"), first=-1)], "gives phase 'first' first=-1: count steps, from 0"),
        ([Phase("first", loss, of("a"), clip_norm=0.0)], "gives phase 'first' clip_norm=0.0: give a number above 0"),
        ([("first", loss, of("a"))], "instead of a phase"),
    ],
)
def test_phases_that_cannot_be_used_are_refused_in_words(phases: list[Any], words: str) -> None:
    workload = Turns(lambda: phases)
    with pytest.raises(WrongResult, match=words):
        make_optimizer(workload, workload.build_model(), Layout(), None, 4)
