"""A search space of convolutional cells after NAS-Bench-201 (Dong & Yang 2020): an operation for each edge of a cell.

Copy the file to begin a space of your own. It has all that architecture search can use: ``space``; ``inherit``, by
which a candidate begins with the weights of another one; and the supernet of one-shot search, which has every operation
on every edge.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scamp import Workload, inheritance

OPS = ("none", "skip", "conv1", "conv3", "pool")
KERNELS = {"conv1": 1, "conv3": 3}
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))  # from node, to node
WIDTHS, DEPTHS = (8, 16), (1, 2)
NUM_TRAIN, NUM_EVAL = 1200, 597


class Convolution(nn.Module):
    """ReLU, convolution and normalisation, by the first channels of each layer if ``x`` has fewer than it has."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.GroupNorm(1, outputs)

    def forward(self, x: Tensor) -> Tensor:
        conv, norm = self.conv, self.norm
        num = x.shape[1] * conv.out_channels // conv.in_channels
        if num == conv.out_channels:
            return norm(conv(functional.relu(x)))
        y = functional.conv2d(functional.relu(x), conv.weight[:num, : x.shape[1]], None, conv.stride, conv.padding)
        return functional.group_norm(y, 1, norm.weight[:num], norm.bias[:num], norm.eps)


class Cell(nn.Module):
    """Four nodes and six edges. Each node is the sum of its edges, and the last one, scaled, is added to the first."""

    def __init__(self, width: int, ops: Sequence[Sequence[str]]) -> None:
        """``ops`` are those of each edge; only the supernet has several."""
        super().__init__()
        self.edges = nn.ModuleList(
            nn.ModuleDict({op: Convolution(width, width, KERNELS[op]) for op in edge if op in KERNELS}) for edge in ops
        )
        self.scale = nn.Parameter(torch.ones(width, 1, 1))

    def forward(self, x: Tensor, ops: Sequence[str]) -> Tensor:
        nodes = [x]
        for to in (1, 2, 3):
            made = [self.made(edge, ops[edge], nodes[start]) for edge, (start, end) in enumerate(EDGES) if end == to]
            found = [one for one in made if one is not None]
            nodes.append(torch.stack(found).sum(0) if found else torch.zeros_like(x))
        return x + self.scale[: x.shape[1]] * nodes[-1]

    def made(self, edge: int, op: str, x: Tensor) -> Tensor | None:
        if op == "none":
            return None
        if op == "skip":
            return x
        if op == "pool":
            return functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        return self.edges[edge][op](x)


class Net(nn.Module):
    """Equal cells on 8×8 positions, then as many of twice the width on 4×4: images [n, 1, 8, 8] → logits [n, 10].

    ``forward`` computes the candidate ``params``, which only the supernet needs to be told.
    """

    def __init__(self, width: int, depth: int, ops: Sequence[Sequence[str]]) -> None:
        super().__init__()
        self.own = {"width": width, "depth": depth, "edges": [{"op": edge[0]} for edge in ops]}
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.first = nn.ModuleList(Cell(width, ops) for _ in range(depth))
        self.reduce = Convolution(width, 2 * width, 3, stride=2)
        self.second = nn.ModuleList(Cell(2 * width, ops) for _ in range(depth))
        self.norm, self.head = nn.GroupNorm(1, 2 * width), nn.Linear(2 * width, 10)

    def forward(self, images: Tensor, params: Mapping[str, Any] | None = None) -> Tensor:
        params = params or self.own
        width, depth = params["width"], params["depth"]
        ops = [edge["op"] for edge in params["edges"]]
        x = functional.conv2d(images, self.stem.weight[:width], self.stem.bias[:width], padding=1)
        for cell in self.first[:depth]:
            x = cell(x, ops)
        x = self.reduce(x)
        for cell in self.second[:depth]:
            x = cell(x, ops)
        x = functional.group_norm(x, 1, self.norm.weight[: 2 * width], self.norm.bias[: 2 * width])
        return functional.linear(functional.relu(x).mean((2, 3)), self.head.weight[:, : 2 * width], self.head.bias)


