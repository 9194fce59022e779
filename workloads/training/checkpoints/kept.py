"""State that a training keeps in attributes and variables of the user's code, which no tensor of the model has.

A running baseline, the age of a teacher or the hidden state of the last batch must be there when a training resumes.
Attributes of the workload, its modules, optimizers, classes and objects, and variables of files and closures are kept
once they change, if a checkpoint can hold them without code: numbers, text, tensors, arrays, and lists, tuples,
dictionaries, sets and deques of these; and the states of generators and of what has ``state_dict`` and
``load_state_dict``, such as a scheduler. A workload may have these two methods itself, instead.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scamp.workload.seeds import is_generator, restore_generator, state_of_generator
from workloads.training.checkpoints.owners import attributes_of, owners_of, set_attribute

MOST_BYTES = 16 * 2**20
"""Largest tensor or array that is kept: a larger one is data, which is made anew."""
MOST_ITEMS = 10_000
"""Most items of a list or another container that is kept."""
_MOST_WATCHED = 100_000
"""Most items of a container with those in it that is looked at for changes: a larger one is data, too."""
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_COMPARED_BYTES = 2**20
"""Largest array whose content shows whether it has changed; tensors count their changes."""
_KIND, _IN_PLACE = "kind", "in place"
_CONTAINERS: Mapping[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}

_IN_MODELS: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""All parts of models that are trained."""

Kept = Mapping[str, Mapping[str, Any]]
"""Name of the owner → its attributes, encoded. The workload has the empty name, a module its qualified one, with a dot
before it (see ``owners_of``)."""


class NotPlain(Exception):
    """A value that no checkpoint can hold."""


class Changes:
    """The attributes of owners that have changed since this was made."""

    def __init__(self, owners: Mapping[str, Any]) -> None:
        self._before = {(owner, name): (value, _content(value)) for owner, name, value in _attributes(owners)}

    def found(self, owners: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, bool]]:
        """Owners, names and values of attributes that have changed, and whether they did so in place."""
        for owner, name, value in _attributes(owners):
            before, content = self._before.get((owner, name), (NotPlain, None))
            if value is not before or _content(value) != content:
                yield owner, name, value, value is before


