"""Models that ranks can divide into slabs are accepted, and others are refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Context, Loss, Spatial, Workload
from workloads.sandbox.slab_check import difference_of_slabs

LENGTH, WIDTH = 8, 8


class Reader(nn.Module):
    spatial = Context((1, 1, 1))

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.words, self.positions = nn.Embedding(5, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.zeros_(self.positions.weight)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, words: Tensor, positions: Tensor) -> Tensor:
        if self.kind == "counts positions":
            positions = torch.arange(words.shape[1]).expand_as(words)
        x = self.words(words) + self.positions(positions)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        if self.kind == "attention by hand":
            mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x.add_(mixed.transpose(1, 2).flatten(-2))
        if self.kind == "mean over positions":
            x = x - x.mean(1, keepdim=True)
        logits: Tensor = self.head(x)
        return logits


class Reading(Workload):
    num_train = num_eval = 4

    def build_model(self) -> nn.Module:
        return Reader(self.params["kind"])

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words = (torch.arange(LENGTH) * (indices[:, None] + 1)) % 5
        return words, torch.arange(LENGTH).expand_as(words), words.roll(-1, 1)

    eval_batch = train_batch

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        logits, kind = model(*batch[:2]).transpose(1, 2), self.params["kind"]
        targets = batch[2].masked_fill(batch[1] < 3, -100) if "loss" in kind else batch[2]
        if kind == "counted loss":
            return functional.cross_entropy(logits, targets, reduction="sum"), (targets != -100).sum()
        return functional.cross_entropy(logits, targets)

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        is_right = model(*batch[:2]).argmax(-1) == batch[2]
        if self.params["kind"] == "metric of all positions":
            return {"all_right": is_right.all(1).logical_not().float() + is_right.sum(1).float()}
        return {"accuracy": is_right.float().mean(1)}


class Coloured(nn.Module):
    spatial = Spatial((2, None))

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images).relu_()
        if self.kind == "interpolation":
            x = functional.interpolate(x, scale_factor=2, mode="bilinear")
        logits: Tensor = self.last(self.pool(x)).flatten(1)
        return logits


class Colouring(Reading):
    def build_model(self) -> nn.Module:
        return Coloured(self.params["kind"])

    def train_batch(self, indices: Tensor) -> Any:
        return torch.sin(indices[:, None, None, None] + torch.arange(64.0).view(1, 1, 8, 8)), indices % 3

    def eval_batch(self, indices: Tensor) -> Any:
        return self.train_batch(indices)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"accuracy": (model(batch[0]).argmax(-1) == batch[1]).float()}


class ReadingSlabs(Colouring):
    reads_slabs = True

    def train_batch(self, indices: Tensor) -> Any:
        images, classes = super().train_batch(indices)
        rows = self.trial.slab.of(8) if self.params["kind"] == "right" else slice(0, 8 // self.trial.slab.count)
        return images[:, :, rows], classes


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "workload",
    [
        Reading({"kind": "right"}),
        Reading({"kind": "counted loss"}),
        Colouring({"kind": "right"}),
        ReadingSlabs({"kind": "right"}),
    ],
)
def test_samples_that_ranks_can_divide_are_accepted(workload: Workload, count: int) -> None:
    assert difference_of_slabs(workload, count) == ""


@pytest.mark.parametrize(
    ("workload", "where"),
    [
        (Reading({"kind": "attention by hand"}), r"the output of head \(Linear\)"),
        (Reading({"kind": "counts positions"}), r"the output of positions \(Embedding\)"),
        (Reading({"kind": "mean over positions"}), r"the output of head \(Linear\)"),
        (Reading({"kind": "uneven loss"}), "the mean loss of all slabs is"),
        (Reading({"kind": "metric of all positions"}), "the mean metric all_right of all slabs is"),
        (Colouring({"kind": "interpolation"}), "Coloured"),
        (ReadingSlabs({"kind": "the first rows"}), "^train_batch returns for slab 1 of 2 something else"),
    ],
)
def test_a_model_that_mixes_positions_where_ranks_exchange_nothing_is_refused(workload: Workload, where: str) -> None:
    assert re.search(where, difference_of_slabs(workload, 2))
