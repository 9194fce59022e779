"""Adasum's combination against the formula in numpy, its traced memory, and the plans that a study may choose."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD

from benchmarks.curves.forks import in_forks
from estimators.axes import Spread
from estimators.model import Layout, Plan
from estimators.tracing.tracer import trace, trace_peak
from placement.planning.ways import list_ways
from scamp.workload.seeds import seed_everything
from tests.waiting import PATIENCE_SECONDS
from workloads.loading import load_workload
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.parallel.optimizers import adasum
from workloads.parallel.optimizers.adasum import AdasumOptimizer, combine
from workloads.sandbox.recipe import recipe_of
from workloads.training.samples import batch_indices

pytestmark = pytest.mark.full

SHAPES = [(3, 4), (1,), (5,), (2, 2, 3), (7,)]
USER = {
    "workload": "sequences.py:Sequences",
    "code_dir": str(Path(__file__).parents[4] / "benchmarks" / "features" / "workloads"),
}


def pair(a: Any, b: Any) -> Any:
    """The formula of Maleki et al. for one tensor."""
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def tree(updates: list[Any]) -> Any:
    """Combination of a power of two of updates of one tensor."""
    if len(updates) == 1:
        return updates[0]
    return pair(tree(updates[: len(updates) // 2]), tree(updates[len(updates) // 2 :]))


def drawn(rank: int) -> list[Any]:
    draws = np.random.default_rng(rank)
    return [draws.normal(size=shape) + 0.5 for shape in SHAPES]


def on_rank(rank: int, num: int, folder: Path, bucket_bytes: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    adasum.BUCKET_BYTES = bucket_bytes
    store = dist.FileStore(str(folder / f"{num}-{bucket_bytes}"), num)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num)
    group = dist.group.WORLD
    assert group is not None
    updates = [torch.tensor(values) for values in drawn(rank)]
    combine(updates, group)
    zeros = [torch.zeros(4), torch.ones(4) * rank]
    combine(zeros, group)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 1.0)
    turn = torch.nn.Parameter(torch.ones(1, dtype=torch.complex64))
    turn.grad = torch.tensor([(1.0, 1.0j)[rank % 2]], dtype=torch.complex64)
    AdasumOptimizer(SGD([weight, turn], 0.5), group).step()
    dist.destroy_process_group()
    answer = {"updates": [update.tolist() for update in updates], "zeros": zeros[0].tolist()}
    return {**answer, "weight": weight.tolist(), "turn": torch.view_as_real(turn).tolist()}


@pytest.mark.sample
@pytest.mark.parametrize(("num", "bucket_bytes"), [(2, 2**20), (4, 2**20), (4, 100)])
def test_updates_are_combined_by_the_formula_on_every_rank(num: int, bucket_bytes: int, tmp_path: Path) -> None:
    answers = in_forks([partial(on_rank, rank, num, tmp_path, bucket_bytes) for rank in range(num)], PATIENCE_SECONDS)
    expected = [tree(list(parts)) for parts in zip(*map(drawn, range(num)), strict=True)]
    for answer in answers:
        assert "updates" in answer, answer
        for combined, expected_values in zip(answer["updates"], expected, strict=True):
            np.testing.assert_allclose(combined, expected_values, rtol=1e-12)
        assert answer["updates"] == answers[0]["updates"]  # bit for bit
        assert answer["zeros"] == [0.0] * 4
        assert answer["weight"] == [0.5] * 3  # equal updates: their mean
        assert answer["turn"] == [[0.5, -0.5]]  # orthogonal ones: their sum


def test_replicas_hold_a_copy_of_their_weights_and_two_buckets_while_they_update() -> None:
    recipe = recipe_of(StdlibGpt({"depth": 2, "width": 64, "context": 16}))
    plain = trace_peak(recipe, Layout(), 1).parts_at(1)
    held = trace_peak(recipe, Plan(1, dp_replicate=4, adasum=True).layout, 1).parts_at(1)
    more = sum(held.values()) - sum(plain.values())
    assert plain["parameters"] < more < 2.6 * plain["parameters"]


def test_a_study_chooses_replicas_with_adasum_where_the_candidate_asks_for_it() -> None:
    params = {"depth": 2, "width": 64, "context": 16}
    recipe = recipe_of(StdlibGpt({**params, "reduce": "adasum", "adasum_replicas": 4}))
    divisions = trace(recipe, Layout(), 8).divisions
    assert list_ways(divisions, 2) == [] and divisions.constraints.least_ranks == 4
    inside = {"recompute": False, "selective": False, "co_shard": 1}
    ways = {Spread(**{**way.values, **inside}) for way in list_ways(divisions, 4)}
    assert ways == {Spread(dp_replicate=4, adasum=True)}
    assert divisions.constraints.words == "the model asks for Adasum over 4 whole replicas (reduce: adasum)"
    usual = trace(recipe_of(StdlibGpt(params)), Layout(), 8).divisions
    assert not any(way.adasum for way in list_ways(usual, 4))


@pytest.mark.parametrize("others", [{"dp_shard": 2}, {"tp": 2}, {"pp": 2}, {"zero1": True}])
def test_plans_that_do_not_hold_whole_replicas_are_refused(others: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="whole replicas"):
        Spread(dp_replicate=2, adasum=True, **others) and Layout(dp_replicate=2, adasum=True, **others)
    with pytest.raises(ValueError, match="a power of two, got 3"):
        Layout(dp_replicate=3, adasum=True)


SIZES = {"depth": 2, "width": 32, "heads": 2, "length": 8, "batch": 16, "lr": 1e-2}
ADASUM = {**USER, "params": {**SIZES, "reduce": "adasum", "ema_decay": 0.5, "clip_norm": 1.0}, "steps": 5}
TWO = Plan(8, dp_replicate=2, adasum=True)


def test_replicas_train_the_same_curve_however_they_divide_their_share_and_after_a_resume(
    ranks: Any, tmp_path: Path
) -> None:
    expected = ranks.curve(TWO, **ADASUM)
    assert ranks.curve(Plan(2, 4, dp_replicate=2, adasum=True, recompute=True), **ADASUM) == [
        (step, pytest.approx(values, abs=1e-5)) for step, values in expected
    ]
    ranks.train(TWO, **ADASUM, checkpoint_root=str(tmp_path), stop_after=2)  # the states of Adam differ by now
    resumed = ranks.curve(
        Plan(4, 2, dp_replicate=2, adasum=True), **ADASUM, checkpoint_root=str(tmp_path), resume_step=2
    )
    assert resumed == [(step, pytest.approx(values, abs=1e-5)) for step, values in expected[-len(resumed) :]]


def test_each_replica_steps_from_the_same_weights_with_its_own_optimizer(ranks: Any) -> None:
    params = {**SIZES, "reduce": "adasum"}
    curve = ranks.curve(TWO, **USER, params=params, steps=4, report_every=1)
    workload = load_workload(USER["workload"], Path(USER["code_dir"]))(dict(params))
    seed_everything(0)
    models = [workload.build_model()]
    models.append(deepcopy(models[0]))
    optimizers = [workload.optimizer(model) for model in models]
    for step, (_, values) in enumerate(curve):
        before = [parameter.detach().double().numpy() for parameter in models[0].parameters()]
        halves = batch_indices(workload.num_train, 16, step, 0).chunk(2)
        losses = [workload.loss(model, workload.train_batch(half)) for model, half in zip(models, halves, strict=True)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert values["train_loss"] == pytest.approx(sum(map(float, (loss.detach() for loss in losses))) / 2, abs=1e-5)
        with torch.no_grad():
            for old, weight, other in zip(before, *(model.parameters() for model in models), strict=True):
                new = old + pair(weight.double().numpy() - old, other.double().numpy() - old)
                weight.copy_(torch.tensor(new))
                other.copy_(weight)


def test_a_plan_that_combines_otherwise_than_the_candidate_asks_is_refused(ranks: Any) -> None:
    answers = ranks.train(Plan(8, dp_shard=2), **ADASUM)
    assert answers[0]["error"] == "WorkloadError"
    assert "asks for Adasum over 2 whole replicas (reduce: adasum), and the plan is fsdp2" in answers[0]["message"]
    assert "asks for reduce: mean, and the plan is" in ranks.train(TWO, **USER, params=SIZES)[0]["message"]
