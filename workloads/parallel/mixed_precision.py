"""Passes that compute with copies of the parameters in bf16, while ranks hold, update and store them in fp32.

Under FSDP2 a ``MixedPrecisionPolicy`` does it: ranks cast their shards, gather bf16, and add up gradients in another
precision. Elsewhere each block, and the rest of the model, casts its parameters when it runs. The curve is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Passes compute in ``param``; ranks of FSDP add up gradients in ``reduce``. The model's output is fp32."""

    param: torch.dtype = torch.bfloat16
    reduce: torch.dtype = torch.float32

    @property
    def sent_bytes(self) -> tuple[int, int]:
        """Bytes of a parameter that FSDP gathers, and of a gradient that it adds up."""
        return self.param.itemsize, self.reduce.itemsize

    def policy(self, module: nn.Module, *, is_root: bool) -> MixedPrecisionPolicy:
        """The policy of FSDP2 for ``module``, the whole model or one of its blocks."""
        output = torch.float32 if is_root else None
        return MixedPrecisionPolicy(param_dtype=self.param, reduce_dtype=self.reduce, output_dtype=output)


AS_STORED = MixedPrecisionPolicy()
"""FSDP2's policy for parameters that are gathered as they are."""


def compute_in(model: nn.Module, blocks: Sequence[nn.Module], dtype: torch.dtype) -> None:
    """Have ``model`` and each of its ``blocks`` cast their parameters and inputs to ``dtype`` when they run, in place.

    The blocks share no parameters. Call it before recompute is applied, so that casts are recomputed, too.
    """
    inside = {module for block in blocks for module in block.modules()}
    for block in blocks:
        block.forward = _Casting(block.forward, list(block.modules()), dtype)
    model.forward = _Casting(model.forward, _outer_modules(model, inside), dtype, torch.float32)


def compute_divided_in(model: nn.Module, divided: Set[nn.Parameter], dtype: torch.dtype) -> None:
    """Have ``model`` cast the ``divided`` parameters, which FSDP2 leaves alone, in place."""
    holders = [module for module in model.modules() if not divided.isdisjoint(module._parameters.values())]
    model.forward = _Casting(model.forward, holders, dtype)


def _outer_modules(model: nn.Module, inside: Set[nn.Module]) -> list[nn.Module]:
    return [module for module in model.modules() if module not in inside]


@dataclass(eq=False)
class _Casting:
    """The function ``forward``, during which ``modules`` have copies of their parameters. A copy of a module gets one
    of its own."""

    forward: Callable[..., Any]
    modules: Sequence[nn.Module]
    dtype: torch.dtype
    output_dtype: torch.dtype | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with replaced_parameters(self.modules, lambda parameter: _cast(parameter, self.dtype)):
            output = self.forward(*_cast(args, self.dtype), **_cast(kwargs, self.dtype))
        return output if self.output_dtype is None else _cast(output, self.output_dtype)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


@contextmanager
def replaced_parameters(modules: Sequence[nn.Module], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Have ``modules`` hold what ``change`` makes of each of their parameters, until the context ends.

    A parameter that has several places is changed once. Their hooks and buffers stay as they are.
    """
    members = ((module, name, parameter) for module in modules for name, parameter in module._parameters.items())
    held = [(module, name, parameter) for module, name, parameter in members if parameter is not None]
    changed: dict[Tensor, Tensor] = {}
    try:
        for module, name, parameter in held:
            if parameter not in changed:
                changed[parameter] = change(parameter)
            # Not an attribute: what is no nn.Parameter could not be set as one.
            module._parameters[name] = changed[parameter]  # type: ignore[assignment]
        yield
    finally:
        for module, name, parameter in held:
            module._parameters[name] = parameter
