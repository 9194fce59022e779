"""A search space of vision transformers: depth, width and patch, and heads and feed-forward of each block.

Copy the file to begin a space of your own. It has all that architecture search can use: ``space``; ``inherit``, by
which a candidate begins with the weights of another one; and the supernet of one-shot search, which has every candidate
in its weights. Candidates can be split over ranks by FSDP, tensor parallelism and pipelines; the supernet by FSDP.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from scamp import Chain, Split, Workload, inheritance

HEAD_SIZE = 16
PATCHES, WIDTHS, DEPTHS = (2, 4), (32, 64, 128), (2, 6)
HEADS, RATIOS = (1, 2, 4, 8), (1, 2, 4)
NUM_TRAIN, NUM_EVAL = 1437, 360


class Block(nn.Module):
    """Attention and a feed-forward, each after a normalisation and with a residual connection: [n, t, width] → same.

    With ``heads`` and ``hidden`` only the first ones are used, and of every layer as many channels as ``x`` has: so
    the blocks of the supernet compute those of any candidate.
    """

    def __init__(self, width: int, heads: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.split = Split(("qkv", "up"), ("out", "down"), norms=("norm1", "norm2"), most_parts=heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * HEAD_SIZE * heads)  # q, k and v of the first head, then of the second, …
        self.out = nn.Linear(HEAD_SIZE * heads, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        with torch.no_grad():
            for layer in (self.out, self.down):
                layer.weight.mul_((2 * depth) ** -0.5)

    def forward(self, x: Tensor, heads: int | None = None, hidden: int | None = None) -> Tensor:
        width = None if heads is None else x.shape[-1]
        rows = None if heads is None else 3 * HEAD_SIZE * heads
        qkv = linear(self.qkv, norm(self.norm1, x, width), rows).unflatten(-1, (-1, 3, HEAD_SIZE))
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(self.out, attended, width)
        return x + linear(self.down, functional.gelu(linear(self.up, norm(self.norm2, x, width), hidden)), width)


def linear(layer: nn.Linear, x: Tensor, outputs: int | None) -> Tensor:
    """The first ``outputs`` of a layer, by as many of its inputs as ``x`` has; None: the layer as it is."""
    if outputs is None:
        return layer(x)
    return functional.linear(x, layer.weight[:outputs, : x.shape[-1]], layer.bias[:outputs])


def norm(layer: nn.LayerNorm, x: Tensor, width: int | None) -> Tensor:
    """The first ``width`` channels of a normalisation; None: the layer as it is."""
    if width is None:
        return layer(x)
    return functional.layer_norm(x, (width,), layer.weight[:width], layer.bias[:width], layer.eps)


def patches_of(images: Tensor, patch: int) -> Tensor:
    """Images of 8×8 pixels as [n, patches, pixels of a patch]."""
    return images.unfold(1, patch, patch).unfold(2, patch, patch).reshape(len(images), -1, patch * patch)


class Vit(Chain):
    """One candidate: images [n, 8, 8] → logits [n, 10]."""

    enters, leaves = ("embed", "positions"), ("norm", "head")

    def __init__(self, patch: int, width: int, blocks: list[dict[str, Any]]) -> None:
        super().__init__()
        self.patch, self.width, self.num_patches = patch, width, (8 // patch) ** 2
        self.embed = nn.Linear(patch * patch, width)
        self.positions = nn.Parameter(torch.randn(self.num_patches, width) * 0.5)
        self.blocks = nn.ModuleList(Block(width, one["heads"], one["mlp_ratio"] * width, len(blocks)) for one in blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(self.num_patches * width, 10)

    def enter(self, images: Tensor) -> Tensor:
        return self.embed(patches_of(images, self.patch)) + self.positions

    def leave(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).flatten(1))

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, self.num_patches, self.width


class Ends(nn.Module):
    """The first and the last layers of the supernet for one size of patches, of which it has a set for each."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        num = (8 // patch) ** 2
        self.embed, self.norm = nn.Linear(patch * patch, WIDTHS[-1]), nn.LayerNorm(WIDTHS[-1])
        self.positions = nn.Parameter(torch.randn(num, WIDTHS[-1]) * 0.5)
        self.head = nn.Linear(num * WIDTHS[-1], 10)


