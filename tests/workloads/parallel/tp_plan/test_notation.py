"""Layers are divided by the styles that the plan of a model names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from estimators.model import Layout
from estimators.tracing.fake_gang import fake_mesh
from workloads.parallel.apply import apply_plan
from workloads.parallel.divisions import divisions_of
from workloads.parallel.tp_plan.notation import described, split_outside
from workloads.protocol import Workload
from workloads.refusals import WorkloadError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)
        self.norm = nn.LayerNorm(12)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 10)


class Named(Workload):
    def __init__(self, plan: dict[str, str] | None, **attributes: Any) -> None:
        super().__init__({})
        self.tp_plan = plan

    def build_model(self) -> Any:
        return described(self, Model())

    loss = evaluate = None  # type: ignore[assignment]


INSIDE = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
OUTSIDE = {"embed": "embedding_rowwise", "head": "colwise_rep"}


def divided(plan: dict[str, str], tp: int, change: Any = lambda model: None) -> dict[str, tuple[int, ...]]:
    """Parameters that ranks divide, with the shape of rank 0's part."""
    layout, model = Layout(tp=tp), Model()
    change(model)
    described(Named(plan), model)
    with fake_mesh(layout) as mesh:
        apply_plan(model, list(model.layers), layout, mesh)
        parts = {name: parameter for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)}
        return {
            name: tuple(part.to_local().shape) for name, part in parts.items() if part.to_local().shape != part.shape
        }


def test_layers_are_divided_by_their_styles_inside_and_outside_of_blocks() -> None:
    parts = divided({**INSIDE, **OUTSIDE}, 2)
    assert parts["layers.1.up.weight"] == (12, 8) and parts["layers.0.down.weight"] == (8, 12)
    assert parts["embed.weight"] == (5, 8) and parts["head.bias"] == (5,)
    assert "embed.weight" not in divided(INSIDE, 2)


def test_what_every_rank_gets_whole_stays_whole_where_it_cannot_be_divided() -> None:
    assert set(divided({**INSIDE, **OUTSIDE}, 4)) == set(divided(INSIDE, 4)), "4 ranks do not divide 10 words"

    def tie(model: Model) -> None:
        model.head.weight = model.embed.weight

    assert set(divided({**INSIDE, **OUTSIDE}, 2, tie)) == set(divided(INSIDE, 2))

    def pad(model: Model) -> None:
        model.embed = nn.Embedding(10, 8, padding_idx=0)

    assert "embed.weight" not in divided({**INSIDE, **OUTSIDE}, 2, pad)


def test_the_number_of_ranks_divides_all_sizes_of_columns_and_rows() -> None:
    model = Named({**INSIDE, **OUTSIDE}).build_model()
    outside = split_outside(model)
    assert outside is not None and outside.most_parts == 0, "no limit"
    assert divisions_of(model, list(model.layers), torch.zeros(1, 1)).most_parts == 24


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"layers.*.up": "packed_rowwise"}, r"layers.0.up \(packed_rowwise\) is a style that ranks do not know"),
        ({"layers.*.norm": "colwise"}, r"layers.0.norm \(colwise\) is a LayerNorm, and the style is for nn.Linear"),
        ({"layers.*.up.weight": "colwise"}, "is a parameter, and only layers are divided"),
        ({"layer.*.up": "colwise"}, r"names no layer of the model: layer.\*.up"),
    ],
)
def test_a_plan_that_ranks_cannot_follow_says_why_where_it_is_applied(plan: dict[str, str], message: str) -> None:
    model = Named(plan).build_model()
    blocks = list(model.layers)
    assert divisions_of(model, blocks, torch.zeros(1, 1)).most_parts == 2, "so that it is traced"
    layout = Layout(tp=2)
    with fake_mesh(layout) as mesh, pytest.raises(WorkloadError, match=message):
        apply_plan(model, blocks, layout, mesh)


def test_layers_with_styles_of_their_own_need_whole_sequences() -> None:
    model = Named({"layers.*.up": "colwise_rep", "layers.*.down": "rowwise_rep"}).build_model()
    layout = Layout(tp=2, sequence_parallel=True)
    with fake_mesh(layout) as mesh, pytest.raises(ValueError, match=r"up \(colwise_rep in the tp_plan\) needs whole"):
        apply_plan(model, list(model.layers), layout, mesh)


def test_a_plan_of_the_workload_counts_instead_of_what_the_model_says_and_an_empty_one_is_none() -> None:
    class Own(Model):
        tp_plan = INSIDE

    model = Own()
    layer: Any = model.layers[0]
    assert described(Named({}), model) is model and split_outside(model) is None
    described(Named(None), model)
    first = layer.split
    assert first.columns == ("up",) and first.rows == ("down",)
    described(Named(None), model)
    assert layer.split is first
    described(Named({"layers.*.up": "colwise"}), model)
    assert layer.split.rows == ()


def test_a_part_of_the_model_may_bring_the_plan_and_the_heads() -> None:
    class Brought(Model):
        tp_plan: ClassVar = {"layers.*.up": "colwise", "layers.*.down": "rowwise", "layers.*.value": "colwise"}

        def __init__(self) -> None:
            super().__init__()
            self.config = SimpleNamespace(num_attention_heads=6, num_key_value_heads=3)
            for layer in self.layers:
                layer.value = nn.Linear(8, 6)

    model: Any = nn.ModuleDict({"body": Brought(), "head": nn.Linear(8, 2)})
    described(Named(None), model)
    split = model["body"].layers[1].split
    assert split.columns == ("up", "value")
    assert split.rows == ("down",)
    assert split.most_parts == 3


def test_a_layer_with_an_adapter_is_divided_with_the_part_of_the_adapter_next_to_it() -> None:
    model = Model()
    for block in model.layers:
        for name in ("up", "down"):
            layer = getattr(block, name)
            adapted = nn.Module()
            adapted.base_layer = layer
            adapted.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, 2)})
            adapted.lora_B = nn.ModuleDict({"default": nn.Linear(2, layer.out_features)})
            setattr(block, name, adapted)
    described(Named(INSIDE), model)
    first: Any = model.layers[0]
    assert first.split.columns == ("up.base_layer", "up.lora_B.default")
    assert first.split.rows == ("down.base_layer", "down.lora_A.default")
