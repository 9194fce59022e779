"""AdaScale's gain, its count of steps, and its state under every plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD

from estimators.model import Layout, Plan
from estimators.tracing.tracer import trace_peak
from tests.workloads.training.test_runtime import soak
from tests.workloads.training.updates.test_every_plan import USER
from workloads.loading import load_workload
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.parallel.optimizers.zero1 import ZeroOptimizer
from workloads.sandbox.recipe import recipe_of
from workloads.training.checkpoints import checkpoint
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.data.order import SampleOrder
from workloads.training.updates.adascale import AdaScale, gain_of

SIZES = {"depth": 2, "width": 32, "heads": 2, "length": 8}
PARAMS = {**SIZES, "batch": 16, "base_batch": 4, "scale_lr": "adascale", "optimizer": "SGD", "lr": 0.2}
ONE = Plan(16)
PLANS = [
    Plan(2, 4, dp_shard=2, recompute=True),
    Plan(8, dp_replicate=2, zero1=True),
    Plan(4, 4, pp=2),
    Plan(8, dp_shard=2, tp=2, sequence_parallel=True),
]


@pytest.mark.parametrize(("variance", "square", "gain"), [(0.0, 1.0, 1.0), (1.0, 0.0, 8.0), (1.0, 1.0, 4.5), (0, 0, 1)])
def test_the_gain_is_1_without_noise_and_the_scale_with_noise_alone(
    variance: float, square: float, gain: float
) -> None:
    assert gain_of(8.0, variance, square) == gain


def test_the_gain_is_that_of_fairscale() -> None:
    assert ZeroOptimizer is not None  # the import of its module silences fairscale's warnings
    from fairscale.optim.adascale import AdaScale as Fairscale

    theirs = Fairscale(SGD([torch.nn.Parameter(torch.ones(2))], 0.1), world_size=4, scale=6.0)
    theirs._state["grad_var_avg"], theirs._state["grad_sqr_avg"] = np.array([3.0]), np.array([0.7])
    assert gain_of(6.0, 3.0 / 6.0, 0.7) == pytest.approx(theirs.gain())


@pytest.mark.parametrize("noise", [0.0, 1.0, 20.0])
def test_the_gain_of_consecutive_gradients_is_that_of_their_distribution(noise: float) -> None:
    """Gradients with known mean and variance: σ² = scale × num × noise², μ² = num."""
    scale, num = 8.0, 400
    scaling, draws = AdaScale(4, scale), torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(num))
    for _ in range(60):
        weight.grad = 1.0 + noise * torch.randn(num, generator=draws)
        scaling.measure([weight], None)
    expected = gain_of(scale, num * noise**2, num)
    assert scaling.gain == pytest.approx(expected, rel=0.1)


def curve(ranks: Any, plan: Plan, params: dict[str, Any] = PARAMS, **more: Any) -> list[Any]:
    return list(ranks.curve(plan, **{"steps": 15, "report_every": 5, "params": params, **USER, **more}))


@pytest.fixture(scope="module")
def alone(ranks: Any) -> list[Any]:
    """Reports of one rank."""
    return curve(ranks, ONE)


@pytest.mark.parametrize("plan", [PLANS[0], *map(soak, PLANS[1:])], ids=str)
@pytest.mark.full
def test_every_plan_trains_the_same_curve_also_after_a_resume(
    ranks: Any, alone: list[Any], tmp_path: Path, plan: Plan
) -> None:
    assert [step for step, _ in alone] == [5, 10, 15]
    stopped = ranks.train(plan, 15, report_every=5, params=PARAMS, **USER, checkpoint_root=str(tmp_path))
    assert stopped[0]["reports"] == [[step, pytest.approx(values, abs=1e-5)] for step, values in alone]
    assert stopped[0]["asked"] < 15  # steps that counted as more than one
    assert stopped[0]["checkpoints"][0] == 5
    start = stopped[0]["checkpoints"][-2:][0]  # the last two are kept; how many follow step 5 depends on the clock
    resumed = curve(ranks, ONE, checkpoint_root=str(tmp_path), resume_step=start)
    assert resumed == [(step, pytest.approx(values, abs=1e-5)) for step, values in alone if step > start]


def test_a_step_that_counts_as_several_is_reported_for_each(ranks: Any) -> None:
    (answer,) = ranks.train(ONE, 8, report_every=1, params=PARAMS, **USER)
    assert [step for step, _ in answer["reports"]] == list(range(1, 9)) and answer["asked"] < 8


def test_without_a_larger_batch_nothing_changes(ranks: Any) -> None:
    usual = {name: value for name, value in PARAMS.items() if name not in ("scale_lr", "base_batch")}
    assert curve(ranks, ONE, {**PARAMS, "base_batch": 16}) == curve(ranks, ONE, usual)


def test_a_batch_that_grows_at_a_resume_continues_with_the_next_samples(tmp_path: Path, ranks: Any) -> None:
    small = {**PARAMS, "batch": 4}
    ranks.train(Plan(4), 5, report_every=5, params=small, **USER, checkpoint_root=str(tmp_path))
    assert checkpoint.progress_at(tmp_path, CheckpointName(1, 5)) == (5, 20)
    resumed = curve(ranks, ONE, checkpoint_root=str(tmp_path), resume_step=5)
    assert [step for step, _ in resumed] == [10, 15]
    workload = load_workload(USER["workload"], Path(USER["code_dir"]))(PARAMS)
    following = SampleOrder(workload, 0, 20 - 5 * 16).places(5, 16)[:, 1]
    assert following.tolist() == list(range(20, 36))


def test_a_batch_below_the_base_is_refused(ranks: Any) -> None:
    (answer,) = ranks.train(ONE, 4, params={**PARAMS, "base_batch": 32}, **USER)
    assert "batches of at least base_batch, which is 32" in answer["message"]


def test_the_gradient_of_the_step_before_is_held_and_predicted() -> None:
    params = {"depth": 2, "width": 64, "context": 16}
    plain = trace_peak(recipe_of(StdlibGpt(params)), Layout(), 1).parts_at(1)
    scaled = trace_peak(recipe_of(StdlibGpt({**params, "scale_lr": "adascale"})), Layout(), 1).parts_at(1)
    more = scaled["optimizer"] - plain["optimizer"]
    assert more == pytest.approx(plain["parameters"], rel=0.01)
