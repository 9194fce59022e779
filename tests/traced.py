"""Small models that tests trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from estimators.tracing.session.recipe import Recipe
from workloads.parallel.apply import apply_plan

WIDTH = 64


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
            for _ in range(2)
        )
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.norm(x)


class Deep(nn.Module):
    """Six equal layers between others."""

    num_layers = 6

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(self.num_layers)
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], num: int) -> None:
    for x, y in batches:
        (functional.mse_loss(model(x), y) / num).backward()
        del x, y
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def make_batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, WIDTH), torch.randn(size, WIDTH)


def recipe(build: Callable[[], nn.Module] = Mlp, lr: float = 1e-3) -> Recipe:
    return Recipe(
        build_model=build,
        make_batch=make_batch,
        blocks=lambda model: list(model.layers),  # type: ignore[arg-type]
        apply_plan=apply_plan,
        optimizer=lambda model, layout, mesh: torch.optim.AdamW(model.parameters(), lr=lr),
        begin_step=lambda step, optimizer: None,
        train_step=train_step,
    )
