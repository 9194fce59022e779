"""The order of an epoch, and the samples that memory is predicted for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from workloads.protocol import Workload
from workloads.refusals import WrongResult
from workloads.training.data.order import SampleOrder, longest_first
from workloads.training.samples import batch_indices


class Ordered(Workload):
    num_train, num_eval = 10, 4
    build_model = train_batch = eval_batch = loss = evaluate = lambda *_: None  # type: ignore[assignment]

    def order(self, epoch: int, generator: torch.Generator) -> Any:
        return self.params["order"](epoch, generator)


class Shuffled(Ordered):
    order = Workload.order


def ordered(order: Callable[[int, torch.Generator], Any], seed: int = 0) -> SampleOrder:
    return SampleOrder(Ordered({"order": order}), seed)


def test_without_an_order_each_epoch_is_the_known_shuffle() -> None:
    order = SampleOrder(Shuffled({}), 3)
    for step in range(4):
        places = order.places(step, 4)
        assert torch.equal(places[:, 2], batch_indices(10, 4, step, 3))
        assert (places[:, 0] * 10 + places[:, 1]).tolist() == list(range(4 * step, 4 * step + 4))


def test_steps_run_through_the_epochs_of_an_own_order_from_any_step_on() -> None:
    def drawn(epoch: int, generator: torch.Generator) -> list[int]:
        return torch.randint(10, (6,), generator=generator).tolist() if epoch % 2 else list(torch.randperm(6))

    order = ordered(drawn)
    indices = torch.cat([order.places(step, 4)[:, 2] for step in range(6)])
    epochs = [ordered(drawn).epoch(epoch) for epoch in range(4)]
    assert torch.equal(indices, torch.cat(epochs)), "the global generators are seeded too"
    assert torch.equal(ordered(drawn).places(5, 4)[:, 2], indices[20:])
    assert not torch.equal(ordered(drawn, seed=1).epoch(1), epochs[1])


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        (lambda epoch, generator: [0.5], "float32"),
        (lambda epoch, generator: None, "returns None"),
        (lambda epoch, generator: torch.zeros(2, 2, dtype=torch.long), r"shape \[2, 2\]"),
        (lambda epoch, generator: [], "float32|no index"),
        (lambda epoch, generator: [3, 10], "indices from 3 to 10 for epoch 0.*from 0 to 9"),
    ],
)
def test_an_order_that_names_no_samples_is_refused(indices: Any, words: str) -> None:
    with pytest.raises(WrongResult, match=words):
        ordered(indices).epoch(0)


def test_all_epochs_have_one_length() -> None:
    with pytest.raises(WrongResult, match="returns 3 indices for epoch 0, but 4 for epoch 1"):
        ordered(lambda epoch, generator: range(3 + epoch)).places(1, 3)


def test_memory_is_predicted_for_the_longest_samples_that_the_order_can_give() -> None:
    class Lengthy(Ordered):
        def lengths(self, split: str) -> Any:
            return [1, 9, 2, 8, 3, 7, 4, 6, 5, 50] if split == "train" else [1, 2, 3, 4]

    workload = Lengthy({"order": lambda epoch, generator: [8, 7, 6, 5, 5]})
    longest = [longest_first(workload, "train"), longest_first(workload, "eval")]
    assert [samples.tolist() for samples in longest if samples is not None] == [[5, 7, 8, 6], [3, 2, 1, 0]]
    assert longest_first(Shuffled({}), "train") is None
    Lengthy.lengths = lambda self, split: [7] * (10 if split == "train" else 4)  # type: ignore[method-assign]
    assert longest_first(workload, "train") is None, "any will do"
    Lengthy.lengths = lambda self, split: [1, 2]  # type: ignore[method-assign]
    with pytest.raises(WrongResult, match="returns 2 lengths: return one number for each of the 10 samples"):
        longest_first(workload, "train")
