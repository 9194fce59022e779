"""Watches the first pass of a model, operation by operation: which tensors it changes, and which of them by samples."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from workloads.parallel.forward_state.snapshot import Place, address_of, local_part, tensor_at
from workloads.refusals import WITHOUT_FSDP, WorkloadError

_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_BACKWARD = {
    torch.autograd.grad: {"retain_graph": 3, "create_graph": 4},
    torch.Tensor.backward: {"retain_graph": 2, "create_graph": 3},
}
"""Functions that run a backward pass, and the places of arguments by which another one follows."""
_aten = torch.ops.aten
# Kernels that change running statistics, which their schemas do not say: the places of these arguments.
_UNSAID = {
    _aten.native_batch_norm.default: (3, 4),
    _aten.cudnn_batch_norm.default: (3, 4),
    _aten.miopen_batch_norm.default: (3, 4),
}


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which tensors of a module forward passes change in place, and follows what is computed from samples or drawn
    at random."""

    def __init__(self, module: nn.Module, batch: Any, *, keeps: bool, frees: bool) -> None:
        """``keeps``: keep the copies, otherwise only see what changes. ``frees``: FSDP frees parameters."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules, self._keeps, self._frees = list(module.modules()), keeps, frees
        self.changed: dict[Place, Tensor | None] = {}  # with the copy from before
        self.of_batch: dict[Place, None] = {}
        self.keeps_graph = False
        self.whole_parameters: dict[Place, None] = {}  # those that changed while they were no DTensors
        self._from_batch: dict[int, weakref.ref[Any]] = {}
        self._mark(tree_leaves(batch))

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """Look away during a backward pass, unless memory that it needs may be freed.

        Under any mode autograd adds and scatters gradients into new memory instead of the memory that they have
        (``isTensorSubclassLike`` in ATen/TensorSubclassLikeUtils.h), so the first step would need more than all others.
        """
        if self._frees or _get_current_dispatch_mode() is not self:
            yield
            return
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def is_of_batch(self, tensor: Tensor) -> bool:
        """Whether the tensor was computed from samples."""
        if tensor.layout is not torch.strided:
            return False
        from_batch = self._from_batch.get(address_of(tensor))
        return from_batch is not None and from_batch() is not None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor splits it up; its local operations come back here
        if torch._C._current_graph_task_id() != -1:
            if not func.is_view:
                _expect_memory((args, kwargs))
            return func(*args, **kwargs)  # in a backward pass
        written = _tensors_written(func, args, kwargs)
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_of_batch = torch.Tag.nondeterministic_seeded in func.tags or any(map(self.is_of_batch, leaves))
        self.note(written, is_of_batch)
        out = func(*args, **kwargs)
        if is_of_batch:
            self._mark([*tree_leaves(out), *written])
        return out

    def note(self, written: Sequence[Tensor], is_of_batch: bool) -> None:
        """Note that these tensors are about to change."""
        for place in list(self._places(written)) if written else ():
            module, name = place
            if place not in self.changed:
                self.changed[place] = tensor_at(place).data.clone() if self._keeps else None
            if is_of_batch:
                self.of_batch[place] = None
            if name in module._parameters and not isinstance(module._parameters[name], DTensor):
                self.whole_parameters[place] = None

    def _mark(self, leaves: Iterable[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                storage = local_part(leaf).untyped_storage()
                self._from_batch[storage._cdata] = weakref.ref(storage)

    def _places(self, tensors: Sequence[Tensor]) -> Iterator[Place]:
        """Places in the modules of tensors with the memory of one of these."""
        addresses = {address_of(tensor) for tensor in tensors}
        for module in self._modules:
            for name, value in (*module._buffers.items(), *module._parameters.items(), *module.__dict__.items()):
                if not isinstance(value, Tensor) or value.layout is not torch.strided:
                    continue
                if address_of(value) in addresses:
                    yield module, name


FREED = (
    "the backward pass uses parameters that FSDP has freed, because it did not see where the pass through a block "
    "begins: return tensors from blocks in tuples, dictionaries or dataclasses, do not change views of them in place, "
    f"or {WITHOUT_FSDP}"
)


TWICE = "the loss takes gradients of gradients, or goes backward through a graph again (create_graph or retain_graph)"
_FREED_IN_TORCH = "out of bounds for storage of size 0"


def is_freed(error: BaseException) -> bool:
    """Whether an error says that a pass uses parameters that FSDP has freed."""
    return str(error) == FREED or _FREED_IN_TORCH in str(error)


def _expect_memory(tree: Any) -> None:
    """Raise ``WorkloadError`` for a tensor whose memory FSDP has freed, before torch fails without words."""
    for leaf in tree_leaves(tree):
        is_dense = isinstance(leaf, Tensor) and leaf.layout is torch.strided
        if is_dense and leaf.numel() and not leaf.untyped_storage().nbytes():
            raise WorkloadError(FREED)


class WatchCalls(TorchFunctionMode):
    """Sees what is not an operation: ``tensor.data = …``, and backward passes that make a graph of their own."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.see(func, *args, **(kwargs or {}))

    def see(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``func``, and note what it means for the state."""
        if func == _SET_DATA:
            self._watch.note(args[:1], self._watch.is_of_batch(args[1]))
        elif (places := _BACKWARD.get(func)) is not None:
            keeps = (kwargs.get(name, args[place] if place < len(args) else False) for name, place in places.items())
            self._watch.keeps_graph |= any(keeps)
            with self._watch.backward():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _tensors_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that the operation changes in place."""
    if func in _UNSAID:
        trains = args[5] if len(args) > 5 else kwargs.get("training", False)
        written: list[Any] = [args[place] for place in _UNSAID[func] if place < len(args)] if trains else []
    elif func._schema.is_mutable:
        written = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written.append(args[place] if place < len(args) else kwargs.get(argument.name))
    else:
        return []
    return [leaf for leaf in tree_leaves(written) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
