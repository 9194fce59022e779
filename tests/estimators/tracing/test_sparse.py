"""Sparse gradients of a trace have the rows and the memory of real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from estimators.model import Layout
from estimators.tracing.recorder import Recorder
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.stand_ins import stand_ins
from estimators.tracing.tracer import examples, trace
from estimators.tracing.values.assumptions import DIFFERENT_ROWS
from tests.traced import recipe
from workloads.training.memory.peak import measure_peak

NUM_ROWS, WIDTH = 100, 8
ASKED = torch.tensor([[1, 5, 7], [2, 99, 0]])
OTHERS = torch.tensor([[30, 50, 80]])
BATCH, NUM_LOOKED_UP = 64, 30
NUMBERS_BYTES = 64  # such as the numbers of steps


def gradient(*lookups: Tensor, layer: type[nn.Module] = nn.Embedding) -> Tensor:
    words: Any = layer(NUM_ROWS, WIDTH, sparse=True)
    for indices in lookups:
        (words(indices) ** 2).sum().backward()
    assert words.weight.grad is not None
    return words.weight.grad


def gradient_of_sum(*lookups: Tensor) -> Tensor:
    words = nn.Embedding(NUM_ROWS, WIDTH, sparse=True)
    torch.stack([words(indices).pow(2).sum() for indices in lookups]).sum().backward()
    assert words.weight.grad is not None
    return words.weight.grad


def shapes(tensor: Tensor) -> tuple[torch.Size, torch.Size]:
    return tensor._indices().shape, tensor._values().shape


def described(tensor: Tensor) -> list[Any]:
    """The shapes of indices and values, and the bytes of their memory."""
    return [*shapes(tensor), *(part.untyped_storage().nbytes() for part in (tensor._indices(), tensor._values()))]


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gradient": lambda tensor: tensor,
    "copy": lambda tensor: tensor.clone(),
    "joined": lambda tensor: tensor.coalesce(),
    "joined copy": lambda tensor: tensor.clone().coalesce(),
    "added": lambda tensor: tensor + tensor,
    "half": lambda tensor: tensor * 0.5,
    "negative": lambda tensor: -tensor,
    "rows of a matrix": lambda tensor: torch.zeros(NUM_ROWS, WIDTH).sparse_mask(tensor.coalesce()),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_sparse_gradients_have_the_rows_of_real_ones(operation: Callable[[Tensor], Tensor]) -> None:
    real = shapes(operation(gradient(ASKED)))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        assert shapes(operation(gradient(recorder.copied(ASKED)))) == real


LOOKUPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "one": lambda first, second: gradient(first),
    "a bag": lambda first, second: gradient(first, layer=nn.EmbeddingBag),
    "one after another": lambda first, second: gradient(first, second),
    "at once": lambda first, second: gradient_of_sum(first, second),
    "the same at once": lambda first, second: gradient_of_sum(first, first + 0),
}


@pytest.mark.parametrize("look_up", LOOKUPS.values(), ids=LOOKUPS)
def test_gradients_of_several_lookups_have_the_rows_and_the_memory_of_real_ones(
    look_up: Callable[[Tensor, Tensor], Tensor],
) -> None:
    real = described(look_up(ASKED.clone(), OTHERS.clone()))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        assert described(look_up(recorder.copied(ASKED), recorder.copied(OTHERS))) == real


def test_another_micro_batch_looks_up_other_rows() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        indices = recorder.copied(ASKED)
        assert gradient(indices, indices)._nnz() == 2 * ASKED.numel()


def test_a_dense_tensor_plus_a_sparse_one_is_dense() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        table = torch.zeros(NUM_ROWS, WIDTH)
        total = table + gradient(recorder.copied(ASKED))
        assert (total.layout, total.shape) == (torch.strided, table.shape)
        assert table.add_(gradient(recorder.copied(ASKED)), alpha=-0.1) is table


def test_rows_of_unknown_indices_are_taken_to_differ_as_far_as_there_are_rows() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, Recorder(fake) as recorder, stand_ins(recorder.values):
        few, many = (gradient(torch.empty(num, 3, dtype=torch.int64)).coalesce() for num in (20, 50))
        assert (few._nnz(), many._nnz()) == (60, NUM_ROWS)
        assert (few.is_coalesced(), many._values().untyped_storage().nbytes()) == (True, 4 * WIDTH * 150)
        assert recorder.values.assumptions.described == [DIFFERENT_ROWS]


class Tables(nn.Module):
    """Six equal layers on the rows of a table, which is looked up as often as there are columns of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8000, 16, sparse=True)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    def forward(self, indices: Tensor) -> Tensor:
        x = torch.stack([self.table(column).mean(1) for column in indices.unbind(1)]).sum(0)
        for layer in self.layers:
            x = x + layer(x)
        return x


class Both(torch.optim.Optimizer):
    """SparseAdam for the table, and SGD for all else."""

    def __init__(self, model: Tables) -> None:
        others = [parameter for parameter in model.parameters() if parameter is not model.table.weight]
        super().__init__([*model.table.parameters(), *others], {})
        self._inner = [torch.optim.SparseAdam([model.table.weight]), torch.optim.SGD(others)]
        self._inner[0].state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for inner in self._inner:
            inner.step()


def step_of_tables(model: nn.Module, optimizer: Any, batches: Iterable[Any], num: int) -> None:
    for batch in batches:
        (model(batch).pow(2).mean() / num).backward()
        del batch
    optimizer.step()
    optimizer.zero_grad()


def of_tables(num_lookups: int, make_optimizer: Callable[[Tables], torch.optim.Optimizer]) -> Recipe:
    return replace(
        recipe(),
        build_model=Tables,
        make_batch=lambda size: rows_for(size, num_lookups),
        optimizer=lambda model, layout, mesh: make_optimizer(model),  # type: ignore[arg-type]
        train_step=step_of_tables,
    )


def rows_for(size: int, num_lookups: int) -> Tensor:
    """Rows that all differ, in a tensor that has its memory alone."""
    return torch.randperm(8000)[: size * num_lookups * NUM_LOOKED_UP].reshape(size, num_lookups, -1).clone()


def sgd(model: Tables) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.sample
@pytest.mark.full
@pytest.mark.parametrize("make_optimizer", [Both, sgd])
@pytest.mark.parametrize("num_lookups", [1, 4])
@pytest.mark.parametrize("num_micro_batches", [1, 8])
def test_a_peak_with_sparse_gradients_is_that_of_a_real_step(
    make_optimizer: Callable[[Tables], torch.optim.Optimizer], num_lookups: int, num_micro_batches: int
) -> None:
    model, size = Tables(), BATCH // num_micro_batches
    optimizer = make_optimizer(model)
    rows = rows_for(BATCH, num_lookups)

    def step() -> None:
        batches = (part.clone() for part in rows.split(size))
        step_of_tables(model, optimizer, batches, num_micro_batches)

    step()
    measured = measure_peak(torch.device("cpu"), model, optimizer, step)
    traced = trace(of_tables(num_lookups, make_optimizer), Layout(accumulate=num_micro_batches > 1), BATCH)
    assert -NUMBERS_BYTES <= traced.curve.peak_bytes(size) - measured <= 0.03 * measured


def test_formulas_leave_out_models_with_sparse_gradients() -> None:
    with pytest.raises(ValueError, match="sparse gradients"):
        examples(of_tables(1, sgd), Layout(), 4)
