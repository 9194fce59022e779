"""Runs a module with other tensors in the places of its parameters, such as copies in another precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


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
