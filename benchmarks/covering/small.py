"""Models of many small operations: cells and solvers in loops, and random programs.

``make(model=…)`` returns what ``scamp estimate benchmarks/covering/small.py:make`` takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, Callable[[int], Any], Callable[[nn.Module, Any], Tensor]]
Step = Callable[[Tensor, "Loop"], Tensor]
_PROGRAM_LENGTH = 7


class Loop(nn.Module):
    """Applies one function again and again to a state [n, width]."""

    def __init__(self, step: Step, width: int, times: int) -> None:
        super().__init__()
        self.step, self.times, self.width = step, times, width
        self.scale, self.shift = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.cell, self.lstm = nn.GRUCell(width, width), nn.LSTMCell(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for _ in range(self.times):
            x = self.step(x, self)
        return x


class _Double(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x.tanh() * 2

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        result: Tensor = gradient * 2 * (1 - x.tanh() ** 2)
        return result


def _gated(x: Tensor, of: Loop) -> Tensor:
    first, second = of.inner(x).chunk(2, -1)
    return torch.cat([torch.sigmoid(first) * second, second.tanh()], -1)


def _runge_kutta(x: Tensor, of: Loop) -> Tensor:
    def slope(y: Tensor) -> Tensor:
        return of.outer(torch.tanh(of.inner(y)))

    k1 = slope(x)
    k2 = slope(x + 0.05 * k1)
    k3 = slope(x + 0.05 * k2)
    k4 = slope(x + 0.1 * k3)
    return x + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _memory_cell(x: Tensor, of: Loop) -> Tensor:
    hidden, cell = of.lstm(x, (x, x * 0.5))
    result: Tensor = hidden + cell
    return result


def _sinkhorn(x: Tensor, of: Loop) -> Tensor:
    x = x - x.logsumexp(-1, keepdim=True)
    return x - x.logsumexp(0, keepdim=True) + of.shift * 0.01


def _columns(x: Tensor, of: Loop) -> Tensor:
    columns = [column * of.scale[number] for number, column in enumerate(x.unbind(-1)[:4])]
    return torch.cat([torch.stack(columns, -1), x[:, 4:]], -1)


def _attention(x: Tensor, of: Loop) -> Tensor:
    heads = x.view(len(x), 4, -1)
    weights = (heads @ heads.transpose(1, 2)).softmax(-1)
    return x + (weights @ heads).flatten(1)


def _norms(x: Tensor, of: Loop) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * of.scale + of.shift


STEPS: Mapping[str, Step] = {
    "multiply": lambda x, of: x * 1.0001,
    "affine": lambda x, of: x * of.scale + of.shift,
    "gru_cell": lambda x, of: of.cell(x, x),
    "lstm_cell": _memory_cell,
    "gated": _gated,
    "runge_kutta": _runge_kutta,
    "sinkhorn": _sinkhorn,
    "columns": _columns,
    "attention": _attention,
    "norms": _norms,
    "layer_norm": lambda x, of: functional.gelu(of.norm(x)),
    "function": lambda x, of: _Double.apply(x) + of.shift,
}
_OPERATIONS: list[Step] = [
    lambda x, of: x * of.scale,
    lambda x, of: x + of.shift,
    lambda x, of: x * 0.9,
    lambda x, of: 1 - x,
    lambda x, of: x.sigmoid(),
    lambda x, of: x.tanh(),
    lambda x, of: x.relu(),
    lambda x, of: x.sin(),
    lambda x, of: (-x.abs()).exp(),
    lambda x, of: x / (1 + x.square()),
    lambda x, of: x.softmax(-1),
    lambda x, of: of.norm(x),
    lambda x, of: of.inner(x),
    lambda x, of: x @ of.outer.weight.T,
    lambda x, of: x.clamp(-1, 1),
    lambda x, of: torch.where(x > 0, x, x * 0.1),
    lambda x, of: x.flip(-1),
    lambda x, of: torch.cat([x[:, 1:], x[:, :1]], -1),
    lambda x, of: x - x.mean(-1, keepdim=True),
    lambda x, of: x.view(len(x), -1, 2).transpose(1, 2).reshape(len(x), -1),
    lambda x, of: x.masked_fill(x > 2, 0.0),
    lambda x, of: functional.silu(x),
    lambda x, of: torch.stack([half * 2 for half in x.chunk(2, -1)], 1).flatten(1),
    lambda x, of: torch.maximum(x, of.shift),
    lambda x, of: x.cumsum(-1) / x.shape[-1],
    lambda x, of: torch.einsum("ni,ij->nj", x, of.outer.weight),
    lambda x, of: functional.dropout(x, 0.1),
    lambda x, of: x[:, torch.arange(x.shape[-1])],
    lambda x, of: (x.square() + 1).log(),
    lambda x, of: x.expand(2, *x.shape).mean(0),
]


def program(number: int) -> Step:
    """A random sequence of operations."""
    chosen = random.Random(number).choices(_OPERATIONS, k=_PROGRAM_LENGTH)

    def step(x: Tensor, of: Loop) -> Tensor:
        for operation in chosen:
            x = operation(x, of)
        return x

    return step


def make(model: str, times: int, width: int = 8, batch: int = 1) -> Made:
    """A loop over one of ``STEPS``, or over the random program of this number."""
    step = STEPS[model] if model in STEPS else program(int(model))

    def inputs(num: int) -> Tensor:
        return torch.rand(num, width)

    def loss(module: nn.Module, x: Tensor) -> Tensor:
        return module(x).square().mean()

    return Loop(step, width, times), inputs, loss
