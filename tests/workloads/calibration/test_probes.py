"""Steps that are timed in rounds, with clocks that say what the tests want."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from estimators.work import Work
from workloads.calibration.probes import (
    NUM_STEPS,
    ON_CPU,
    QUICK_ON_CPU,
    Convolutions,
    GpuTime,
    Probe,
    ProcessorTime,
    Transformer,
    apart,
    steps,
)

CPU = torch.device("cpu")


class CountingClock(GpuTime):
    """Pretends that every operation takes a second."""

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        return float(self.repeats)


class Told:
    """As if whole steps and operations took these seconds, one after another."""

    def __init__(self, steps: Iterable[float], operations: Iterator[float] | None = None) -> None:
        self._steps, self._operations = iter(steps), operations or iter(float, 1)

    def seconds(self, run: Callable[[], object]) -> float:
        return next(self._steps)

    def sample(self, operation: Callable[[], Any]) -> tuple[float, Any]:
        return next(self._operations), operation()


def step() -> None:
    torch.relu(torch.ones(4, 8) @ torch.ones(8, 2))


def measured(num_rounds: int, *taken: float, operations: Iterator[float] | None = None) -> Probe:
    probe = Probe(step, Told(taken, operations))
    for _ in range(num_rounds):
        probe.measure()
    return probe


def test_the_clock_of_a_gpu_gives_what_the_operation_gave_and_the_seconds_of_one() -> None:
    done: list[int] = []
    seconds, out = CountingClock().sample(partial(done.append, 1))
    assert (seconds, out, len(done)) == (1.0, None, 1 + GpuTime.repeats)


def test_a_probe_counts_each_operation_once_however_often_it_is_repeated() -> None:
    once, repeated = (Probe(step, clock) for clock in (ProcessorTime(), CountingClock()))
    for probe in (once, repeated):
        probe.measure()
    assert repeated.work == once.work != Work()
    assert once.work.flops == 2 * 4 * 8 * 2, "of the product"
    assert {sample[-1] for _, sample in repeated.samples} == {1.0}


def test_an_operation_takes_the_median_of_its_rounds_and_work_is_that_of_one_step() -> None:
    num = len(measured(1, *[1.0] * NUM_STEPS).samples)
    times = iter([5.0] * num + [1.0] * num + [2.0] * num)
    probe = measured(3, *[1.0] * 3 * NUM_STEPS, operations=times)
    assert [sample[-1] for _, sample in probe.samples] == [2.0] * num
    assert probe.work == measured(1, *[1.0] * NUM_STEPS).work


def test_a_step_takes_the_median_of_all_and_a_round_that_of_its_own() -> None:
    assert NUM_STEPS == 2
    probe = measured(3, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
    assert (probe.seconds, probe.rounds) == (4.0, [1.5, 4.0, 20.0])


def test_rounds_are_apart_by_the_slowest_over_the_fastest_of_all_probes_together() -> None:
    quick, slow = measured(2, 1.0, 1.0, 1.2, 1.2), measured(2, 100.0, 100.0, 120.0, 120.0)
    assert apart([quick, slow]) == apart([quick]) == pytest.approx(0.2)
    assert apart([measured(1, 1.0, 7.0)]) == 0.0
    unlike = [measured(2, 1.0, 1.0, 9.0, 9.0), *(measured(2, 1.0, 1.0, 1.0, 1.0) for _ in range(2))]
    assert apart(unlike) == 0.0, "the middle probe counts"


def test_the_quick_steps_are_some_of_all_and_none_is_in_16_bits_on_a_cpu() -> None:
    quick: tuple[list[Any], ...] = QUICK_ON_CPU
    every: tuple[list[Any], ...] = ON_CPU
    for few, all_of_them in zip(quick, every, strict=True):
        assert set(few) < set(all_of_them)
    torch.manual_seed(0)
    assert len(list(steps(CPU, quick=True))) == sum(map(len, quick))


def test_a_step_trains_and_leaves_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[nn.Module] = []
    move = nn.Module.to

    def kept(model: nn.Module, *arguments: Any) -> Any:
        built.append(model)
        return move(model, *arguments)

    monkeypatch.setattr(nn.Module, "to", kept)
    run = next(steps(CPU))
    (model,) = built
    before = [parameter.detach().clone() for parameter in model.parameters()]
    run()
    after = list(model.parameters())
    assert all(parameter.grad is None for parameter in after)
    assert any(not torch.equal(earlier, other) for earlier, other in zip(before, after, strict=True))


def test_models_have_a_logit_for_each_class() -> None:
    assert Transformer(1, 64, 11)(torch.zeros(3, 5, dtype=torch.int64)).shape == (3, 5, 11)
    assert Convolutions(2, 8)(torch.zeros(3, 3, 16, 16)).shape == (3, 10)
