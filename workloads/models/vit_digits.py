"""A vision transformer on scikit-learn's 1,797 handwritten digits of 8×8 pixels. The data ships with the package.

There is no augmentation: the held-out accuracy is that of a plain model on plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.models.parameters import number_in
from workloads.models.transformer import Block, warmup_cosine
from workloads.protocol import Chain, Workload

NUM_CLASSES = 10
IMAGE_SIDE = 8
NUM_EVAL = 360


class VitDigits(Workload):
    """Metrics: ``accuracy`` and ``loss`` (cross-entropy, nats). Parameters, with defaults:

    ``depth`` 4, ``width`` 64, ``heads`` 4, ``patch`` 2 (1, 2 or 4 pixels a side), ``mlp_ratio`` 4, ``dropout`` 0,
    ``lr`` 2e-3 (the peak of a linear warm-up over the share ``warmup`` of the steps, then a cosine), ``warmup`` 0.1,
    ``weight_decay`` 0.05, ``batch`` 64.
    """

    default_batch = 64

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.patch = number_in(params, "patch", 2)
        self.depth = number_in(params, "depth", 4)
        self.width = number_in(params, "width", 64)
        self.heads = number_in(params, "heads", 4)
        self.mlp_ratio = number_in(params, "mlp_ratio", 4.0)
        self.dropout = number_in(params, "dropout", 0.0)
        self.lr = number_in(params, "lr", 2e-3)
        self.weight_decay = number_in(params, "weight_decay", 0.05)
        self.warmup = number_in(params, "warmup", 0.1)
        if self.patch not in (1, 2, 4):
            raise ValueError(f"patch must be 1, 2 or 4, got {self.patch}")
        if self.depth < 1 or self.width < 1 or self.heads < 1:
            raise ValueError(f"depth, width and heads must be positive, got {self.depth}, {self.width}, {self.heads}")
        if self.width % self.heads:
            raise ValueError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")

    def build_model(self) -> nn.Module:
        return VisionTransformer(self.depth, self.width, self.heads, self.patch, self.mlp_ratio, self.dropout)

    @property
    def num_train(self) -> int:
        return len(_digits()[0]) - NUM_EVAL

    @property
    def num_eval(self) -> int:
        return NUM_EVAL

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images, shape [n, 8, 8], and labels, shape [n]."""
        images, labels = _digits()
        return images[NUM_EVAL:][indices], labels[NUM_EVAL:][indices]

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Held-out images, shape [n, 8, 8], and labels, shape [n]."""
        images, labels = _digits()
        return images[:NUM_EVAL][indices], labels[:NUM_EVAL][indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images), labels)

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        images, labels = batch
        logits = model(images)
        return {
            "accuracy": (logits.argmax(-1) == labels).float(),
            "loss": functional.cross_entropy(logits, labels, reduction="none"),
        }

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay, fused=True
        )

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.lr * warmup_cosine(step, steps, self.warmup)


class VisionTransformer(Chain):
    """Pre-norm encoder over ``(8 / patch)²`` patches and one linear head over all of them: [n, 8, 8] → [n, 10].

    Patches this small say little without their position. With strong position embeddings and a head that sees every
    position separately, the model reaches 95 % in a third of the steps that mean pooling needs.
    """

    enters = ("embed", "positions")
    leaves = ("norm", "head")

    def __init__(self, depth: int, width: int, heads: int, patch: int, mlp_ratio: float, dropout: float) -> None:
        super().__init__()
        num_patches = (IMAGE_SIDE // patch) ** 2
        self.patch, self.num_patches, self.width = patch, num_patches, width
        self.embed = nn.Linear(patch * patch, width)
        self.positions = nn.Parameter(torch.randn(num_patches, width) * 0.5)
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp_ratio, dropout, (2 * depth) ** -0.5, causal=False) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(num_patches * width, NUM_CLASSES)

    def enter(self, images: Tensor) -> Tensor:
        patches = images.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)
        x: Tensor = self.embed(patches.reshape(len(images), -1, self.patch * self.patch)) + self.positions
        return x

    def leave(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x).flatten(1))
        return logits

    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        return num_samples, self.num_patches, self.width


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Images [1797, 8, 8] with mean 0 and standard deviation 1, and labels [1797], both in one fixed random order.

    They are read from scikit-learn's data file, because importing the package takes every rank as long as importing
    torch.
    """
    sklearn = find_spec("sklearn")
    assert sklearn is not None and sklearn.origin is not None
    file = Path(sklearn.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    images, labels = rows[:, :-1].reshape(-1, IMAGE_SIDE, IMAGE_SIDE), rows[:, -1].long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return ((images - images.mean()) / images.std())[order], labels[order]
