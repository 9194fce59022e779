"""The peak of convolutions with their workspaces is that of a real step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from estimators.model import Layout
from estimators.tracing.device import CPU
from estimators.tracing.session.recipe import Recipe
from estimators.tracing.tracer import trace
from workloads.training.memory.peak import measure_peak

TOLERANCE_BYTES = 20 * 1024  # small temporaries, and a strip of a product that oneDNN allocates unseen by torch (AVX2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As ranks have: each thread of a convolution may take memory of its own."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def conv(in_channels: int, out_channels: int, kernel_size: int, **options: Any) -> nn.Module:
    return nn.Conv2d(in_channels, out_channels, kernel_size, **options)


def net(*layers: nn.Module) -> nn.Module:
    """With a layer before, so that gradients of images are asked for."""
    return nn.Sequential(conv(3, 16, 3, padding=1), *layers)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Tensor], num: int) -> None:
    for images in batches:
        (model(images).square().mean() / num).backward()
        del images
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


BATCHES = (1, 2, 5, 17)
LAYERS: dict[str, Callable[[], tuple[nn.Module, ...]]] = {
    "few channels": lambda: (),
    "3×3": lambda: (conv(16, 64, 3, padding=1),),
    "odd channels": lambda: (conv(16, 20, 3, padding=1), conv(20, 36, 3, padding=1)),  # they fill no block
    "patches": lambda: (conv(16, 48, 4, stride=4),),
    "1×1": lambda: (conv(16, 48, 1),),
    "groups": lambda: (conv(16, 32, 3, padding=1, groups=4),),
    "depthwise": lambda: (conv(16, 16, 7, padding=3, groups=16), conv(16, 32, 1)),
    "few pixels": lambda: (conv(16, 128, 3, padding=1, stride=8), conv(128, 256, 3, padding=1, stride=2)),  # 2 × 2
    "fewer than the kernel": lambda: (conv(16, 128, 3, padding=1, stride=16), conv(128, 256, 3, padding=1)),
    "dilation": lambda: (conv(16, 32, 3, padding=2, dilation=2),),
    "transposed": lambda: (conv(16, 64, 3, padding=1, stride=2), nn.ConvTranspose2d(64, 32, 2, 2)),
}
# A single sample is a case of its own for every kind of layers, as torch makes it without oneDNN. Of the larger batches
# each kind has one; together they have all.
USUAL = {(kind, batch) for index, kind in enumerate(LAYERS) for batch in (1, BATCHES[1 + index % 3])}
USUAL_VOLUMES = {(8, 1), (8, 17), (16, 2), (16, 5), (32, 1), (32, 2)}


def cases(kinds: Iterable[Any], usual: set[tuple[Any, int]]) -> list[Any]:
    """Every kind with every batch; those that are not usual take long."""
    pairs = itertools.product(kinds, BATCHES)
    return [pytest.param(*pair, marks=() if pair in usual else pytest.mark.soak) for pair in pairs]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize(("kind", "batch"), cases(LAYERS, USUAL))
def test_the_peak_of_convolutions_is_that_of_a_real_step(kind: str, batch: int) -> None:
    check(lambda: net(*LAYERS[kind]()), (3, 32, 32), batch)


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize(("side", "batch"), cases((8, 16, 32), USUAL_VOLUMES))
def test_the_peak_of_convolutions_of_volumes_is_that_of_a_real_step(side: int, batch: int) -> None:
    def volumes() -> nn.Module:
        grow, points = nn.ConvTranspose3d(24, 16, 2, 2), nn.Conv3d(16, 2, 1)
        return nn.Sequential(conv3d(1, 16), conv3d(16, 24), nn.MaxPool3d(2), conv3d(24, 24), grow, points)

    check(volumes, (1, side, side, side), batch)


def conv3d(num_inputs: int, num_outputs: int) -> nn.Module:
    return nn.Conv3d(num_inputs, num_outputs, 3, padding=1)


def check(build_model: Callable[[], nn.Module], shape: tuple[int, ...], batch: int) -> None:
    recipe = Recipe(
        build_model=build_model,
        make_batch=lambda size: torch.randn(size, *shape),
        blocks=lambda model: [],
        apply_plan=lambda model, blocks, layout, mesh: model,
        optimizer=lambda model, layout, mesh: torch.optim.SGD(model.parameters(), lr=0.1),
        begin_step=lambda step, optimizer: None,
        train_step=train_step,
    )
    curve = trace(recipe, Layout(), batch).curve
    model = recipe.build_model()
    optimizer = recipe.optimizer(model, Layout(), None)

    def step() -> None:
        train_step(model, optimizer, iter([recipe.make_batch(batch)]), 1)

    step()
    peak = measure_peak(torch.device("cpu"), model, optimizer, step)
    assert curve.peak_bytes(batch) == pytest.approx(peak, abs=TOLERANCE_BYTES)


def test_nothing_is_known_of_other_operations() -> None:
    weight = torch.empty(8, 8, 3, 3)
    assert CPU.workspace(torch.ops.aten.relu.default, (weight,), {}, weight) == ()


def test_an_empty_batch_takes_nothing() -> None:
    images, weight = torch.empty(0, 8, 9, 9), torch.empty(8, 8, 3, 3)
    args = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert CPU.workspace(torch.ops.aten.convolution.default, args, {}, images) == ()
