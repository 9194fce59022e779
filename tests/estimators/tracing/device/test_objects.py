"""The objects of autograd take the memory that was measured, however they were traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.tracing.device.objects import module_bytes
from estimators.tracing.session.session import Session
from estimators.tracing.tracer import trace
from tests.traced import WIDTH, Deep, recipe

NUM = 100
# Bytes of an operation in a loop, less the data of tensors, counted by benchmarks/estimating/measuring/heap.c with
# PYTHONMALLOC=malloc at the beginning of the backward pass (torch 2.13, CPython 3.11).
MEASURED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int]] = {
    "multiply by a number": (lambda x, w: x * 1.0001, 1110),
    "multiply": (lambda x, w: x * w, 1370),
    "add": (lambda x, w: x + w, 640),
    "sigmoid": (lambda x, w: x.sigmoid(), 985),
    "sine": (lambda x, w: x.sin(), 1260),
    "transpose": (lambda x, w: x.mT, 595),
    "softmax": (lambda x, w: x.softmax(-1), 1000),
}


class Loop(nn.Module):
    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor], times: int) -> None:
        super().__init__()
        self.operation, self.times, self.weight = operation, times, nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        x = (x * self.weight)[None]
        for _ in range(self.times):
            x = self.operation(x, self.weight)
        return x.reshape(-1, WIDTH)


def objects(build: Callable[[], nn.Module], layout: Layout | None = None) -> int:
    with Session(recipe(build), layout or Layout()) as session:
        session.spread()
        return session.passes(2).object_bytes


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("name", MEASURED)
def test_an_operation_takes_about_as_much_as_was_measured(name: str) -> None:
    operation, measured = MEASURED[name]
    few, many = (objects(lambda times=times: Loop(operation, times)) for times in (NUM, 2 * NUM))  # type: ignore[misc]
    assert 0.85 * measured < (many - few) / NUM < 2.1 * measured


class Cell(nn.Module):
    """Runs operations that call others: what these make for themselves has no object of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.lstm = nn.GRUCell(WIDTH, WIDTH), nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.1)
        self.layers = nn.ModuleList()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = nn.functional.dropout(self.cell(x, x), 0.1)
        out: Tensor = self.lstm(x[None])[0][0]
        return out


def test_objects_do_not_depend_on_what_was_traced_before() -> None:
    first = objects(Cell)
    assert [objects(Cell), objects(Deep), objects(Cell)] == [first, objects(Deep), first]


def test_nodes_of_frozen_layers_are_not_made() -> None:
    def frozen() -> nn.Module:
        model = Deep()
        model.layers.requires_grad_(False)
        model.first.requires_grad_(False)
        return model

    of_modules = module_bytes(Deep(), []).total()
    assert objects(frozen) - of_modules < (objects(Deep) - of_modules) / 3


def test_the_objects_of_a_few_blocks_tell_of_all() -> None:
    class Deeper(Deep):
        num_layers = 9

    traced = trace(recipe(Deeper), Layout(), 4)
    assert traced.equal_blocks and traced.object_bytes == objects(Deeper)
    assert traced.host_curve.peak_bytes(4) == traced.curve.peak_bytes(4) + traced.object_bytes


def test_a_graph_is_gone_after_its_backward_pass() -> None:
    assert objects(Deep, Layout(accumulate=True)) == objects(Deep)


def test_modules_and_parameters_are_objects_too() -> None:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), nn.Identity()]
    counted = module_bytes(nn.Sequential(*layers, nn.ReLU()), layers[:2])
    # Counted by heap.c: 3,658 bytes of a linear layer of width 4, with 80 bytes of numbers, 2,160 of a bare module.
    assert counted[0] == pytest.approx(3578, rel=0.1) and counted[1] < counted[0]
    assert counted[-1] == pytest.approx(3 * 2200, rel=0.1)
