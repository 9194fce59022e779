"""Samples of different sizes are found without ``lengths``, and memory is predicted for large ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.tracing.tracer import trace
from workloads.protocol import Workload
from workloads.sandbox.drawn_samples import NUM_LARGEST, has_unknown_sizes, largest_first
from workloads.sandbox.recipe import recipe_of


class Graphs(Workload):
    """The nodes of all graphs of a batch are put together; one of ten graphs is large."""

    num_train, num_eval = 200, 20
    large = 50

    def build_model(self) -> nn.Module:
        return nn.Linear(4, 4)

    def nodes(self, index: int) -> int:
        return self.large if index % 10 == 3 else 5

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.cat([torch.randn(self.nodes(index), 4) for index in indices.tolist()])

    def eval_batch(self, indices: Tensor) -> Tensor:
        return torch.zeros(len(indices), 4)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        result: Tensor = model(batch).square().mean()
        return result

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {"size": model(batch).square().mean(1)}


class Even(Graphs):
    large = 5


class Known(Graphs):
    def lengths(self, split: str) -> Sequence[int]:
        return [self.nodes(index) for index in range(self.num_train if split == "train" else self.num_eval)]


class Ordered(Graphs):
    def order(self, epoch: int, generator: torch.Generator) -> Tensor:
        return torch.arange(0, 200, 2)  # none of the large ones


class Countless(Graphs):
    num_train = 2**50


class Unreadable(Graphs):
    def train_batch(self, indices: Tensor) -> Tensor:
        raise FileNotFoundError("no such data")


def test_the_largest_of_the_drawn_samples_come_first() -> None:
    state = torch.get_rng_state()
    indices = largest_first(Graphs({}), "train")
    assert indices is not None and len(indices) == NUM_LARGEST and indices[0] % 10 == 3
    assert torch.equal(torch.get_rng_state(), state)  # a sample that draws random numbers changes no training


def test_only_sizes_that_differ_and_are_not_given_are_unknown() -> None:
    assert has_unknown_sizes(Graphs({}), "train")
    assert not has_unknown_sizes(Graphs({}), "eval")
    for workload in (Even, Known, Ordered, Unreadable):
        assert not has_unknown_sizes(workload({}), "train")


def test_memory_is_predicted_for_large_samples_that_the_first_ones_are_not() -> None:
    uneven, even = (trace(recipe_of(workload({})), Layout(), 2).curve.peak_bytes(2) for workload in (Graphs, Even))
    assert uneven > even + 45 * 4 * 4  # 45 more nodes of 4 features in float32


def test_a_recipe_says_whether_most_steps_need_less_memory_than_the_traced_one() -> None:
    assert [recipe_of(workload({})).is_uneven() for workload in (Graphs, Known, Even)] == [True, True, False]


def test_of_more_samples_than_memory_could_number_a_few_are_drawn() -> None:
    indices = largest_first(Countless({}), "train")
    assert indices is not None
    assert len(indices) == NUM_LARGEST
