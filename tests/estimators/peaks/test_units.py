"""The work and memory of units add up to those of the model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from estimators.model import Layout
from estimators.peaks.units import Unit
from estimators.trace import Trace
from estimators.tracing.session.session import Session
from estimators.tracing.tracer import trace
from estimators.work import Work
from workloads.function import FunctionWorkload
from workloads.models.stdlib_gpt import StdlibGpt
from workloads.models.vit_digits import VitDigits
from workloads.sandbox.recipe import recipe_of

GPT = {"width": 32, "heads": 4, "context": 16}


def traced(depth: int, equal_blocks: bool | None = None) -> Trace:
    return trace(recipe_of(StdlibGpt({**GPT, "depth": depth})), Layout(), 8, equal_blocks)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_units_add_up_to_the_model(depth: int) -> None:
    model_trace = traced(depth)
    before, blocks, after = model_trace.units
    assert [before.name, blocks.name, after.name] == ["positions, characters", "blocks.0", "norm, head"]
    assert [before.count, blocks.count, after.count] == [1, depth, 1]
    assert sum(unit.num_params * unit.count for unit in model_trace.units) == model_trace.num_params
    flops = sum(unit.per_sample.flops * unit.count for unit in model_trace.units)
    assert flops == pytest.approx(model_trace.work.per_sample.flops)
    moved = sum(unit.per_sample.num_bytes * unit.count for unit in model_trace.units)
    assert moved == pytest.approx(model_trace.work.per_sample.num_bytes)


@pytest.mark.full
def test_a_block_costs_what_its_layers_say() -> None:
    _, block, _ = traced(3).units
    width, length = GPT["width"], GPT["context"]
    # Forward and backward passes of four products of matrices, 12 w² weights in all, and of attention over all pairs.
    products, attention = 3 * 2 * 12 * width**2 * length, 7 * 2 * length**2 * width
    assert products < block.per_sample.flops <= products + attention
    assert block.output.bytes_per_sample == 4 * length * width
    assert block.most_parts == GPT["heads"]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_forward_and_backward_passes_of_units_add_up_to_those_of_the_model(depth: int) -> None:
    recipe, model_trace = recipe_of(StdlibGpt({**GPT, "depth": depth})), traced(depth)
    with Session(recipe, Layout()) as session:
        session.spread()
        forward, both = session.forward_log(8).work, session.passes(8).work
    for field, work in (("forward", forward), ("backward", both - forward)):
        passes = [getattr(unit, field).at(8) * unit.count for unit in model_trace.units]
        assert sum(passes, Work()).amounts == pytest.approx(work.amounts)


@pytest.mark.full
def test_a_backward_pass_has_two_products_of_matrices_for_each_one_of_the_forward_pass() -> None:
    _, block, head = traced(3).units
    width, length = GPT["width"], GPT["context"]
    assert block.forward.per_sample.of("matmul")[1] == 2 * 12 * width**2 * length
    for unit in (block, head):
        ahead, back = (passes.per_sample.of("matmul")[1] for passes in (unit.forward, unit.backward))
        assert back == 2 * ahead > 0


def test_a_backward_pass_has_one_product_for_each_gradient_that_is_needed() -> None:
    class Detached(nn.Module):
        """Its middle layer has no gradients of weights."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.layers[1].requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).tanh()
            return x.square().mean()

    recipe = recipe_of(FunctionWorkload(lambda: (Detached(), lambda batch: torch.zeros(batch, 8)), {}))
    units = trace(recipe, Layout(), 8).units
    products = [
        tuple(work.per_sample.of("matmul")[1] / 128 for work in (unit.forward, unit.backward)) for unit in units
    ]
    assert products == [(0, 0), (1, 1), (1, 1), (1, 2), (0, 0)], "the input of the first layer needs no gradient"


@pytest.mark.full
def test_few_blocks_tell_of_all() -> None:
    assert traced(7).equal_blocks and not traced(7, equal_blocks=False).equal_blocks
    assert traced(7).units == traced(7, equal_blocks=False).units


@pytest.mark.full
def test_activations_are_those_of_the_peak() -> None:
    model_trace = traced(6)
    kept = sum(unit.activations.at(64) * unit.count for unit in model_trace.units)
    assert kept == pytest.approx(model_trace.curve.parts(64)["activations"], rel=0.05)


@pytest.mark.full
def test_units_survive_json() -> None:
    units = traced(6).units
    assert TypeAdapter(tuple[Unit, ...]).validate_json(json.dumps([asdict(unit) for unit in units])) == units


