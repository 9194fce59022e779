"""Gradients that autograd writes into memory that it has, where fake tensors would get memory anew. Notes which node of
the backward pass made each buffer, and says of an operation whether it is such a write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction

_ADD = torch.ops.aten.add.Tensor
# References to a gradient that only autograd holds, while it adds another one: to its Python object, to the tensor, and
# to the tensor's memory (torch 2.13). The watch over a first pass (workloads.parallel.forward_state) adds its own.
_OWN_REFERENCES = {(3, 4, 2), (6, 5, 2)}
_SCATTERING = frozenset(
    [
        *(torch.ops.aten.index_put.default, torch.ops.aten.scatter.src, torch.ops.aten.scatter.value),
        *(torch.ops.aten.scatter_add.default, torch.ops.aten.put.default, torch.ops.aten.masked_scatter.default),
        torch.ops.aten.index_add.default,
    ]
)


class Gradients:
    """``number_of(storage)`` returns the number of the buffer of a storage, None if it is not logged."""

    def __init__(self, number_of: Callable[[torch.UntypedStorage], int | None]) -> None:
        self._number_of = number_of
        self._made_by: dict[int, int] = {}  # buffer of a backward pass → sequence number of the node that made it

    def begin(self) -> None:
        """Forget all buffers."""
        self._made_by.clear()

    def note(self, number: int) -> None:
        """Note the node that makes the buffer with this number, if a node of a backward pass does."""
        if (node := torch._C._current_autograd_node()) is not None:
            self._made_by[number] = node._sequence_nr()

    def reuses_first(self, operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether autograd writes the result of this operation into the memory of the first argument."""
        if operation is _ADD:
            return not kwargs and self._adds_up(args)
        return operation in _SCATTERING and self._scatters(args)

    def _adds_up(self, args: tuple[Any, ...]) -> bool:
        """Whether autograd adds up two gradients of one tensor, and so no longer needs the first one.

        It then writes the sum into the first (``can_accumulate_inplace`` in torch/csrc/autograd/input_buffer.cpp), but
        not for fake tensors: three gradients would be alive.
        """
        node = torch._C._current_autograd_node()
        if (
            node is None
            or torch.is_grad_enabled()
            or type(args[0]) is not FakeTensor
            or type(args[1]) is not FakeTensor
            or args[0].layout is not torch.strided
        ):
            return False
        if args[0].shape != args[1].shape or args[0].dtype != args[1].dtype:
            return False
        storage = args[0].untyped_storage()
        if self._maker_of(storage) in (None, node._sequence_nr()):
            return False  # made by this node: it may be the node itself that adds
        counts = sys.getrefcount(args[0]), args[0]._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
        return counts in _OWN_REFERENCES and storage.nbytes() == args[0].numel() * args[0].itemsize

    def _scatters(self, args: tuple[Any, ...]) -> bool:
        """Whether a node writes a gradient into zeros that it has made, as the gradient of ``x[mask]``.

        It does so in place, but not for fake tensors (``areAnyTensorSubclassLike`` in
        torch/csrc/autograd/FunctionsManual.cpp): the whole gradient would be alive twice.
        """
        node: Any = torch._C._current_autograd_node()
        if node is None or isinstance(node, BackwardCFunction) or type(args[0]) is not FakeTensor:
            return False
        number: int = node._sequence_nr()
        return self._maker_of(args[0].untyped_storage()) == number

    def _maker_of(self, storage: torch.UntypedStorage) -> int | None:
        """Sequence number of the node that made this storage; None if no node of this backward pass did."""
        number = self._number_of(storage)
        return None if number is None else self._made_by.get(number)
