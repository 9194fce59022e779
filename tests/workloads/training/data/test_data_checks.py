"""Mistakes in the methods that give data: one clear error each, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from workloads.loading import load_workload
from workloads.protocol import Workload
from workloads.refusals import WorkloadError, WrongResult, explain
from workloads.training.data.data_checks import expect_data, expect_order, expect_samples

DATA = torch.arange(6.0)[:, None]


class Good(Workload):
    build_model = loss = evaluate = lambda *_: None  # type: ignore[assignment]

    def dataset(self, split: Literal["train", "eval"]) -> Any:
        return DATA


class Endless(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        yield 0.0


class Listed(Endless):
    def __len__(self) -> int:
        return 1


def workload_of(**members: Any) -> Workload:
    workload: Workload = type("Made", (Good,), members)({})
    return workload


def given(dataset: Any) -> Any:
    return lambda self, split: dataset


def test_a_data_set_gives_the_numbers_of_samples() -> None:
    workload = workload_of()
    expect_data(workload)
    expect_samples(workload)
    assert (workload.num_train, workload.num_eval) == (6, 6)
    workload.num_train = 4  # type: ignore[misc]
    assert workload.num_train == 4
    assert workload.train_batch(torch.tensor([2, 0])).tolist() == [[2.0], [0.0]]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"dataset": given([])}, r'dataset\("train"\) has no samples'),
        ({"dataset": given(None)}, "returns None"),
        ({"dataset": given(Endless())}, r'dataset\("train"\) and dataset\("eval"\) has no length: give the data set'),
        ({"dataset": given(DataLoader(TensorDataset(DATA)))}, "returns a DataLoader"),
        ({"dataset": given(Listed()), "order": lambda *_: [0]}, "can only be read one sample after another, so order"),
        ({"dataset": given(Listed()), "num_workers": 2}, "each worker would read all of it"),
        ({"train_batch": lambda self, indices: DATA}, "defines dataset and train_batch: remove one"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"num_workers": True}, "num_workers is True"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"lengths": lambda self, split: [1]}, "returns 1 lengths"),
        ({"order": lambda self, epoch, generator: ["a"]}, "returns list"),
    ],
)
def test_a_mistake_is_named(members: dict[str, Any], words: str) -> None:
    with pytest.raises((WorkloadError, WrongResult), match=words):
        expect_data(workload_of(**members))


def test_methods_that_only_data_sets_have_are_refused_without_one() -> None:
    class ByIndex(Good):
        num_train = num_eval = 6
        dataset = Workload.dataset
        train_batch = eval_batch = lambda self, indices: DATA[indices]

    expect_data(ByIndex({}))
    for name, value, words in (
        ("augment", lambda *_: 0, "augment, but no dataset"),
        ("num_workers", 2, "only the samples of a dataset"),
    ):
        with pytest.raises(WorkloadError, match=words):
            expect_data(type("Made", (ByIndex,), {name: value})({}))


def test_an_epoch_has_the_samples_of_a_step() -> None:
    workload = workload_of(order=lambda self, epoch, generator: [1, 2, 3])
    expect_order(workload, 2)
    assert [workload.epoch(step) for step in range(5)] == [0, 0, 1, 1, 2]
    with pytest.raises(WrongResult, match="returns 3 indices, but a step has 4 samples"):
        expect_order(workload, 4)


def test_samples_that_cannot_be_stacked_ask_for_a_collate() -> None:
    workload = workload_of(dataset=given([torch.zeros(2), torch.zeros(3)]))
    with pytest.raises(RuntimeError) as caught:
        expect_samples(workload)
    assert "→ define collate, which pads them to one size" in explain(caught.value, None)
    with pytest.raises(WrongResult, match="gives a batch that is dict: make batches of tensors"):
        expect_samples(workload_of(collate=lambda self, samples: {"size": 1}))


def test_a_class_without_any_data_is_refused_when_it_is_loaded(tmp_path: Any) -> None:
    text = "from workloads.protocol import Workload\nclass Net(Workload):\n    build_model = loss = evaluate = None\n"
    (tmp_path / "net.py").write_text(text)
    with pytest.raises(WorkloadError, match=r"define eval_batch, train_batch; .* it may define dataset"):
        load_workload("net.py:Net", tmp_path)
