"""Keeps the values that are known of fake tensors, by their memory.

A small tensor whose inputs are all known has a *twin*: real memory with the values that the fake memory would hold.
Views share the twin of their memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True, slots=True)
class KnownValue:
    """Knowledge of a storage: its ``twin``, or that all its elements have the value of a ``twin`` of one element.

    ``because`` are the assumptions that this rests on.
    """

    storage: Callable[[], Any]
    twin: Tensor
    is_uniform: bool
    because: frozenset[str]

    def value(self, fake: Tensor) -> Tensor:
        """The real tensor for a fake one in this storage; one element for each dimension if all are equal."""
        if self.is_uniform:
            return self.twin.reshape((1,) * fake.ndim)
        real = torch.empty(0, dtype=fake.dtype)
        return real.set_(self.twin.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())


def _nowhere() -> None:
    return None


class KnownTensors:
    """Values of fake tensors. It is false while nothing is known."""

    def __init__(self) -> None:
        self._by_address: dict[int, KnownValue] = {}

    def __bool__(self) -> bool:
        return bool(self._by_address)

    def values_of(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[KnownValue] | None:
        """The known values of each tensor among the arguments; None if something is not."""
        values: list[KnownValue] = []
        for leaf in tree_leaves((args, kwargs)) if kwargs else _leaves(args):
            if isinstance(leaf, Tensor):
                value = self.of(leaf)
                if value is None:
                    return None
                values.append(value)
        return values

    def of(self, leaf: Any) -> KnownValue | None:
        """The knowledge of a tensor's memory, if any; a real tensor is known."""
        if type(leaf) is Tensor:  # a real one, such as data that the workload holds
            return KnownValue(_nowhere, leaf, False, frozenset())
        if type(leaf) is not FakeTensor or leaf.layout is not torch.strided or not self._by_address:
            return None
        storage = leaf.untyped_storage()
        entry = self._by_address.get(storage._cdata)
        if entry is None or entry.is_uniform or entry.twin.untyped_storage().nbytes() >= storage.nbytes():
            return entry
        return None  # the memory has grown: nobody knows what is in it

    def know(self, fake: FakeTensor, real: Tensor, because: frozenset[str], *, is_uniform: bool = False) -> None:
        """Note the value of a fake tensor, which must be all of its memory, or that of all its elements."""
        if real.is_meta or fake.layout is not torch.strided:
            return  # such as a BatchNorm of a model that is built on the meta device
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            if not is_uniform:
                storage_bytes = fake.untyped_storage().nbytes()
                if fake.storage_offset() or fake.shape != real.shape or storage_bytes != bytes_of(fake):
                    return
                twin = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype)
                real = twin.copy_(real)
        storage = fake.untyped_storage()
        address = storage._cdata
        reference = weakref.ref(storage, lambda gone: self._forget(address, gone))
        self._by_address[address] = KnownValue(reference, real, is_uniform, because)

    def write(self, leaf: FakeTensor, because: frozenset[str]) -> None:
        """Note that the twin of a tensor has new values, which rest on these assumptions."""
        address = leaf.untyped_storage()._cdata
        self._by_address[address] = replace(self._by_address[address], because=because)

    def lose(self, leaf: FakeTensor) -> None:
        """Forget the values of a tensor."""
        self._by_address.pop(leaf.untyped_storage()._cdata, None)

    def _forget(self, address: int, gone: weakref.ref[Any]) -> None:
        entry = self._by_address.get(address)
        if entry is not None and entry.storage is gone:
            del self._by_address[address]


def _leaves(args: Sequence[Any]) -> Any:
    for item in args:
        if type(item) is list or type(item) is tuple:
            yield from item
        else:
            yield item


def bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.itemsize