class Supernet(nn.Module):
    """The largest candidate, with the ends for every patch. ``forward`` computes the candidate ``params``."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = nn.ModuleDict({str(patch): Ends(patch) for patch in PATCHES})
        width, depth = WIDTHS[-1], DEPTHS[-1]
        self.blocks = nn.ModuleList(Block(width, HEADS[-1], RATIOS[-1] * width, depth) for _ in range(depth))

    def forward(self, images: Tensor, params: Mapping[str, Any]) -> Tensor:
        ends, width = self.ends[str(params["patch"])], params["width"]
        x = linear(ends.embed, patches_of(images, params["patch"]), width) + ends.positions[:, :width]
        for block, one in zip(self.blocks, params["blocks"], strict=False):
            x = block(x, one["heads"], one["mlp_ratio"] * width)
        x = norm(ends.norm, x, width)
        weight = ends.head.weight.unflatten(1, (-1, WIDTHS[-1]))[:, :, :width].flatten(1)
        return functional.linear(x.flatten(1), weight, ends.head.bias)


def candidate(number: float, draws: random.Random) -> dict[str, Any]:
    """The largest candidate of the space (1), the smallest (0), or one that is drawn (anything between)."""
    take = (lambda values: values[-1 if number else 0]) if number in (0, 1) else draws.choice
    depth = take(range(DEPTHS[0], DEPTHS[1] + 1))
    blocks = [{"heads": take(HEADS), "mlp_ratio": take(RATIOS)} for _ in range(depth)]
    return {"patch": take(PATCHES), "width": take(WIDTHS), "blocks": blocks}


class Digits(Workload):
    """scikit-learn's 1,797 handwritten digits of 8×8 pixels, 360 of them held out.

    With ``supernet: true`` it trains the supernet of the space by the sandwich rule (Yu & Huang 2019): in each step the
    largest candidate, the smallest, and two that are drawn. They are drawn by the step alone, equally on every rank.
    """

    default_batch = 64
    num_train, num_eval = NUM_TRAIN, NUM_EVAL

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        digits = load_digits()
        order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
        self.images = (torch.tensor(digits.images, dtype=torch.float32)[order] - 4.88) / 6.02
        self.labels = torch.tensor(digits.target)[order]
        self.is_supernet = bool(params.get("supernet", False))
        self.sandwich = [candidate(1, random.Random())] * 4  # until the first step: what a step needs at most

    @classmethod
    def space(cls) -> Mapping[str, Any]:
        """The search space of studies that have none."""
        each = {"heads": {"ordinal": list(HEADS)}, "mlp_ratio": {"ordinal": list(RATIOS)}}
        return {
            "patch": {"choice": list(PATCHES)},
            "width": {"ordinal": list(WIDTHS)},
            "blocks": {"repeat": {"low": DEPTHS[0], "high": DEPTHS[1]}, "each": each},
        }

    def build_model(self) -> nn.Module:
        if self.is_supernet:
            return Supernet()
        return Vit(self.params["patch"], self.params["width"], self.params["blocks"])

    def inherit(self, model: nn.Module, parent: nn.Module, parent_params: Mapping[str, Any]) -> None:
        """Begin with the parent's function, as far as the two have the same patches: it is kept by more blocks, more
        heads, larger feed-forwards, and a width that is a multiple of the parent's. Of a supernet, take the part that
        computes this candidate."""
        of_supernet = parent_params.get("supernet", False)
        mine, theirs = self.params["width"], WIDTHS[-1] if of_supernet else parent_params["width"]
        width = (inheritance.kept if mine < theirs else inheritance.duplicated)(theirs, mine)
        for block, other in zip(model.blocks, parent.blocks, strict=False):
            hidden = inheritance.kept(other.up.out_features, block.up.out_features)
            heads = inheritance.kept(other.out.in_features // HEAD_SIZE, block.out.in_features // HEAD_SIZE)
            for layer in ("norm1", "norm2"):
                inheritance.widen(getattr(block, layer), getattr(other, layer), outputs=width)
            inheritance.widen(block.qkv, other.qkv, outputs=heads.each(3 * HEAD_SIZE), inputs=width)
            inheritance.widen(block.out, other.out, outputs=width, inputs=heads.each(HEAD_SIZE))
            inheritance.widen(block.up, other.up, outputs=hidden, inputs=width)
            inheritance.widen(block.down, other.down, outputs=width, inputs=hidden)
        for block in model.blocks[len(parent.blocks) :]:
            inheritance.silence(block.out, block.down)
        patch = self.params["patch"]
        if of_supernet or patch == parent_params["patch"]:
            ends = parent.ends[str(patch)] if of_supernet else parent
            inheritance.widen(model.embed, ends.embed, outputs=width)
            inheritance.copy(model.positions, ends.positions, outputs={1: width})
            inheritance.widen(model.norm, ends.norm, outputs=width)
            inheritance.widen(model.head, ends.head, inputs=width.tiled(model.num_patches))

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        draws = random.Random(step)
        self.sandwich = [candidate(number, draws) for number in (1, 0, 0.5, 0.5)]
        lr = self.params.get("lr", 2e-3) * min(1.0, (step + 1) / max(1, steps // 10), 1.05 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = lr

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.images[indices], self.labels[indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.train_batch(NUM_TRAIN + indices)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        if not self.is_supernet:
            return functional.cross_entropy(model(images), labels)
        losses = [functional.cross_entropy(model(images, params), labels) for params in self.sandwich]
        return torch.stack(losses).mean()

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        images, labels = batch
        logits = model(images, candidate(1, random.Random())) if self.is_supernet else model(images)
        return {
            "accuracy": (logits.argmax(-1) == labels).float(),
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }
