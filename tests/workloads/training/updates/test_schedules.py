"""A stored scheduler continues with the same rates."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer, lr_scheduler

from workloads.protocol import Workload
from workloads.refusals import WorkloadError, WrongResult
from workloads.training.updates.schedules import Schedules, expect_resumable

Make = Callable[[Optimizer], Any]


def scheduled(make: Make) -> Workload:
    """Stands in for a workload with the scheduler that ``make`` returns."""
    return cast(Workload, SimpleNamespace(scheduler=lambda optimizer, steps: make(optimizer)))


def optimizer() -> SGD:
    return SGD([nn.Parameter(torch.ones(2))], lr=0.5, momentum=0.9)


def rates(schedules: Schedules, stepped: Optimizer, num: int) -> list[float]:
    values = []
    for _ in range(num):
        stepped.step()
        schedules.step()
        values.append(stepped.param_groups[0]["lr"])
    return values


def counting(optimizer: Optimizer) -> lr_scheduler.LRScheduler:
    calls = [0]

    def rate(step: int) -> float:
        calls[0] += 1
        return 1 / calls[0]

    return lr_scheduler.LambdaLR(optimizer, rate)


SCHEDULERS: list[Make] = [
    lambda stepped: lr_scheduler.MultiStepLR(stepped, [2, 5], 0.1),
    lambda stepped: lr_scheduler.CosineAnnealingWarmRestarts(stepped, 3),
    lambda stepped: lr_scheduler.OneCycleLR(stepped, 1.0, total_steps=20),
    lambda stepped: lr_scheduler.CyclicLR(stepped, 0.1, 0.5, step_size_up=3),
    lambda stepped: lr_scheduler.LambdaLR(stepped, lambda step: 0.9**step),
    lambda stepped: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(stepped, 0.9), lr_scheduler.StepLR(stepped, 2)]
    ),
    lambda stepped: lr_scheduler.SequentialLR(
        stepped, [lr_scheduler.LinearLR(stepped, 0.1), lr_scheduler.PolynomialLR(stepped, 9)], [3]
    ),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_stored_scheduler_continues_with_the_same_rates(make: Make) -> None:
    uninterrupted, first_optimizer = optimizer(), optimizer()
    expected = rates(Schedules(scheduled(make), uninterrupted, 20), uninterrupted, 8)
    first = Schedules(scheduled(make), first_optimizer, 20)
    assert rates(first, first_optimizer, 4) == expected[:4]
    second_optimizer = optimizer()
    then = Schedules(scheduled(make), second_optimizer, 20)
    second_optimizer.param_groups[0].update({k: v for k, v in first_optimizer.param_groups[0].items() if k != "params"})
    then.load(first.state())
    assert rates(then, second_optimizer, 4) == expected[4:]
    expect_resumable(scheduled(make), optimizer(), 20)


def test_a_scheduler_that_goes_ahead_has_the_rates_of_its_own_options() -> None:
    make: Make = lambda stepped: lr_scheduler.StepLR(stepped, 2, 0.1)  # noqa: E731
    ahead = optimizer()
    Schedules(scheduled(make), ahead, 20).skip(5)
    assert ahead.param_groups[0]["lr"] == pytest.approx(0.005)


def test_what_cannot_resume_is_refused_in_words() -> None:
    with pytest.raises(WrongResult, match="does not continue after a resume"):
        expect_resumable(scheduled(counting), optimizer(), 20)

    class Keeps(lr_scheduler.LRScheduler):
        def get_lr(self) -> Any:
            self.kept = object()
            return [0.1]

    with pytest.raises(WrongResult, match="a Keeps that cannot be stored in a checkpoint: it holds a object"):
        expect_resumable(scheduled(Keeps), optimizer(), 20)
    with pytest.raises(WrongResult, match="returns a number instead of a scheduler"):
        expect_resumable(scheduled(lambda stepped: 0.1), optimizer(), 20)
    none = Schedules(scheduled(lambda stepped: None), optimizer(), 20)
    with pytest.raises(WorkloadError, match="the checkpoint has 1 schedulers, but scheduler"):
        none.load([{}])


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    other = optimizer()
    with pytest.raises(WrongResult, match="returns a StepLR of another optimizer, whose rates nobody uses"):
        Schedules(scheduled(lambda stepped: lr_scheduler.StepLR(other, 2)), optimizer(), 10)
