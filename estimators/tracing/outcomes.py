"""Caches the results of operations on fake tensors: the same operation on the same shapes gives the same shapes again.

Torch has a cache of its own for this, which handles every sort of fake tensor; most of a trace's time went into its
keys. This cache only handles plain strided tensors, and leaves everything else to torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

from estimators.tracing.device import Device, Workspace
from estimators.tracing.kernels import PRODUCTS
from estimators.tracing.operations import op_kind_of, operation_of
from estimators.work import Operation

Key = tuple[Any, ...]
_ATEN = torch.ops.aten
_KNOWN_ON_META = frozenset(
    [
        *(_ATEN.alias.default, _ATEN.detach.default, _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.t.default),
        *(_ATEN.transpose.int, _ATEN.permute.default, _ATEN.expand.default, _ATEN.unsqueeze.default, _ATEN.select.int),
        *(_ATEN.slice.Tensor, _ATEN.split.Tensor, _ATEN.unbind.int, _ATEN.stack.default),
        *(_ATEN.clone.default, _ATEN.empty_like.default, _ATEN.zeros_like.default, _ATEN.ones_like.default),
        *(_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.sum.dim_IntList),
    ]
)
"""Operations with the same result on every device. Meta tensors compute it faster than fake ones (a view in a seventh
of the time, a product in half). Fake tensors stand for a device, on which the results of other operations may depend,
such as the type of a layer norm's statistics."""
_NUMBERS = (bool, int, float, str, type(None))
_NAMES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class _Unknown(Exception):
    """The outcome cannot be cached: it may depend on more than the key holds."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that an operation returns: in memory of its own or, if ``is_view``, in that of its one input tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    dtype: torch.dtype
    device: torch.device
    is_view: bool


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """The outputs of an operation, the memory that it uses internally, and the work that it does.

    In ``outputs`` an int is the index of an argument; they are empty if they cannot be cached.
    ``sequence`` is the type of the sequence that the operation returns, None for a single output.
    """

    outputs: tuple[_Made | int | None, ...]
    sequence: type | None
    workspace: Workspace
    kind: str | None
    amounts: tuple[float, ...]
    work: Operation | None


class Outcomes:
    """The cache as one fake mode uses it. Modes for the same device share the outcomes: shapes do not depend on the
    mode."""

    _of_devices: ClassVar[dict[Device, dict[Key, OperationOutcome]]] = {}

    def __init__(self, fake: FakeTensorMode, device: Device) -> None:
        self._fake, self._device = fake, device
        self._known = self._of_devices.setdefault(device, {})
        self._attributes: dict[torch.device, dict[str, Any]] = {}  # of fake tensors, by device
        fake.cache_enabled = False  # torch's own cache

    def key(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key | None:
        """The key of an operation with its arguments; None if the outcome cannot be cached."""
        if not operation._schema.returns:
            return None  # run each time: it may write to tensors whose values are known
        try:
            named_parts = ((name, self._key_part(value)) for name, value in kwargs.items())
            # The default type is that of tensors made without a type, and of products of integers and other numbers.
            return (operation, torch.get_default_dtype(), *map(self._key_part, args), *named_parts)
        except _Unknown:
            return None

    def cached(self, key: Key) -> OperationOutcome | None:
        """The cached outcome; None if there is none."""
        return self._known.get(key)

    def predict(
        self, key: Key, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OperationOutcome | None:
        """The outcome, computed on meta tensors instead of fake ones and cached; None if that does not work."""
        if operation not in _KNOWN_ON_META or any(type(value) is torch.device for value in kwargs.values()):
            return None
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, FakeTensor)]
        devices = {tensor.fake_device for tensor in tensors}
        if len(devices) != 1 or (operation in PRODUCTS and len({tensor.dtype for tensor in tensors}) != 1):
            return None
        with torch._C._DisableTorchDispatch():
            meta_args = tuple(map(_on_meta, args))
            try:
                out = operation(*meta_args, **kwargs)
            except Exception:  # the call with fake tensors raises the proper error
                return None
            outcome = self.learn(key, operation, meta_args, kwargs, out, *devices)
        return outcome if outcome.outputs else None

    def learn(
        self,
        key: Key | None,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        device: torch.device | None = None,
    ) -> OperationOutcome:
        """The outcome of an operation that returned ``out``, cached if possible. Meta tensors stand for ``device``."""
        kind = op_kind_of(operation)
        work = operation_of(operation, args, kwargs, out, kind) if kind is not None else None
        done = work.amounts if work is not None else ()
        workspace = self._device.workspace(operation, args, kwargs, out)
        sequence = type(out) if type(out) in (tuple, list) else None
        try:
            if key is None or torch.Tag.inplace_view in operation.tags or "out" in kwargs:
                raise _Unknown
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            outputs = out if sequence else (out,)
            described = tuple(_described(output, args, tensors, device) for output in outputs)
            memory = [o.untyped_storage()._cdata for o, m in zip(outputs, described, strict=True) if _is_own(m)]
            if len(set(memory)) < len(memory):
                raise _Unknown  # outputs that share what they are made of
        except _Unknown:
            return OperationOutcome((), sequence, workspace, kind, done, work)
        self._known[key] = outcome = OperationOutcome(described, sequence, workspace, kind, done, work)
        return outcome

    def new_outputs(self, outcome: OperationOutcome, args: tuple[Any, ...]) -> Any:
        """New outputs of an operation with a cached outcome, for ``args``."""
        tensors = [self._make(output, args) for output in outcome.outputs]
        return outcome.sequence(tensors) if outcome.sequence else tensors[0]

    def _key_part(self, value: Any) -> Any:
        """Everything about an argument that the outcome can depend on; raises ``_Unknown`` if that is not known."""
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not self._fake or value.constant is not None or value.layout is not torch.strided:
                raise _Unknown
            return value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
        if kind in _NUMBERS:
            return kind, value  # 1, 1.0 and True are equal
        if kind is list or kind is tuple:
            return tuple(map(self._key_part, value))
        if kind in _NAMES:
            return value
        raise _Unknown

    def _make(self, described: _Made | int | None, args: tuple[Any, ...]) -> Any:
        if described is None:
            return None
        if isinstance(described, int):
            return args[described]
        with torch._C._DisableTorchDispatch():
            tensor = torch.empty_strided(described.shape, described.stride, dtype=described.dtype, device="meta")
            if described.is_view:
                source = next(leaf for leaf in tree_leaves(args) if isinstance(leaf, FakeTensor))
                tensor.set_(source.untyped_storage(), described.offset, described.shape, described.stride)
            return self._faked(tensor, described.device)

    def _faked(self, tensor: Tensor, device: torch.device) -> FakeTensor:
        """``FakeTensor(self._fake, tensor, device)`` in a fifth of the time: their attributes are all equal."""
        if (attributes := self._attributes.get(device)) is None:
            first = FakeTensor(self._fake, torch.empty(0, device="meta"), device)
            attributes = self._attributes[device] = dict(vars(first))
        fake = Tensor._make_subclass(FakeTensor, tensor, dispatch_device=True, device_for_backend_keys=device)
        torch._C._set_throw_on_mutable_data_ptr(fake)
        vars(fake).update(attributes)
        return fake


def _on_meta(value: Any) -> Any:
    """The value, with meta tensors in place of fake ones."""
    if type(value) is FakeTensor:
        room = torch.empty(value.storage_offset() + _extent(value), dtype=value.dtype, device="meta")
        return room.as_strided(value.shape, value.stride(), value.storage_offset())
    return [_on_meta(item) for item in value] if isinstance(value, list | tuple) else value


def _described(
    out: Any, args: Sequence[Any], tensors: Sequence[Tensor], device: torch.device | None
) -> _Made | int | None:
    """One output of an operation on these ``tensors``; tensors that are not fake count as on ``device``."""
    if out is None:
        return None
    for index, arg in enumerate(args):
        if arg is out:
            return index
    if type(out) is FakeTensor:
        device = out.fake_device
        if out.constant is not None:
            raise _Unknown
    if device is None or out.layout is not torch.strided:
        raise _Unknown
    storage = out.untyped_storage()
    is_view = any(storage._cdata == tensor.untyped_storage()._cdata for tensor in tensors)
    # With several tensors it would not be clear which one the view belongs to.
    is_clear = len(tensors) == 1 if is_view else storage.nbytes() == _bytes_of(out)
    if not is_clear or out.is_conj() or out.is_neg():
        raise _Unknown
    return _Made(tuple(out.shape), out.stride(), out.storage_offset(), out.dtype, device, is_view)


def _is_own(described: _Made | int | None) -> bool:
    return isinstance(described, _Made) and not described.is_view


def _bytes_of(tensor: torch.Tensor) -> int:
    """Bytes that ``empty_strided`` allocates for such a tensor; −1 if the tensor begins inside of its memory."""
    return _extent(tensor) * tensor.itemsize if tensor.storage_offset() == 0 or tensor.numel() == 0 else -1


def _extent(tensor: torch.Tensor) -> int:
    """Number of elements in memory from its first to its last one."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
