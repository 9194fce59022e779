"""Splits whose parts compute the same are accepted, and others are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Split, Workload
from workloads.sandbox.split_check import difference_of_parts

WIDTH, HEADS = 8, 4


class Block(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH // HEADS))
        self.split = Split(columns=("qkv",), rows=("out",), norms=("norm",), most_parts=HEADS)

    def forward(self, x: Tensor) -> Tensor:
        qkv, size = self.qkv(self.norm(x)), WIDTH // HEADS
        if self.kind == "q, k and v one after another":
            q, k, v = qkv.unflatten(-1, (3, -1, size)).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = qkv.unflatten(-1, (-1, 3, size)).permute(3, 0, 2, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        if self.kind == "scale of each head":
            mixed = (mixed.unflatten(-1, (-1, size)) * self.scale).flatten(-2)
        if self.kind == "norm of a part":
            mixed = mixed / mixed.norm(dim=-1, keepdim=True)
        return x.add_(self.out(mixed))


class Points(Workload):
    num_train = num_eval = 4

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, WIDTH), *(Block(self.params["kind"]) for _ in range(3)))

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        return list(model.children())[1:]

    def train_batch(self, indices: Tensor) -> Tensor:
        return torch.sin(indices[:, None, None] + torch.arange(15.0).view(1, 5, 3))

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).square().mean()
        return loss

    def evaluate(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        return {}


def test_layers_that_ranks_can_divide_are_accepted() -> None:
    for count in (2, HEADS):
        assert difference_of_parts(Points({"kind": "right"}), count) == ""


def test_a_whole_parameter_between_columns_and_rows_is_refused_because_nobody_adds_up_its_gradients() -> None:
    words = "scale is whole on every rank, but works on divided features"
    assert words in difference_of_parts(Points({"kind": "scale of each head"}), 2)


@pytest.mark.parametrize("kind", ["q, k and v one after another", "norm of a part"])
def test_a_split_whose_parts_compute_something_else_is_refused_with_the_layer(kind: str) -> None:
    words = "2 parts together give another output of out than the whole"
    assert words in difference_of_parts(Points({"kind": kind}), 2)
