"""A 3D U-Net that finds smooth blobs in noisy volumes. The data is generated: about half of each volume is blob.

Activations, not parameters, take most of its memory, so plans with ``spatial`` give each rank a slab of a volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.models.parameters import number_in
from workloads.models.transformer import warmup_cosine
from workloads.protocol import Spatial, Workload

NUM_TRAIN, NUM_EVAL = 96, 16
BLOB_VOXELS = 4  # distance between independent values of the random field that the blobs come from
GROUPS = 4  # number of groups in group normalisation


class Unet3dBlobs(Workload):
    """Metrics: ``accuracy`` of voxels and ``loss`` (binary cross-entropy, nats). Parameters, with defaults:

    ``levels`` 2 (each halves the volume's side and doubles the channels), ``width`` 8 (channels of the first level, a
    multiple of 4), ``side`` 16 (voxels, a multiple of 4 and of 2 to the power of ``levels``), ``noise`` 1.5 (standard
    deviation; inside and outside of a blob differ by 2), ``lr`` 3e-3 (the peak of a linear warm-up over the share
    ``warmup`` of the steps, then a cosine), ``warmup`` 0.1, ``weight_decay`` 0.01, ``batch`` 8.
    """

    default_batch = 8
    num_train, num_eval = NUM_TRAIN, NUM_EVAL

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self.levels = number_in(params, "levels", 2)
        self.width = number_in(params, "width", 8)
        self.side = number_in(params, "side", 16)
        self.noise = number_in(params, "noise", 1.5)
        self.lr = number_in(params, "lr", 3e-3)
        self.weight_decay = number_in(params, "weight_decay", 0.01)
        self.warmup = number_in(params, "warmup", 0.1)
        if self.levels < 1 or self.width < GROUPS or self.width % GROUPS:
            raise ValueError(
                f"levels must be positive, and width a multiple of {GROUPS}, got {self.levels} and {self.width}"
            )
        if self.side < 1 or self.side % max(BLOB_VOXELS, 2**self.levels):
            raise ValueError(f"side ({self.side}) must be a multiple of {max(BLOB_VOXELS, 2**self.levels)}")

    def build_model(self) -> nn.Module:
        return Unet3d(self.levels, self.width)

    def train_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Volumes and blobs (0 or 1), both of shape [n, 1, side, side, side]."""
        return self._samples(indices + NUM_EVAL)

    def eval_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Held-out volumes and blobs, of the shapes of ``train_batch``."""
        return self._samples(indices)

    def _samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        volumes, blobs = _volumes(self.side, self.noise)
        return volumes[indices], blobs[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        volumes, blobs = batch
        return functional.binary_cross_entropy_with_logits(model(volumes), blobs)

    def evaluate(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Mapping[str, Tensor]:
        volumes, blobs = batch
        logits = model(volumes)
        losses = functional.binary_cross_entropy_with_logits(logits, blobs, reduction="none")
        return {"accuracy": ((logits > 0) == (blobs > 0)).float().flatten(1).mean(1), "loss": losses.flatten(1).mean(1)}

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The levels on the way down, then those on the way up."""
        assert isinstance(model, Unet3d)
        return [*model.down, *model.up]

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.lr * warmup_cosine(step, steps, self.warmup)


class Unet3d(nn.Module):
    """Volumes [n, 1, s, s, s] → logits of that shape (Çiçek et al., "3D U-Net", MICCAI 2016; group normalisation)."""

    def __init__(self, levels: int, width: int) -> None:
        super().__init__()
        self.spatial = Spatial(dims=(2, 2), multiple_of=2**levels)
        channels = [width << level for level in range(levels + 1)]
        self.first = _twice(1, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool3d(2), *_twice(before, after)) for before, after in pairwise(channels)
        )
        self.up = nn.ModuleList(_Up(after, before) for before, after in reversed(list(pairwise(channels))))
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        seen = [self.first(volumes)]
        for down in self.down:
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up in self.up:
            x = up(x, seen.pop())
        logits: Tensor = self.head(x)
        return logits


class _Up(nn.Module):
    """Doubles the side and halves the channels, then joins the activations of that size from the way down."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.grow = nn.ConvTranspose3d(num_inputs, num_outputs, 2, 2)
        self.convolve = _twice(2 * num_outputs, num_outputs)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        output: Tensor = self.convolve(torch.cat([seen, self.grow(x)], 1))
        return output


def _twice(num_inputs: int, num_outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (num_inputs, num_outputs):
        convolution = nn.Conv3d(channels, num_outputs, 3, padding=1, bias=False)
        layers += [convolution, nn.GroupNorm(GROUPS, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers)


@cache
def _volumes(side: int, noise: float) -> tuple[Tensor, Tensor]:
    """Volumes and blobs (0 or 1), both of shape [112, 1, side, side, side], from a fixed seed."""
    numbers = torch.Generator().manual_seed(0)
    num, coarse = NUM_EVAL + NUM_TRAIN, side // BLOB_VOXELS
    field = torch.randn(num, 1, coarse, coarse, coarse, generator=numbers)
    blobs = (functional.interpolate(field, size=(side,) * 3, mode="trilinear") > 0).float()
    return 2 * blobs - 1 + noise * torch.randn(blobs.shape, generator=numbers), blobs
