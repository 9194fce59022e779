"""Metrics are means over all samples, and what cannot be averaged is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from workloads.refusals import WorkloadError
from workloads.training.metrics import Sums, common_names

ALL = torch.ones(2, dtype=torch.bool)


def test_samples_that_only_fill_up_a_batch_do_not_count() -> None:
    sums = Sums()
    sums.add({"loss": torch.tensor([1.0, 2.0])}, ALL)
    sums.add({"loss": torch.tensor([4.0, float("nan")])}, torch.tensor([True, False]))
    assert sums.of(["loss", "of another rank"]).tolist() == [[7.0, 0.0], [3.0, 0.0]]


def test_a_pair_is_divided_by_its_own_counts() -> None:
    sums = Sums()
    for mask in (ALL, torch.tensor([True, False])):
        sums.add({"loss": (torch.tensor([1.0, 2.0]), torch.tensor([4, 8]))}, mask)
    assert sums.of(["loss"]).tolist() == [[4.0], [16.0]]
    with pytest.raises(WorkloadError, match="a metric as a pair for every batch, or for none"):
        sums.add({"loss": torch.tensor([1.0, 2.0])}, ALL)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (0.5, "must return a dictionary of metrics, got float"),
        ([("loss", torch.zeros(2))], "got list"),
        ({"loss": 0.5}, "metric 'loss' with one value per sample, shape [2], got a float: return a tensor"),
        ({"loss": torch.zeros(())}, "shape [2], got []: do not average over the samples"),
        ({1: torch.zeros(2)}, "evaluate names a metric 1: name metrics by text"),
        ({"loss": torch.zeros(2, dtype=torch.complex64)}, "got complex numbers: return their real parts"),
        ({"loss": (torch.zeros(2), 2)}, "shape [2], got a int: return a tensor"),
        ({"loss": (torch.zeros(2), torch.zeros(()))}, "shape [2], got []"),
        ({"loss": (torch.zeros(2),)}, "or a pair of totals and counts, got 1 values"),
    ],
)
def test_what_cannot_be_averaged_is_refused_in_words(metrics: Any, said: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        Sums().add(metrics, ALL)
    assert said in str(refused.value)


@pytest.mark.parametrize(("then", "odd"), [({}, "hard"), ({"loss": ALL, "easy": ALL, "hard": ALL}, "easy")])
def test_a_metric_that_some_batches_lack_is_refused(then: dict[str, Tensor], odd: str) -> None:
    sums = Sums()
    sums.add({"loss": ALL, "hard": ALL}, ALL)
    with pytest.raises(WorkloadError, match=f"same metrics for every batch, but {odd}"):
        sums.add(then, ALL)


def test_ranks_must_have_the_same_metrics_unless_they_have_none() -> None:
    assert common_names([[], [], ["accuracy", "loss"], ["accuracy", "loss"]]) == ["accuracy", "loss"]
    with pytest.raises(WorkloadError, match="zzz is there only on rank 0"):
        common_names([["accuracy", "zzz"], ["accuracy"]])
    with pytest.raises(WorkloadError, match="aaa is there only on rank 1"):
        common_names([["accuracy"], ["aaa", "accuracy"]])


def test_no_metric_at_all_is_refused() -> None:
    with pytest.raises(WorkloadError, match="evaluate returned no metric"):
        common_names([[], []])
