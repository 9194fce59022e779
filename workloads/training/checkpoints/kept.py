"""State that a training keeps in attributes of the workload and of modules, which no tensor of the model has.

A running baseline, the age of a teacher or the hidden state of the last batch must be there when a training resumes.
Attributes that change during a training are kept if a checkpoint can hold them without code: numbers, text, tensors,
arrays, and lists, tuples, dictionaries, sets and deques of these. A workload may have ``state_dict`` and
``load_state_dict`` instead, as modules have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads.parallel.forward_state.snapshot import OWN

MOST_BYTES = 16 * 2**20
"""Largest tensor or array that is kept: a larger one is data, which is made anew."""
MOST_ITEMS = 10_000
"""Most items of a list or another container that is kept."""
_COMPARED_BYTES = 2**20
"""Largest array whose content shows whether it has changed; tensors count their changes."""
_NOT_STATE = OWN | {"params", "trial", "_opened_datasets"}
_KIND = "kind"
_CONTAINERS: Mapping[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}

Kept = Mapping[str, Mapping[str, Any]]
"""Name of the owner → its attributes, encoded. The workload has the empty name, a module its qualified one, with a dot
before it."""


class NotPlain(Exception):
    """A value that no checkpoint can hold."""


class KeptState:
    """The attributes that a training changes from now on."""

    def __init__(self, workload: object, model: nn.Module) -> None:
        self._workload, self._model = workload, model
        self._before = {(owner, name): (value, _content(value)) for owner, name, value in _attributes(workload, model)}
        self.left_out: dict[str, str] = {}
        """Attributes of the workload that have changed and that no checkpoint can hold, and their types."""

    @property
    def has_changed(self) -> bool:
        """Whether any attribute has changed, whether or not it can be kept."""
        return any(True for _ in self._changed())

    def _changed(self) -> Iterator[tuple[str, str, Any]]:
        for owner, name, value in _attributes(self._workload, self._model):
            before, content = self._before.get((owner, name), (NotPlain, None))
            if value is not before or _content(value) != content:
                yield owner, name, value

    def values(self) -> Kept:
        """The attributes that have changed, for ``torch.save``."""
        self.left_out.clear()
        kept: dict[str, dict[str, Any]] = {}
        for owner, name, value in self._changed():
            try:
                kept.setdefault(owner, {})[name] = encoded(value)
            except NotPlain as error:
                if not (owner or callable(value) or isinstance(value, torch.optim.Optimizer | torch.Generator)):
                    self.left_out[f"self.{name}"] = str(error)
        return kept

    def load(self, kept: Kept) -> None:
        """Continue with what ``values`` returned; modules of other stages are left out."""
        owners = _owners(self._workload, self._model)
        for owner, attributes in kept.items():
            if owner in owners and _OWN_STATE in attributes:
                owners[owner].load_state_dict(decoded(attributes[_OWN_STATE]))
            elif owner in owners:
                vars(owners[owner]).update({name: decoded(value) for name, value in attributes.items()})


_OWN_STATE = "state_dict()"


def _owners(workload: object, model: nn.Module) -> dict[str, Any]:
    return {"": workload, **{f".{path}": module for path, module in model.named_modules()}}


def _attributes(workload: object, model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for owner, instance in _owners(workload, model).items():
        if not owner and all(callable(getattr(instance, name, None)) for name in ("state_dict", "load_state_dict")):
            yield owner, _OWN_STATE, instance.state_dict()
            continue
        yield from ((owner, name, value) for name, value in vars(instance).items() if name not in _NOT_STATE)


def _content(value: Any) -> object:
    """A number or text that is another one once a value that can change in place has changed."""
    if isinstance(value, Tensor):
        return value._version
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _COMPARED_BYTES else None
    if isinstance(value, list | dict | set | deque) and len(value) <= MOST_ITEMS:
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return [(id(item), _content(item)) for item in items]
    return None


def encoded(value: Any) -> Any:
    """The value as numbers, text, tensors, lists and dictionaries. Raises ``NotPlain``."""
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    is_plain = type(value) is Tensor and value.layout is torch.strided and not value.requires_grad
    if is_plain and value.nbytes <= MOST_BYTES:
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc" and value.nbytes <= MOST_BYTES:
        kind = "number" if isinstance(value, np.generic) else "array"
        return {_KIND: kind, "items": torch.from_numpy(np.array(value))}
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
        case "dict":
            return {decoded(key): decoded(item) for key, item in items}
        case "deque":
            return deque(map(decoded, items), value["most"])
    return _CONTAINERS[kind](map(decoded, items))
