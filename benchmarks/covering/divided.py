"""Models of depthwise, grouped, recurrent and normalising layers that can be divided over ranks.

``make(model=…)`` returns what ``scamp estimate benchmarks/covering/divided.py:make`` takes. Blocks are in a list, so
that FSDP2 shards each of them. Blocks with a feed-forward can be divided by tensor parallelism; some models of images
can be divided by their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.protocol import Spatial, Split

Made = tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], Tensor]]
_CLASSES, _NUMBERS = 100, 64


class FeedForward(nn.Module):
    """A block that ends with layer norm, ``up``, GELU and ``down``, over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.split = Split(columns=("up",), rows=("down",), norms=("norm",), most_parts=width)

    def fed(self, x: Tensor) -> Tensor:
        """The output of the feed-forward."""
        result: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return result


class ConvNext(FeedForward):
    """A depthwise 7×7 over images, and the feed-forward over channels."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.scale * self.fed(self.depthwise(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Conformer(FeedForward):
    """A gated depthwise convolution over sequences, normalised by groups, and the feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.gate, self.group_norm = nn.Conv1d(width, 2 * width, 1), nn.GroupNorm(8, width)
        self.depthwise = nn.Conv1d(width, width, 31, padding=15, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = functional.glu(self.gate(x.transpose(1, 2)), 1)
        x = x + functional.silu(self.group_norm(self.depthwise(mixed))).transpose(1, 2)
        return x + self.fed(x)


class Grouped(FeedForward):
    """A convolution in 8 groups over sequences, and the feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.grouped = nn.Conv1d(width, width, 9, padding=4, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + functional.gelu(self.grouped(x.transpose(1, 2))).transpose(1, 2)
        return x + self.fed(x)


class Recurrent(FeedForward):
    """One recurrent layer over sequences, and the feed-forward."""

    def __init__(self, width: int, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__(width)
        self.net = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.net(x)[0]
        return x + self.fed(x)


class Images(nn.Module):
    """Patches of images, blocks and a head for each position; every layer can work on slabs."""

    def __init__(self, patch: int, width: int, block: Callable[[int], nn.Module], num: int) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, width, patch, patch), nn.Conv2d(width, _CLASSES, 1)
        self.blocks = nn.ModuleList(block(width) for _ in range(num))
        self.spatial = Spatial(dims=(2, None), multiple_of=patch)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits.mean((2, 3))


class Turned(nn.Module):
    """Layer norm over the channels of images."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        normal: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normal.permute(0, 3, 1, 2)


class Stages(nn.Module):
    """ConvNeXt as published: stages of blocks, each with half the side and twice the width of the one before.

    Norms leave channels in the last place in memory, so that convolutions take images of either format.
    """

    def __init__(self, patch: int, width: int, num: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, width, patch, patch), Turned(width))]
        for stage in range(num):
            before = width << max(0, stage - 1)
            layers += [nn.Sequential(Turned(before), nn.Conv2d(before, 2 * before, 2, 2))] if stage else []
            layers += [ConvNext(width << stage) for _ in range(depth)]
        last = width << (num - 1)
        self.blocks, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(last), nn.Linear(last, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x.mean((2, 3))))
        return logits


class Sequences(nn.Module):
    """Numbers over time, blocks, and the mean over time as a class."""

    def __init__(self, width: int, block: Callable[[int], nn.Module], num: int) -> None:
        super().__init__()
        self.enter = nn.Linear(_NUMBERS, width)
        self.blocks, self.norm = nn.ModuleList(block(width) for _ in range(num)), nn.LayerNorm(width)
        self.head = nn.Linear(width, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class Residual(nn.Module):
    """``x`` plus what ``layers`` make of it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.layers(x)
        return result


def _points(before: int, after: int) -> nn.Module:
    return nn.Conv2d(before, after, 1, bias=False)


def _inverted(width: int) -> nn.Module:
    """MobileNet's inverted bottleneck with batch norm."""
    inner = 4 * width
    spread = nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False)
    layers = [_points(width, inner), nn.BatchNorm2d(inner), nn.ReLU6(), spread, nn.BatchNorm2d(inner), nn.ReLU6()]
    return Residual(*layers, _points(inner, width), nn.BatchNorm2d(width))


def _aggregated(width: int) -> nn.Module:
    """ResNeXt's bottleneck with 16 groups and batch norm."""
    grouped = nn.Conv2d(width, width, 3, padding=1, groups=16, bias=False)
    layers = [_points(width, width), nn.BatchNorm2d(width), nn.ReLU(), grouped, nn.BatchNorm2d(width), nn.ReLU()]
    return Residual(*layers, _points(width, width), nn.BatchNorm2d(width))


def _separable(width: int) -> nn.Module:
    """A depthwise 7×7, group norm, and two convolutions of points: ConvNeXt, but every layer can work on slabs."""
    depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
    return Residual(depthwise, nn.GroupNorm(1, width), _points(width, 4 * width), nn.GELU(), _points(4 * width, width))


def _lstm(width: int) -> nn.Module:
    return Recurrent(width, nn.LSTM)


def _gru(width: int) -> nn.Module:
    return Recurrent(width, nn.GRU)


_IMAGES: Mapping[str, Callable[[int], nn.Module]] = {
    "convnext": ConvNext,
    "mobilenet": _inverted,
    "resnext": _aggregated,
    "separable": _separable,
}
_SEQUENCES: Mapping[str, Callable[[int], nn.Module]] = {
    "conformer": Conformer,
    "grouped": Grouped,
    "lstm": _lstm,
    "gru": _gru,
}
MODELS = ("stages", *_IMAGES, *_SEQUENCES)
SPATIAL = ("mobilenet", "resnext", "separable")
"""Models whose images can be divided."""
TENSOR_PARALLEL = ("convnext", *_SEQUENCES)
"""Models whose blocks can be divided."""


def make(model: str, width: int, depth: int = 3, size: int = 64, patch: int = 4, arithmetic: str = "fp32") -> Made:
    """One of ``MODELS``; ``size`` is the side of an image or the length of a sequence. ``arithmetic``: fp32 or amp.

    Of ``stages``, ``depth`` is the number of stages, which have one block each.
    """

    def classes(batch: int) -> Tensor:
        return torch.randint(0, _CLASSES, (batch,))

    def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=arithmetic == "amp"):
            return functional.cross_entropy(module(batch[0]).float(), batch[1])

    if model in ("stages", *_IMAGES):
        is_plain = model in _IMAGES
        net: nn.Module = Images(patch, width, _IMAGES[model], depth) if is_plain else Stages(patch, width, depth, 1)
        return net, lambda batch: (torch.randn(batch, 3, size, size), classes(batch)), loss
    net = Sequences(width, _SEQUENCES[model], depth)
    return net, lambda batch: (torch.randn(batch, size, _NUMBERS), classes(batch)), loss
