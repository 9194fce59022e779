"""Compares the imported libraries with what they were: users' code may replace their functions and set their flags.

Compared are all attributes of modules, and those of torch's central classes. Libraries also change by themselves when
they load something late or count, so only values of kinds that users change are looked at. Torch also wraps functions
of its own late, such as ``step`` of an optimizer when the first one is made; users' wrappers are found otherwise, as
functions that outlive their module.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Container, Iterator, Mapping, Sequence, ValuesView
from itertools import chain
from operator import is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

_FLAGS = (bool, float, str)  # what users set; integers count and None becomes something late, both in many libraries
_OWN = frozenset({"__warningregistry__", "__loader__", "__spec__", "__path__", "__builtins__", "__slotnames__"})
_CLASSES = (nn, torch.nn.modules, torch.optim, torch.utils.data)


class Libraries:
    """The attributes of all modules that were imported when ``remember`` was called."""

    def __init__(self) -> None:
        self._modules: dict[str, tuple[ModuleType, dict[str, Any]]] = {}
        self._classes: dict[type, dict[str, Any]] = {class_: dict(vars(class_)) for class_ in _central_classes()}
        self._restless: set[str] = set()  # modules that have changed by themselves, and may again
        self._values: tuple[Any, ...] | None = None  # of all others and of the classes; None: to be listed anew

    @property
    def names(self) -> Container[str]:
        """The names of these modules."""
        return self._modules.keys()

    def remember(self) -> bool:
        """Add the modules that were imported since the last call; returns whether values were listed anew."""
        loaded = list(sys.modules.items())
        new = [(name, module) for name, module in loaded if name not in self._modules and type(module) is ModuleType]
        self._modules |= {name: (module, dict(vars(module))) for name, module in new}
        if not new and self._values is not None:
            return False
        self._values = tuple(chain.from_iterable(self._now()))
        return True

    def changed(self) -> list[str]:
        """Names some of the changes; the registries of shown warnings are emptied instead."""
        for module, _ in self._modules.values():
            if registry := vars(module).get("__warningregistry__"):
                registry.clear()
        replaced = [name for name, (module, _) in self._modules.items() if sys.modules.get(name) is not module]
        names = list(self._restless) if self._has_the_same_values() else list(self._modules)
        return [*(f"the module {name} was replaced" for name in replaced), *self._differences(names)][:3]

    def _differences(self, names: Sequence[str]) -> Iterator[str]:
        """Compares these modules, and the classes unless these are only the restless modules."""
        for name in names:
            module, before = self._modules[name]
            if not _is_same(vars(module), before):
                yield from _differences(name, vars(module), before)
                if name not in self._restless:
                    self._restless.add(name)
                    self._values = None
        for class_, before in self._classes.items():
            if not _is_same(vars(class_), before):
                yield from _differences(f"{class_.__module__}.{class_.__qualname__}", vars(class_), before)
                self._values = None

    def _has_the_same_values(self) -> bool:
        """Compares all values at once, because one module after another takes four times as long."""
        values = self._values or ()
        return sum(map(len, self._now())) == len(values) and all(map(is_, chain.from_iterable(self._now()), values))

    def _now(self) -> Iterator[ValuesView[Any]]:
        for name, (module, _) in self._modules.items():
            if name not in self._restless:
                yield vars(module).values()
        yield from (vars(class_).values() for class_ in self._classes)


def forget_classes() -> None:
    """Empty the caches in which libraries keep classes of users for as long as the process lives."""
    for clear in typing._cleanups:  # type: ignore[attr-defined]
        clear()
    if fully_shard := sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard"):
        fully_shard.cls_to_fsdp_cls.clear()


def _central_classes() -> Iterator[type]:
    yield from (torch.Tensor, torch.autograd.Function, torch.Generator)
    for module in _CLASSES:
        yield from (value for value in vars(module).values() if isinstance(value, type))


def _is_same(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now.values(), before.values()))


def _differences(where: str, now: Mapping[str, Any], before: dict[str, Any]) -> Iterator[str]:
    """Lists the changes since ``before``, which then becomes what is there now."""
    for name in [name for name, value in before.items() if _was_changed(name, value, now.get(name))]:
        yield f"{where}.{name} was changed"
    for name in [name for name in now if name not in before and _is_foreign(where, name, now[name])]:
        yield f"{where}.{name} was added"
    before.clear()
    before.update(now)


def _was_changed(name: str, before: Any, now: Any) -> bool:
    if now is before or hasattr(now, "__wrapped__"):
        return False
    if isinstance(before, _FLAGS):
        return not name.startswith("_") and (type(now) is not type(before) or bool(now != before))
    return callable(before)


def _is_foreign(where: str, name: str, value: Any) -> bool:
    """Whether a new attribute is none that the module itself has defined late, nor a submodule."""
    if isinstance(value, ModuleType) or name in _OWN or hasattr(value, "__wrapped__"):
        return False
    defines = isinstance(value, FunctionType | BuiltinFunctionType | type)
    return not (defines and value.__module__ == where)
