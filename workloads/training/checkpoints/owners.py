"""Finds what users' code may keep something in between steps: its objects, classes, files, functions and closures."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from scamp.workload.seeds import is_generator, restore_generator, state_of_generator
from workloads.loading import PRIVATE
from workloads.parallel.forward_state.snapshot import OWN
from workloads.protocol import Workload

_DEEP = 3
"""Levels of containers in which functions and objects are looked for."""
_MOST_PARTS = 1000
"""Most items of a container in which they are looked for."""
_MOST_KEPT = 2**20
"""Bytes of a tensor that is copied, as passes may change it in place."""
_OF_WORKLOADS = {"params", "trial", "_opened_datasets"}


def owners_of(workload: object, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """The workload, which has the empty name, modules, optimizers, and what is of the user's own and reached from these
    or from a file; by names which a training that resumes has as well."""
    owners: dict[str, Any] = {"": workload, **{f".{path}": module for path, module in model.named_modules()}}
    optimizers = getattr(optimizer, "_optimizers", [optimizer] if optimizer is not None else [])
    owners |= {f"optimizer {number}": getattr(each, "optim", each) for number, each in enumerate(optimizers)}
    package = f"{type(workload).__module__.partition('.')[0]}."
    if not package.startswith(PRIVATE):
        return owners
    files = {name.removeprefix(package): file for name, file in sys.modules.items() if name.startswith(package)}
    owners |= {f"file {name}": file for name, file in files.items()}
    visited, waiting = {id(owner) for owner in owners.values()}, deque(owners.items())
    while waiting:
        path, owner = waiting.popleft()
        for name, value in _all_attributes(owner):
            for place, part in _parts(name, value, _DEEP):
                if id(part) not in visited and _is_own(part, package):
                    visited.add(id(part))
                    owners[f"{path} {place}"] = part
                    waiting.append((f"{path} {place}", part))
    return owners


def attributes_of(owner: Any) -> dict[str, Any]:
    """The attributes of an owner, without those of Python, torch and ScaMP. A function has its free variables, the
    default values of its parameters, whose names end in ``=``, and its own attributes, whose names begin with a dot."""
    return {name: value for name, value in _all_attributes(owner) if not _is_ours(owner, name)}


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """Give an attribute of ``attributes_of`` a value."""
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif not isinstance(owner, FunctionType):
        vars(owner)[name] = value
    elif name.startswith("."):
        vars(owner)[name[1:]] = value
    elif name.endswith("="):
        _set_default(owner, name[:-1], value)
    elif name in owner.__code__.co_freevars:
        _cells(owner)[name].cell_contents = value


def holding(owners: Mapping[str, Any]) -> dict[str, Any]:
    """The owners without functions that have no variables; all others may get their first attribute in any pass."""
    return {
        name: owner for name, owner in owners.items() if not isinstance(owner, FunctionType) or attributes_of(owner)
    }


class Snapshot:
    """The attributes of owners, with copies of what may change in place: what passes leave in them is taken back.

    Parts of a model are not looked at: ``forward_state`` has those.
    """

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._before = [(owner, attributes_of(owner)) for name, owner in owners.items() if not name.startswith(".")]
        values = {id(value): value for _, attributes in self._before for value in attributes.values()}.values()
        self._containers = [
            (value, copy.copy(value)) for value in values if isinstance(value, list | dict | set | deque)
        ]
        small = (value for value in values if isinstance(value, Tensor) and not value.is_meta)
        self._tensors = [
            (value, value._version, value.detach().clone()) for value in small if value.nbytes <= _MOST_KEPT
        ]
        self._generators = [(value, state_of_generator(value)) for value in values if is_generator(value)]
        self._counters = {id(value): copy.copy(value) for value in values if isinstance(value, itertools.count)}

    def restore(self) -> bool:
        """Bring them back, as often as they have changed. Returns whether any attribute has."""
        has_changed = False
        for owner, before in self._before:
            now = attributes_of(owner)
            for name in now.keys() - before.keys():
                has_changed = True
                _remove(owner, name)
            for name, value in before.items():
                counter = self._counters.get(id(value))
                if now.get(name) is not value or counter is not None:
                    has_changed = True
                    set_attribute(owner, name, value if counter is None else copy.copy(counter))
        for container, items in self._containers:
            if not _has_items_of(container, items):
                has_changed = True
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(items)
        for tensor, version, earlier in self._tensors:
            if tensor._version != version:
                has_changed = True
                tensor.data.copy_(earlier)
        for generator, state in self._generators:
            restore_generator(generator, state)
        return has_changed


def _has_items_of(container: Any, other: Any) -> bool:
    """Whether two containers hold the same objects."""
    if isinstance(other, set):
        return bool(container == other)
    items, others = (
        [*each.keys(), *each.values()] if isinstance(each, dict) else list(each) for each in (container, other)
    )
    return len(items) == len(others) and all(item is earlier for item, earlier in zip(items, others, strict=True))


def _all_attributes(owner: Any) -> list[tuple[str, Any]]:
    if not isinstance(owner, FunctionType):
        return list(vars(owner).items())
    attributes = []
    for name, cell in _cells(owner).items():
        try:
            attributes.append((name, cell.cell_contents))
        except ValueError:  # not assigned yet
            continue
    attributes += [(f"{name}=", value) for name, value in _defaults(owner).items()]
    return attributes + [(f".{name}", value) for name, value in vars(owner).items()]


def _cells(function: FunctionType) -> dict[str, Any]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _defaults(function: FunctionType) -> dict[str, Any]:
    names, values = function.__code__.co_varnames[: function.__code__.co_argcount], function.__defaults__ or ()
    return {**dict(zip(names[len(names) - len(values) :], values, strict=True)), **(function.__kwdefaults__ or {})}


def _set_default(function: FunctionType, name: str, value: Any) -> None:
    if function.__kwdefaults__ and name in function.__kwdefaults__:
        function.__kwdefaults__[name] = value
        return
    defaults = {**_defaults(function), name: value}
    by_keyword = function.__kwdefaults__ or {}
    function.__defaults__ = tuple(value for name, value in defaults.items() if name not in by_keyword) or None


def _remove(owner: Any, name: str) -> None:
    if isinstance(owner, type):
        delattr(owner, name)
    elif not isinstance(owner, FunctionType):
        del vars(owner)[name]
    elif name.startswith("."):
        del vars(owner)[name[1:]]
    elif name in owner.__code__.co_freevars:
        del _cells(owner)[name].cell_contents


def _is_ours(owner: Any, name: str) -> bool:
    """Whether an attribute with this name is Python's, torch's or ScaMP's."""
    if isinstance(owner, torch.optim.Optimizer):
        return name.startswith("_") or name in ("defaults", "state", "param_groups")
    if isinstance(owner, FunctionType):
        return name in ("__class__", ".__wrapped__")
    if isinstance(owner, nn.Module):
        return name in OWN
    return name.startswith("__") or name == "_abc_impl" or (isinstance(owner, Workload) and name in _OF_WORKLOADS)


def _parts(name: str, value: Any, deep: int) -> Iterator[tuple[str, Any]]:
    """A value, and what is in it where that is a container, a method, a part of a call, or a tensor with hooks."""
    yield name, value
    inner: Any = ()
    match value:
        case dict():
            inner = value.values()
        case list() | tuple() | deque():
            inner = value
        case MethodType():
            inner = (value.__self__, value.__func__)
        case functools.partial():
            inner = (value.func, *value.args, *value.keywords.values())
        case staticmethod() | classmethod():
            inner = (value.__func__,)
        case property():
            inner = (value.fget, value.fset)
        case Tensor() if value.requires_grad:
            inner = (value._backward_hooks, value._post_accumulate_grad_hooks)
    if deep and len(inner) <= _MOST_PARTS:
        for number, part in enumerate(list(inner)):
            yield from _parts(f"{name}.{number}", part, deep - 1)


def _is_own(value: Any, package: str) -> bool:
    """Whether a value can hold something, and is the user's own."""
    if isinstance(value, type | FunctionType):
        return bool(value.__module__) and value.__module__.startswith(package)
    return type(value).__module__.startswith(package) and hasattr(value, "__dict__")
