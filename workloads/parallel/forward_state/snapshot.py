"""A snapshot of what a later pass through a model may depend on, which can be restored: buffers, attributes, parameters
that change in place, and hooks that a pass adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

NAME = "_scamp_forward_state"
"""The attribute of a model that holds its forward state."""
TRAITS = "_scamp_traits"
"""The attribute of a model that holds the traits of its code."""
OWN = frozenset(nn.Module().__dict__) | {NAME, TRAITS, "forward"}
"""Attributes of every module that are not state of the model."""

Place = tuple[nn.Module, str]
"""A module and the name of one of its tensors."""


@dataclass(slots=True)
class ModuleSnapshot:
    """The state of some modules: attributes and buffers as objects, and copies of the tensors that change in place.

    ``hooks`` are registries of hooks, each with the keys that it has now.
    """

    objects: Sequence[tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]]
    values: dict[Place, Tensor]
    is_state: Callable[[Any], bool]
    hooks: Sequence[tuple[dict[int, Any], frozenset[int]]] = ()

    def add(self, values: Mapping[Place, Tensor | None]) -> None:
        """Add copies of tensors that were made later, but before the tensors changed."""
        for place, value in values.items():
            if value is not None:
                self.values.setdefault(place, value)

    def replaced(self) -> Iterator[Place]:
        """Buffers that are other tensors now."""
        for module, _, buffers in self.objects:
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer is not buffers.get(name):
                    yield module, name

    def changed_attributes(self) -> Iterator[Place]:
        """Attributes that have other values now."""
        for module, attributes, _ in self.objects:
            for name, value in attributes_of(module, self.is_state).items():
                if name not in attributes or attributes[name] is not value:
                    yield module, name

    def restore(self) -> None:
        """Bring this state back. Autograd does not see it: tensors that it keeps for a backward pass stay valid."""
        for module, attributes, buffers in self.objects:
            for name in attributes_of(module, self.is_state).keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            module._buffers.update(buffers)
        for registry, keys in self.hooks:
            for key in registry.keys() - keys:
                del registry[key]
        for place, value in self.values.items():
            tensor_at(place).data.copy_(value)


def attributes_of(module: nn.Module, is_state: Callable[[Any], bool]) -> dict[str, Any]:
    """The attributes of one module that are state."""
    return {name: value for name, value in module.__dict__.items() if name not in OWN and is_state(value)}


def hooks_of(model: nn.Module) -> list[tuple[dict[int, Any], frozenset[int]]]:
    """The registries of hooks around ``forward`` of all modules, each with the keys that it has now.

    transformers adds such hooks in a first pass, and notes in an attribute that they are there: both go together.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    registries = [getattr(module, kind) for module in model.modules() for kind in kinds]
    return [(registry, frozenset(registry)) for registry in registries]


def may_be_state(value: Any) -> bool:
    """Whether a later pass may depend on an attribute: on numbers, text, and tensors that are not results of a pass."""
    if isinstance(value, Tensor):
        return not value.requires_grad
    return value is None or isinstance(value, bool | int | float | complex | str)


def tensor_at(place: Place) -> Tensor:
    """The tensor, or a rank's part of it."""
    module, name = place
    tensors = (tensors.get(name) for tensors in (module._buffers, module._parameters, module.__dict__))
    return local_part(next(tensor for tensor in tensors if tensor is not None))


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank has."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def has_fractions(tensor: Tensor) -> bool:
    """Whether training can change the numbers of a tensor by steps: real or complex ones, but no integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def real_numbers(tensor: Tensor) -> Tensor:
    """A view of the tensor in which each complex number is two real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def address_of(tensor: Tensor) -> int:
    """The place of a tensor's storage, or of that of a rank's part of it.

    Unlike ``local_part``, it runs no operation: a view of a DTensor takes a millisecond in a trace.
    """
    part: Tensor = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    address: int = part.untyped_storage()._cdata
    return address
