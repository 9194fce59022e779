"""Metrics of the whole held-out set: each sample once and in order, whatever the plan; mistakes in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAUROC, MulticlassF1Score

from estimators.model import Plan
from workloads.protocol import Workload
from workloads.refusals import WorkloadError, WrongResult, explain
from workloads.sandbox import dry_run
from workloads.sandbox.dry_run import MetricFailed, try_candidates
from workloads.training.data.outputs import Collected, contributors, summary
from workloads.training.metrics import split_evaluation
from workloads.training.samples import evaluation_slices

NUM = 40
POINTS = torch.randn(NUM, 3, generator=torch.Generator().manual_seed(0))
CLASSES = (POINTS[:, 0] > 0).long() + (POINTS[:, 1] > 1).long()


class Scored(Workload):
    num_train = num_eval = NUM

    def build_model(self) -> nn.Module:
        return nn.Linear(3, 3)

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return POINTS[indices], CLASSES[indices]

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> Any:
        return {}, {"preds": model(batch[0]), "target": batch[1], "points": batch[0]}

    def metrics(self) -> Any:
        return {"f1": MulticlassF1Score(3)}

    def summarize(self, outputs: Any) -> Mapping[str, Any]:
        assert torch.equal(outputs["points"], POINTS)
        return {"auc": MulticlassAUROC(3)(outputs["preds"], outputs["target"]), "mean": outputs["preds"].mean()}


def outputs_of(workload: Workload, plan: Plan) -> list[Collected]:
    """What each rank collects with a model that returns its inputs."""
    ranks = []
    for rank in range(plan.world_size):
        collected = Collected(workload)
        for part in evaluation_slices(NUM, plan, rank):
            batch = workload.eval_batch(part.clamp(max=NUM - 1))
            collected.add(workload.evaluate(nn.Identity(), batch)[1], part < NUM)  # type: ignore[index]
        ranks.append(collected)
    return ranks


@pytest.mark.parametrize("plan", [Plan(7), Plan(3, dp_shard=4), Plan(2, 2, dp_replicate=2, tp=2), Plan(3, 3, pp=2)])
def test_outputs_come_together_once_and_in_the_order_of_the_samples(plan: Plan) -> None:
    ranks = outputs_of(Scored({}), plan)
    structure = {"preds": 0, "target": 1, "points": 2}
    outputs = ranks[0]._joined([(structure, ranks[rank]._batches) for rank in contributors(plan)])
    assert torch.equal(outputs["points"], POINTS) and torch.equal(outputs["target"], CLASSES)
    expected = {"f1": float(MulticlassF1Score(3)(POINTS, CLASSES)), "mean": float(POINTS.mean())}
    values = summary(Scored({}), outputs, 0)
    assert {name: values[name] for name in expected} == expected and 0 < values["auc"] < 1


def test_one_rank_of_the_last_stage_contributes_for_each_share() -> None:
    plan = Plan(2, 2, dp_replicate=2, tp=2, pp=2)
    assert len(contributors(plan)) == 2 == plan.num_shares
    assert {plan.coordinate(rank, "pp") for rank in contributors(plan)} == {1}


def test_a_collection_and_a_tuple_of_outputs_work_too() -> None:
    class Collection(Scored):
        summarize = Workload.summarize

        def metrics(self) -> Any:
            return MetricCollection([MulticlassF1Score(3), MulticlassAUROC(3)])

    assert set(summary(Collection({}), (POINTS, CLASSES), 0)) == {"MulticlassF1Score", "MulticlassAUROC"}


def scored(**members: Any) -> Workload:
    workload: Workload = type("Made", (Scored,), members)({})
    return workload


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"metrics": lambda self: {"f1": 3}}, "returns int as 'f1': return a dictionary of torchmetrics"),
        ({"metrics": lambda self: None}, "returns None"),
        ({"summarize": lambda self, outputs: 0.5}, "returns a number: return a dictionary of numbers"),
        ({"summarize": lambda self, outputs: {"auc": outputs["preds"]}}, r"gives a Tensor of shape .* as metric 'auc'"),
        ({"summarize": lambda self, outputs: {0: 1.0}}, "names a metric 0"),
    ],
)
def test_results_that_are_no_metrics_are_refused(members: dict[str, Any], words: str) -> None:
    outputs = {"preds": POINTS, "target": CLASSES, "points": POINTS}
    with pytest.raises(WrongResult, match=words):
        summary(scored(**members), outputs, 0)


def test_outputs_are_tensors_with_an_entry_for_each_sample() -> None:
    counted = torch.ones(4, dtype=torch.bool)
    for wrong, words in (
        ((torch.zeros(3), torch.zeros(4)), r"a tensor of shape \[3\] as outputs\[0\] for 4 samples"),
        ({"boxes": torch.zeros(2, 4)}, r"shape \[2, 4\] as outputs\['boxes'\] for 4 samples.* such as boxes, pad them"),
        ({"preds": [1, 2]}, r"int as outputs\['preds'\]\[0\] for 4 samples"),
        ({}, "outputs without a tensor"),
    ):
        with pytest.raises(WrongResult, match=words):
            Collected(Scored({})).add(wrong, counted)
    unlike = Collected(Scored({}))
    unlike.add(torch.zeros(4, 2), counted)
    unlike.add(torch.zeros(4, 3), counted)
    with pytest.raises(WrongResult, match="sizes differ from batch to batch"):
        unlike.gathered(Plan(4), 0)


def test_outputs_and_what_takes_them_belong_together() -> None:
    values = {"loss": torch.zeros(2)}
    assert split_evaluation(Scored({}), (values, POINTS)) == (values, POINTS)
    with pytest.raises(WorkloadError, match=r"so evaluate must return two things: .*; it returned dict"):
        split_evaluation(Scored({}), values)
    plain = scored(metrics=Workload.metrics, summarize=Workload.summarize)
    assert split_evaluation(plain, values) == (values, None)
    with pytest.raises(WorkloadError, match="neither metrics nor summarize takes outputs"):
        split_evaluation(plain, (values, POINTS))


def test_a_dry_run_names_the_metrics_and_says_which_of_them_cannot_work() -> None:
    class Unscored(Scored):
        def summarize(self, outputs: Any) -> Mapping[str, Any]:
            return {"auc": outputs["logits"]}

    class Undecided(Scored):
        def summarize(self, outputs: Any) -> Mapping[str, Any]:
            raise ValueError("only one class")

    fixed = Scored.summarize
    Scored.summarize = lambda self, outputs: {"auc": 1.0}  # type: ignore[method-assign]
    try:
        assert try_candidates(Scored, [{}], "auc") == [{"read": ["lr", "weight_decay"], "metrics": ["auc", "f1"]}]
    finally:
        Scored.summarize = fixed  # type: ignore[method-assign]
    with pytest.raises(MetricFailed) as caught:
        try_candidates(Unscored, [{}], "auc")
    assert caught.value.__cause__ is not None and "KeyError: 'logits'" in explain(caught.value.__cause__, None)
    unknown = {"read": ["lr", "weight_decay"], "metrics": [], "unsummarized": True}
    assert try_candidates(Undecided, [{}], ["auc"]) == [unknown], "other samples may have both classes"


@pytest.mark.parametrize("error", [ValueError("needs 1500 samples"), IndexError("index 1499 is out of bounds")])
def test_a_metric_that_needs_more_samples_than_a_dry_run_has_is_no_failure(error: Exception) -> None:
    class Needy(Scored):
        def summarize(self, outputs: Any) -> Mapping[str, Any]:
            raise error

        def on_evaluate(self, metrics: Mapping[str, float]) -> None:
            assert metrics["auc"]

    (tried,) = try_candidates(Needy, [{"lr": 0.1}, {"lr": 0.2}], ["auc"])
    assert tried["unsummarized"] and "failed" not in tried and "lr" in tried["read"]


def test_metrics_of_the_whole_set_of_a_large_model_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "MOST_REAL_PARAMETERS", 3)
    (tried,) = try_candidates(Scored, [{}], ["auc"])
    assert tried["unsummarized"], "fake outputs have no values"