def test_blocks_of_different_sizes_are_units_of_their_own() -> None:
    def make() -> Any:
        layers = nn.ModuleList(nn.Linear(2**size, 2 ** (size + 1)) for size in range(3, 6))

        class Growing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers

            def forward(self, x: Tensor) -> Tensor:
                for layer in self.layers:
                    x = layer(x).relu()
                return x.square().mean()

        return Growing(), lambda batch: torch.zeros(batch, 8)

    units = trace(recipe_of(FunctionWorkload(make, {})), Layout(), 8).units
    assert [unit.name for unit in units] == ["nothing", "layers.0", "layers.1", "layers.2", "nothing"]
    assert [unit.num_params for unit in units] == [0, 8 * 16 + 16, 16 * 32 + 32, 32 * 64 + 64, 0]
    assert [unit.output.bytes_per_sample for unit in units] == [32, 64, 128, 256, 0]


class Loop(nn.Module):
    """Runs its layers in the order of their numbers."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number in self.order:
            x = self.layers[number](x).tanh()
        return x.square().mean()


@pytest.mark.parametrize("order", [(0, 1, 2, 0, 1, 2), (0, 0, 1, 1, 2, 2), (2, 1, 0), (1,)])
def test_blocks_that_run_in_any_order_have_the_costs_of_all_their_passes(order: tuple[int, ...]) -> None:
    recipe = recipe_of(FunctionWorkload(lambda: (Loop(*order), lambda batch: torch.zeros(batch, 8)), {}))
    model_trace = trace(recipe, Layout(), 8, equal_blocks=False)
    every_unit = [unit for unit in model_trace.units for _ in range(unit.count)]
    assert [unit.num_params for unit in every_unit] == [72, 72, 72, 72, 0]
    assert [unit.forward.per_sample.of("matmul")[1] for unit in every_unit[1:4]] == [
        128 * order.count(n) for n in range(3)
    ]
    assert [unit.output.bytes_per_sample for unit in every_unit[1:4]] == [32 * order.count(n) for n in range(3)]
    flops = sum(unit.per_sample.flops for unit in every_unit)
    assert flops == pytest.approx(model_trace.work.per_sample.flops)


def test_a_model_whose_blocks_never_run_is_one_unit() -> None:
    model_trace = trace(
        recipe_of(FunctionWorkload(lambda: (Loop(), lambda batch: torch.zeros(batch, 8)), {})), Layout(), 8
    )
    (unit,) = model_trace.units
    assert (unit.name, unit.num_params) == ("model", 4 * 72)
    assert unit.per_sample.flops == pytest.approx(model_trace.work.per_sample.flops)


@dataclass
class State:
    hidden: Tensor


class Inside(nn.Module):
    """A layer that takes and returns a dataclass, or is recomputed by a re-entrant checkpoint around it or in it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        if self.kind == "inside":
            return checkpoint(self.layer, x, use_reentrant=True).tanh()
        return State(self.layer(x.hidden).tanh()) if self.kind == "dataclass" else self.layer(x).tanh()


@pytest.mark.parametrize("kind", ["dataclass", "inside", "around"])
def test_blocks_are_seen_whatever_they_return_and_however_they_are_recomputed(kind: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(Inside(kind) for _ in range(3))

        def forward(self, x: Any) -> Tensor:
            x = State(self.first(x)) if kind == "dataclass" else self.first(x)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=True) if kind == "around" else layer(x)
            hidden: Tensor = x.hidden if kind == "dataclass" else x
            return hidden.square().mean()

    model_trace = trace(
        recipe_of(FunctionWorkload(lambda: (Net(), lambda batch: torch.zeros(batch, 8)), {})), Layout(), 8
    )
    before, layer, *others, after = model_trace.units  # the last layer keeps no random state for the next one
    assert (before.name, layer.count + sum(unit.count for unit in others), after.num_params) == ("first", 3, 0)
    # A checkpoint computes a layer again in its backward pass.
    products = [work.per_sample.of("matmul")[1] / 128 for work in (layer.forward, layer.backward)]
    assert products == [1, 2 if kind == "dataclass" else 3]
    assert layer.output.bytes_per_sample == 32


@pytest.mark.full
def test_only_the_plain_layout_has_units() -> None:
    assert trace(recipe_of(VitDigits({"depth": 2})), Layout(recompute=True), 8).units == ()
