"""Finds out whether an optimizer updates each parameter by itself, by trying a copy of it on a few small ones."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

_FACTORS = (1.0, 1.0, 1.0, 1e30, float("inf"))
"""By step, for the first parameter's gradient: others must not be clipped, or their step skipped, if it overflows."""
_LARGEST = 3  # size of any dimension
_OF_TORCH = ("param_groups", "state", "defaults")


def updates_each_alone(optimizer: Optimizer) -> bool:
    """Whether the update of a parameter depends on its own gradients and states alone; False if that cannot be tried.

    So do LAMB and LARS, whose norms are of single parameters. ``optimizer`` must be new, and stays as it is.
    """
    numbers = [(group, place) for group, of in enumerate(optimizer.param_groups) for place in range(len(of["params"]))]
    chosen = [number for number in numbers if number[1] < 2]
    try:
        with _disable_current_modes(), torch.enable_grad(), torch.random.fork_rng([]):
            together = _trained(optimizer, chosen)
            alone = [values for number in chosen for values in _trained(optimizer, [number])]
            begins = [_parameter(optimizer, number) for number in chosen]
            moved = all(not torch.equal(after[2], begin) for after, begin in zip(together, begins, strict=True))
            return moved and all(
                torch.allclose(after, other, rtol=0, atol=0, equal_nan=True)
                for after, other in zip(together, alone, strict=True)
            )
    except Exception:  # it may need more than the small copy has
        return False


def _trained(optimizer: Optimizer, numbers: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The values of small parameters with these places after each step, of a copy that has no others."""
    small = {number: _parameter(optimizer, number).requires_grad_() for number in numbers}
    twin = copy.copy(optimizer)
    twin.__dict__ |= {name: copy.deepcopy(value) for name, value in _others(optimizer)}
    twin.state = defaultdict(dict)
    twin.param_groups = [
        {**of, "params": [small[number] for number in numbers if number[0] == group]}
        for group, of in enumerate(optimizer.param_groups)
    ]
    values: dict[tuple[int, int], list[Tensor]] = {number: [] for number in numbers}
    for step, factor in enumerate(_FACTORS):
        for number, parameter in small.items():
            draws = torch.Generator().manual_seed(100 * step + 10 * number[0] + number[1])
            gradient = torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype)
            parameter.grad = gradient * (factor if number == (0, 0) else 1)
        twin.step()
        for number, parameter in small.items():
            values[number].append(parameter.detach().clone())
    return [torch.stack(after) for after in values.values()]


def _parameter(optimizer: Optimizer, number: tuple[int, int]) -> Tensor:
    """A small parameter with as many dimensions, and with other values than those of others."""
    group, place = number
    shape = [min(size, _LARGEST) for size in optimizer.param_groups[group]["params"][place].shape]
    return torch.rand(shape, generator=torch.Generator().manual_seed(10 * group + place)) + 0.5


def _others(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the rest of the optimizer, without hooks. Raises ``ValueError`` if it holds tensors, as averages do."""
    for name, value in vars(optimizer).items():
        if isinstance(value, OrderedDict):
            yield name, OrderedDict()
        elif name not in _OF_TORCH and not callable(value):
            if any(isinstance(leaf, Tensor | Optimizer) for leaf in tree_leaves(value)):
                raise ValueError(f"{name} holds tensors")
            yield name, value