def _attributes(owners: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for owner, instance in owners.items():
        if not owner and all(callable(getattr(instance, name, None)) for name in ("state_dict", "load_state_dict")):
            yield owner, _OWN_STATE, instance.state_dict()
            continue
        yield from ((owner, name, value) for name, value in attributes_of(instance).items())


class KeptState:
    """The attributes that a training changes from now on."""

    def __init__(
        self,
        workload: object,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        others: Mapping[str, object] = {},
    ) -> None:
        """``others`` are further owners of attributes, by names that no owner of the user's code has."""
        self._of, self._others = (workload, model, optimizer), others
        _IN_MODELS.update(model.modules())
        self._changes = Changes(self._find())
        self.left_out: dict[str, str] = {}
        """Attributes of the workload that have changed and that no checkpoint can hold, and their types."""

    def _find(self) -> dict[str, Any]:
        return {**owners_of(*self._of), **self._others}

    def values(self) -> Kept:
        """The attributes that have changed, for ``torch.save``."""
        self.left_out.clear()
        kept: dict[str, dict[str, Any]] = {}
        for owner, name, value, is_in_place in self._changes.found(self._find()):
            try:
                plain = encoded(value)
                in_place = {_KIND: _IN_PLACE, "items": plain}
                kept.setdefault(owner, {})[name] = in_place if is_in_place and _can_change(value) else plain
            except NotPlain as error:
                if not (owner or callable(value) or isinstance(value, torch.optim.Optimizer)):
                    self.left_out[f"self.{name}"] = str(error)
        return kept

    def load(self, kept: Kept) -> None:
        """Continue with what ``values`` returned; modules of other stages are left out."""
        owners = self._find()
        for owner, attributes in kept.items():
            instance = owners.get(owner)
            if instance is None:
                continue
            if not owner and _OWN_STATE in attributes:
                instance.load_state_dict(decoded(attributes[_OWN_STATE]))
                continue
            present = attributes_of(instance)
            for name, value in attributes.items():
                set_attribute(instance, name, _loaded(value, present.get(name)))


_OWN_STATE = "state_dict()"


def _content(value: Any) -> object:
    """A number or text that is another one once a value that can change in place has changed."""
    if type(value) in _PLAIN:
        return None
    if isinstance(value, Tensor):
        return value._version
    if isinstance(value, itertools.count):
        return repr(value)
    if is_generator(value):
        return repr(state_of_generator(value))
    if _has_state(value):
        return [(name, _content(item) if isinstance(item, Tensor) else repr(item)) for name, item in _state(value)]
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _COMPARED_BYTES else None
    return _items(value) if isinstance(value, _CHANGING) and not _is_data(value) else None


_CHANGING = (list, dict, set, deque)


def _items(value: Any) -> object:
    """The items of a container; of numbers and text alone, themselves, which takes little time for many."""
    items = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
    if _PLAIN.issuperset(map(type, items)):
        return items
    return [(id(item), _items(item) if isinstance(item, _CHANGING) else _content(item)) for item in items]


def _is_data(value: Any) -> bool:
    """Whether a container has so many items that nobody changes it between steps."""
    num, waiting = 0, [value]
    while waiting:
        container = waiting.pop()
        num += len(container)
        if len(container) > MOST_ITEMS or num > _MOST_WATCHED:
            return True
        inner = container.values() if isinstance(container, dict) else container
        waiting += [item for item in inner if isinstance(item, _CHANGING)]
    return False


def encoded(value: Any) -> Any:
    """The value as numbers, text, tensors, lists and dictionaries. Raises ``NotPlain``."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    is_plain = type(value) is Tensor and value.layout is torch.strided and not (value.requires_grad or value.is_meta)
    if is_plain and value.nbytes <= MOST_BYTES:
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.nbytes <= MOST_BYTES:
        kind = "number" if isinstance(value, np.generic) else "array"
        return {_KIND: kind, "items": torch.from_numpy(np.array(value))}
    if isinstance(value, itertools.count):
        return {_KIND: "count", "items": list(value.__reduce__()[1])}
    if is_generator(value):
        return {_KIND: "generator", "items": encoded(state_of_generator(value))}
    if _has_state(value):
        return {_KIND: "state", "items": [[name, encoded(item)] for name, item in _state(value)]}
    if type(value) in (list, dict, *_CONTAINERS.values()) and len(value) <= MOST_ITEMS:
        if isinstance(value, dict):
            return {_KIND: "dict", "items": [[encoded(key), encoded(item)] for key, item in value.items()]}
        items = [encoded(item) for item in value]
        if isinstance(value, deque):
            return {_KIND: "deque", "items": items, "most": value.maxlen}
        return items if isinstance(value, list) else {_KIND: type(value).__name__, "items": items}
    raise NotPlain(type(value).__name__)


def decoded(value: Any) -> Any:
    """The value that was ``encoded``."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, items = value[_KIND], value["items"]
    match kind:
        case "array":
            return items.numpy()
        case "number":
            return items.numpy()[()]
        case "count":
            return itertools.count(*items)
        case "generator" | "state":
            return None  # nobody has it any more
        case "dict":
            return {decoded(key): decoded(item) for key, item in items}
        case "deque":
            return deque(map(decoded, items), value["most"])
    return _CONTAINERS[kind](map(decoded, items))


def _loaded(value: Any, present: Any) -> Any:
    """The value that was ``encoded``; the object that is there now, in that state, where it has one."""
    match value:
        case {"kind": "in place", "items": items}:
            return _filled(present, _loaded(items, present))
        case {"kind": "generator", "items": state} if is_generator(present):
            restore_generator(present, decoded(state))
            return present
        case {"kind": "state", "items": items} if _has_state(present):
            present.load_state_dict({name: decoded(item) for name, item in items})
            return present
        case {"kind": "dict", "items": items} if isinstance(present, dict):
            return {(at := decoded(key)): _loaded(item, present.get(at)) for key, item in items}
        case list() if isinstance(present, list):
            return [_loaded(item, there) for item, there in itertools.zip_longest(value, present[: len(value)])]
    return decoded(value)


def _can_change(value: Any) -> bool:
    """Whether a value changes in place, so that all who hold it see the change."""
    return isinstance(value, list | dict | set | deque | Tensor | np.ndarray)


def _filled(present: Any, value: Any) -> Any:
    """The object that is there now, with the content of another value if it can take that; others hold it too."""
    if type(present) is not type(value):
        return value
    if isinstance(present, list | deque):
        present.clear()
        present.extend(value)
    elif isinstance(present, dict | set):
        present.clear()
        present.update(value)
    elif isinstance(present, Tensor | np.ndarray) and present.shape == value.shape and present.dtype == value.dtype:
        with torch.no_grad():
            present[...] = value
    else:
        return value
    return present


def _has_state(value: Any) -> bool:
    """Whether an object says itself what its state is; optimizers and parts of the model are in checkpoints anyway."""
    if isinstance(value, type | torch.optim.Optimizer):
        return False
    if isinstance(value, nn.Module) and (value in _IN_MODELS or any(part.is_meta for part in value.parameters())):
        return False
    return all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict"))


def _state(value: Any) -> list[tuple[str, Any]]:
    return list(value.state_dict().items())
