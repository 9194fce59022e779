"""Calls of modules that FSDP2 would get wrong: with containers that they change, and past their hooks.

A block may append its output to a list, or keep its result in a dictionary. FSDP2 gives it copies; what it has changed
in a copy is changed in the container that its caller has. A call of ``block.forward`` becomes one of the block. FSDP2
gathers parameters again when a backward pass reaches an output; outputs in objects are shown to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._common_utils import collect_grad_tensors

from workloads.parallel.arguments import tensors_of


def keep_containers(module: nn.Module) -> None:
    """Let ``module`` change the containers that it is given, and let others call its ``forward``.

    Call it once FSDP2 has been applied to the module.
    """
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    forward, is_inside = module.forward, False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        if not calls:  # it is not called as a module, perhaps by itself
            return forward(*args, **kwargs) if is_inside else module(*args, **kwargs)
        own_args, own_kwargs = calls.pop()
        pairs = [*zip(own_args, args, strict=False), *((own_kwargs.get(name), value) for name, value in kwargs.items())]
        entered = tensors_of(args, kwargs, own_args, own_kwargs)
        copies = [copy for own_value, value in pairs for copy in _copies(own_value, value)]
        was_inside, is_inside = is_inside, True
        try:
            result = forward(*args, **kwargs)
        finally:
            is_inside = was_inside
        for copy in copies:
            copy.write_back()
        _show_outputs(module, entered, (result, own_args, own_kwargs))
        return result

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((args, kwargs))

    module.register_forward_pre_hook(note, prepend=True, with_kwargs=True)  # before FSDP2's own hook
    module.forward = call


def _show_outputs(module: nn.Module, entered: Sequence[Tensor], output: Any) -> None:
    """Have a backward pass gather the parameters again where it reaches a tensor of ``output``, if FSDP2 sees none.

    ``output`` begins with the module's result; tensors in ``entered`` came from outside.
    """
    if not torch.is_grad_enabled() or not isinstance(module, FSDPModule) or collect_grad_tensors(output[0]):
        return
    ids = {id(tensor) for tensor in entered}
    for tensor in tensors_of(output):
        if tensor.requires_grad and id(tensor) not in ids:
            tensor.register_hook(module._get_fsdp_state()._pre_backward)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A container and its copy, with their values when the copy was given to the module."""

    container: Any
    copy: Any
    own_values: Sequence[Any]
    values: Sequence[Any]

    def write_back(self) -> None:
        """Change the container as the copy was changed; values that are still in it stay the caller's own."""
        now = _values(self.copy)
        if len(now) == len(self.values) and all(value is other for value, other in zip(now, self.values, strict=True)):
            return
        own_of = {id(value): own_value for value, own_value in zip(self.values, self.own_values, strict=True)}
        if isinstance(self.container, list):
            self.container[:] = [own_of.get(id(value), value) for value in now]
            return
        changed = {key: own_of.get(id(value), value) for key, value in self.copy.items()}
        self.container.clear()
        self.container.update(changed)


def _copies(own_value: Any, value: Any) -> Iterator[_Copy]:
    """Yield the lists and dictionaries in ``value`` that are copies of those at the same place of ``own_value``."""
    if own_value is value or type(own_value) is not type(value) or not isinstance(own_value, list | tuple | dict):
        return
    own_values, values = _values(own_value), _values(value)
    if len(own_values) != len(values):
        return
    if not isinstance(own_value, tuple):
        yield _Copy(own_value, value, own_values, values)
    for own_item, other in zip(own_values, values, strict=True):
        yield from _copies(own_item, other)


def _values(container: Any) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else list(container)
