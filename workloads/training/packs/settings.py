"""Notices that a model has changed in more than the numbers that train: in any attribute of its modules.

A pack has seen that a model computes the same with others and alone. That holds for as long as these settings do.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from operator import is_
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_APART = ("_parameters", "_buffers", "_modules")
_OPAQUE = object()
_DEEPEST = 4  # containers in containers; some contain themselves
_MOST_OBJECTS = 1000  # a module may hold a data set


class Settings:
    """The attributes of all modules of a model and of objects that these hold, such as a configuration, their modes,
    hooks, parts and buffers, the memory of frozen parameters, and which parameters train. To compare them costs a few
    microseconds for each module."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._note()

    def changed(self) -> bool:
        """Whether any differs from when this was asked before."""
        if list(map(len, self._containers)) == self._sizes:
            objects, states = self._now()
            if states == self._states and (
                all(map(is_, objects, self._objects)) or all(map(_are_equal, objects, self._objects))
            ):
                return False
        self._note()
        return True

    def _note(self) -> None:
        self._containers: list[Any] = []
        self._seen = set[int]()
        for module in self._model.modules():
            self._add(module.__dict__)
        self._sizes = list(map(len, self._containers))
        self._filled = [container for container in self._containers if container]
        self._parameters = list(self._model.parameters())
        self._tensors = [value for value in chain(*map(_values, self._filled)) if isinstance(value, Tensor)]
        self._objects, self._states = self._now()

    def _add(self, container: Any) -> None:
        if id(container) in self._seen:
            return
        self._seen.add(id(container))
        self._containers.append(container)
        for name, value in list(container.items() if isinstance(container, dict) else zip(repeat("_"), container)):
            is_container, is_public = isinstance(value, (dict, list, tuple, set)), not str(name).startswith("_")
            attributes = _attributes_of(value) if is_public and len(self._seen) < _MOST_OBJECTS else None
            if is_container or attributes is not None:
                self._add(value if is_container else attributes)

    def _now(self) -> tuple[list[object], list[object]]:
        objects = list(chain.from_iterable(map(_values, self._filled)))
        states: list[object] = [None if each.requires_grad else each.data_ptr() for each in self._parameters]
        states += [each._version for each in self._tensors if not each.requires_grad]
        return objects, states


def plain_attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """The public attributes of a module, and of the objects that it holds, that are plain values, or containers of
    such, in a form to compare."""
    for name, value in module.__dict__.items():
        if name.startswith("_"):
            continue
        for part, of_part in (_attributes_of(value) or {"": value}).items():
            if not part.startswith("_") and (plain := _plain(of_part)) is not _OPAQUE:
                yield f"{name}.{part}".rstrip("."), plain


def _attributes_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object that only holds values, such as a configuration; None for anything else."""
    attributes = getattr(value, "__dict__", None)
    is_apart = isinstance(value, (nn.Module, Tensor, type, ModuleType, torch.Generator)) or callable(value)
    return attributes if isinstance(attributes, dict) and not is_apart else None


def _values(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _are_equal(value: object, other: object) -> bool:
    return value is other or (_plain(value) is not _OPAQUE and _plain(value) == _plain(other))


def _plain(value: Any, depth: int = 0) -> object:
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, (dict, list, tuple, set)) or depth > _DEEPEST:
        return _OPAQUE
    parts = [*value, *value.values()] if isinstance(value, dict) else list(value)
    copies = [_plain(part, depth + 1) for part in parts]
    return _OPAQUE if any(copy is _OPAQUE for copy in copies) else copies