def candidate(number: float, draws: random.Random) -> dict[str, Any]:
    """The largest candidate of the space (1), the smallest (0), or one that is drawn (anything between)."""
    if number in (0, 1):
        op = "conv3" if number else "skip"
        return {"width": WIDTHS[-int(number)], "depth": DEPTHS[-int(number)], "edges": [{"op": op} for _ in EDGES]}
    edges = [{"op": draws.choice(OPS)} for _ in EDGES]
    return {"width": draws.choice(WIDTHS), "depth": draws.choice(DEPTHS), "edges": edges}


class Digits(Workload):
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, 597 of them held out.

    With ``supernet: true`` it trains the supernet of the space by the sandwich rule (Yu & Huang 2019): in each step the
    largest candidate, the smallest, and two that are drawn. They are drawn by the step alone, equally on every rank.
    """

    num_train, num_eval = NUM_TRAIN, NUM_EVAL

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        digits = load_digits()
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
        self.images = (torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) - 4.88) / 6.02
        self.labels = torch.tensor(digits.target)[order]
        self.is_supernet = bool(params.get("supernet", False))
        self.sandwich = [candidate(1, random.Random())] * 4  # until the first step: what a step needs at most

    @classmethod
    def space(cls) -> Mapping[str, Any]:
        """The search space of studies that have none."""
        return {
            "width": {"ordinal": list(WIDTHS)},
            "depth": {"ordinal": list(DEPTHS)},
            "edges": {"repeat": len(EDGES), "each": {"op": {"choice": list(OPS)}}},
        }

    def build_model(self) -> nn.Module:
        if self.is_supernet:
            return Net(WIDTHS[-1], DEPTHS[-1], [OPS] * len(EDGES))
        return Net(self.params["width"], self.params["depth"], [[edge["op"]] for edge in self.params["edges"]])

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        return [*model.first, model.reduce, *model.second]

    def inherit(self, model: nn.Module, parent: nn.Module, parent_params: Mapping[str, Any]) -> None:
        """Begin with the parent's function if only cells are added, or the width is a multiple of the parent's. An edge
        with another operation is new, so the function changes there. Of a supernet, take the part that computes this
        candidate."""
        mine, theirs = model.own["width"], parent.own["width"]
        first, second = [
            (inheritance.kept if mine < theirs else inheritance.duplicated)(theirs * by, mine * by) for by in (1, 2)
        ]
        inheritance.widen(model.stem, parent.stem, outputs=first)
        inherit_convolution(model.reduce, parent.reduce, first, second)
        for cells, others, width in ((model.first, parent.first, first), (model.second, parent.second, second)):
            for cell, other in zip(cells, others, strict=False):
                inheritance.copy(cell.scale, other.scale, outputs={0: width})
                for edge, before in zip(cell.edges, other.edges, strict=True):
                    for op in edge.keys() & before.keys():
                        inherit_convolution(edge[op], before[op], width, width)
            for cell in cells[len(others) :]:
                torch.nn.init.zeros_(cell.scale)  # what the cell computes does not count at first
        inheritance.widen(model.norm, parent.norm, outputs=second)
        inheritance.widen(model.head, parent.head, inputs=second)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        draws = random.Random(step)
        self.sandwich = [candidate(number, draws) for number in (1, 0, 0.5, 0.5)]
        lr = self.params.get("lr", 3e-3) * min(1.0, (step + 1) / max(1, steps // 10), 1.05 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = lr

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(NUM_TRAIN + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        chosen = self.sandwich if self.is_supernet else [None]
        return torch.stack([functional.cross_entropy(model(images, params), labels) for params in chosen]).mean()

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        images, labels = batch
        logits = model(images, candidate(1, random.Random()) if self.is_supernet else None)
        return {
            "accuracy": (logits.argmax(-1) == labels).float(),
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }


def inherit_convolution(mine: Convolution, theirs: Convolution, inputs: Any, outputs: Any) -> None:
    """Give a convolution and its normalisation the weights of the parent's."""
    inheritance.widen(mine.conv, theirs.conv, outputs=outputs, inputs=inputs)
    inheritance.widen(mine.norm, theirs.norm, outputs=outputs)
