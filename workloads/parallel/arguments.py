"""The arguments of a block that is computed again: what the first pass has changed in them is undone meanwhile.

A block may keep its result in an object that it was given, append to a list, or fill a cache. A pass that is repeated
must begin from what the first one got. Containers and objects are restored; a tensor that was changed in place cannot
be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workloads.refusals import WorkloadError

_MOST_LEVELS = 6
_ATOMS = (str, bytes, int, float, complex, type(None), type, nn.Module)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Values that containers and objects held when a block was called, and the versions of the tensors in them."""

    held: Sequence[tuple[Any, Any]]
    versions: Sequence[tuple[Tensor, int]]

    @classmethod
    def of(cls, *values: Any) -> Arguments:
        """The contents of ``values`` now."""
        held: dict[int, tuple[Any, Any]] = {}
        tensors: dict[int, Tensor] = {}
        _visit(values, held, tensors, _MOST_LEVELS)
        versions = [(tensor, tensor._version) for tensor in tensors.values() if not tensor.is_inference()]
        return cls(list(held.values()), versions)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the contents for a while."""
        now = [(tensor, _copy(tensor)) for tensor, _ in self.held]
        _restore(self.held)
        try:
            yield
        finally:
            _restore(now)

    def expect_unchanged_tensors(self, block: nn.Module) -> None:
        """Raise ``WorkloadError`` if a tensor was changed in place, by which another pass would begin from others."""
        if any(tensor._version != version for tensor, version in self.versions):
            raise WorkloadError(
                f"{type(block).__name__} changes a tensor that it is given in place, so its backward pass would "
                "compute it again from other values: make a new tensor (x = x + … instead of x += …), or use plans "
                "without recompute"
            )


def tensors_of(*values: Any) -> list[Tensor]:
    """The tensors in containers and objects, in lists, dictionaries and attributes of objects of any class."""
    tensors: dict[int, Tensor] = {}
    _visit(values, {}, tensors, _MOST_LEVELS)
    return list(tensors.values())


def _visit(value: Any, held: dict[int, tuple[Any, Any]], tensors: dict[int, Tensor], levels: int) -> None:
    if isinstance(value, Tensor):
        tensors[id(value)] = value
        return
    if isinstance(value, _ATOMS) or id(value) in held or not levels:
        return
    if isinstance(value, tuple | frozenset):
        inside: Any = value
    else:
        inside = _copy(value)
        if inside is None or callable(value):
            return
        held[id(value)] = value, inside
    for item in list(inside.values()) if isinstance(inside, dict) else list(inside):
        _visit(item, held, tensors, levels - 1)


def _copy(value: Any) -> Any:
    """A copy of a list, a dictionary, a set or the attributes of an object; None if it has none."""
    if isinstance(value, dict | list | set):
        return value.copy()
    attributes = getattr(value, "__dict__", None)
    return dict(attributes) if isinstance(attributes, dict) else None


def _restore(held: Sequence[tuple[Any, Any]]) -> None:
    for value, contents in held:
        if isinstance(value, list):
            value[:] = contents
            continue
        target = value if isinstance(value, dict | set) else value.__dict__
        target.clear()
        target.update(contents)
