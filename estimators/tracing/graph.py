"""Counts the bytes of autograd's graph besides the data of tensors: nodes, the objects of tensors that they keep, and
those of modules and their parameters.

They lie in host memory, some 500 to 2,000 bytes for each differentiable operation. A model of many small operations
takes more memory for them than for its tensors. Sizes were measured with torch 2.13 and CPython 3.11.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction

_NODE_BYTES = 500  # with one input and one output
_ENGINE_BYTES = 75  # of each node while a backward pass runs: what it still waits for
_INPUT_BYTES, _OUTPUT_BYTES = 24, 140  # each further one
_SLOT_BYTES, _SIZES_BYTES, _TEXT_BYTES, _NUMBER_BYTES, _SCALAR_MEMBER_BYTES = 82, 44, 48, 12, 44
_SCALAR_MEMBERS = {"alpha", "beta", "exponent", "min", "max", "start", "end", "value", "p", "eps", "threshold"}
_FUNCTION_BYTES, _EMPTY_FUNCTION_BYTES = 1000, 1360  # a node of torch.autograd.Function that saves tensors, or none
_SAVED_INPUT_BYTES, _SAVED_CONSTANT_BYTES, _SAVED_OUTPUT_BYTES = 470, 290, 200  # objects of a tensor
_STORAGE_BYTES = 130
_WRAPPER_BYTES = 100  # Python's object of a tensor: those that an operation makes for itself have none
_VIEW_BYTES = 130  # of a tensor that is a view, which also keeps its base
_SCALAR_BYTES = 340  # a number that an operation turned into a tensor, and its data
_HOOKED_BYTES = 600  # the place of a saved tensor that hooks have taken, as recompute does
_MODULE_BYTES, _PARAMETER_BYTES = 2200, 560  # a module's dictionaries; a parameter, its storage and its place
_NUM_CALLERS = 8  # Python frames that tell one call from another
_OUTSIDE = -1  # the place of a saved tensor that is neither input nor output
_DETACH = torch.ops.aten.detach.default
_sequence_nr = torch._C._autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_hooks = torch._C._autograd._top_saved_tensors_default_hooks


@dataclass(frozen=True, slots=True)
class _Kind:
    """A node without what it saves: its bytes, the places of the inputs that it saves, the number of outputs, of
    scalars, and of places for saved tensors; and whether the first output is saved."""

    node_bytes: int
    inputs: tuple[int, ...] = ()
    num_outputs: int = 0
    num_scalars: int = 0
    num_slots: int = 1
    saves_first: bool = False


_UNKNOWN = _Kind(_NODE_BYTES + 2 * _SLOT_BYTES, num_outputs=1)


@dataclass(frozen=True, slots=True)
class _Made:
    """An operation whose node can be looked at when it has returned."""

    key: tuple[Any, ...]
    out: weakref.ref[Tensor]
    arguments: Sequence[Tensor]
    own_tensors: Set[int]
    number: int
    block: int


class _Calls:
    """Python's calls of torch, told apart by where they are made, and the tensors that each has made so far.

    One call, of ``linear`` for example, may run several operations. What it makes for itself has no object of Python.
    A call that is repeated at one place begins again with the same operation.
    """

    def __init__(self) -> None:
        self._place: tuple[Any, ...] = ()
        self._first: Any = None
        self.made: set[int] = set()  # ids of tensors; a new set for each call

    def begin(self, operation: Any) -> None:
        """Note an operation that ``__torch_dispatch__`` of a mode begins, and whether another call has run it."""
        frame: FrameType | None = sys._getframe(3)  # from here to the graph, the mode, and its caller
        place: list[int] = []
        while frame is not None and len(place) < 2 * _NUM_CALLERS:
            place += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        if operation is self._first or tuple(place) != self._place:
            self._place, self._first, self.made = tuple(place), operation, set()

    def end(self, out: Any) -> None:
        """Note what the operation has made."""
        self.made.update(map(id, _tensors(out)))


def module_bytes(model: nn.Module, blocks: Sequence[nn.Module]) -> Counter[int]:
    """Bytes of the objects of modules and parameters: of each block, and (at -1) of what belongs to no block."""
    num_bytes = Counter({number: _module_bytes(block) for number, block in enumerate(blocks)})
    num_bytes[-1] = _module_bytes(model) - num_bytes.total()
    return num_bytes


def _module_bytes(module: nn.Module) -> int:
    num_parameters = sum(parameter is not None for part in module.modules() for parameter in part._parameters.values())
    return _MODULE_BYTES * len(list(module.modules())) + _PARAMETER_BYTES * num_parameters


class Graph:
    """The nodes that are alive. Call ``begin_operation`` before and ``end_operation`` after each one.

    Nodes run backward in the order in which they were made, the last one first. So when a forward pass follows a
    backward pass, what is left of the graph are the nodes before the first one that ran.
    """

    _known: ClassVar[dict[tuple[Any, ...], _Kind]] = {}

    def __init__(self) -> None:
        self._alive: list[tuple[int, int, int]] = []  # (sequence number, block, bytes) of nodes
        self._num_bytes = 0
        self._most: Counter[int] = Counter()
        self._most_bytes = 0
        self._last = _sequence_nr()
        self._reached: int | None = None  # first node that has run backward; None in a forward pass
        self._saved: set[int] = set()  # tensors and storages whose objects are counted
        self._made: _Made | None = None
        self._calls = _Calls()
        self._unseen: int | None = None  # a node whose operation first calls another one
        self._function: tuple[int, int] | None = None  # number and block of a function's node, until it is seen

    def begin(self) -> None:
        """Forget all nodes."""
        self._alive.clear()
        self._saved.clear()
        self._num_bytes = self._most_bytes = 0
        self._most = Counter()
        self._last, self._reached, self._made, self._function = _sequence_nr(), None, None, None
        self._unseen = None

    @property
    def most(self) -> Mapping[int, int]:
        """Bytes of the nodes of each block (-1: of what belongs to no block) when they were the most."""
        self._settle()
        if self._num_bytes > self._most_bytes:
            self._most_bytes, self._most = self._num_bytes, Counter()
            for _, block, num_bytes in self._alive:
                self._most[block] += num_bytes
        return self._most

    def begin_operation(self, operation: Any, block: int) -> int | None:
        """Note the nodes that were made since the last operation; returns the number of this one's, None without.

        Its caller is the method ``__torch_dispatch__`` of a mode.
        """
        if _graph_task() != -1:
            if self._reached is None:
                _ = self.most
            self._pass_back()
            return None
        if self._reached is not None:
            self._drop()
        self._calls.begin(operation)
        now = _sequence_nr()
        num = now - self._last
        if self._made is not None and operation is not _DETACH:  # an output that is saved is detached
            self._settle()
        unseen, self._unseen = self._unseen, None
        if unseen is not None and not num and operation._schema.is_mutable:
            return unseen  # it has saved a copy of what it changes now
        if unseen is not None:
            self._add(unseen, block, _UNKNOWN.node_bytes)
        if not num:
            return None
        self._last = now
        for number in range(now - num, now - 2):
            self._add(number, block, _UNKNOWN.node_bytes)
        if not torch.is_grad_enabled():  # a torch.autograd.Function runs its forward pass
            self._see_function(())
            self._function = now - 1, block
            return None
        self._unseen = now - 2 if num > 1 else None
        return now - 1

    def end_operation(self, number: int | None, operation: Any, args: Sequence[Any], out: Any, block: int) -> None:
        """Note this operation, which made the node of this ``number``, or none."""
        if number is not None:
            self._end_with_node(number, operation, args, out, block)
        if _graph_task() == -1:
            self._calls.end(out)

    def _end_with_node(self, number: int, operation: Any, args: Sequence[Any], out: Any, block: int) -> None:
        arguments = [item for arg in args for item in (arg if isinstance(arg, (list, tuple)) else (arg,))]
        arguments = [item for item in arguments if isinstance(item, Tensor)]
        if self._function is not None:
            self._see_function(arguments)
        num_outputs = len(out) if isinstance(out, (list, tuple)) else 1
        same = [next(n for n, other in enumerate(arguments) if other is tensor) for tensor in arguments]
        key = (
            operation,
            num_outputs,
            *same,
            *[tensor.requires_grad for tensor in arguments],
            *[tensor.ndim == 0 for tensor in arguments],
        )
        kind = self._known.get(key)
        first = out[0] if isinstance(out, (list, tuple)) and out else out
        if kind is not None and kind.saves_first and type(first) is FakeTensor:
            self._saved.add(first.untyped_storage()._cdata)
        # A view that changes in place takes its node again from its base, by operations under a lock of its own: to ask
        # for that node there would wait for ever.
        is_changed_view = (
            isinstance(first, Tensor) and first._is_view() and any(tensor is first for tensor in arguments)
        )
        if kind is None and isinstance(first, Tensor) and _hooks(True) is None and not is_changed_view:
            self._settle()
            self._made = _Made(key, weakref.ref(first), arguments, self._calls.made, number, block)
        else:
            self._count(kind or _UNKNOWN, arguments, self._calls.made, number, block)

    def _settle(self) -> None:
        """Count the operation whose node had to be looked at."""
        pending, self._made = self._made, None
        if pending is None:
            return
        kind = None
        if (out := pending.out()) is not None and out.grad_fn is not None:
            kind = self._known[pending.key] = _kind_of(out.grad_fn, pending.arguments, out)
            if kind.saves_first and type(out) is FakeTensor:
                self._saved.add(out.untyped_storage()._cdata)
        self._count(kind or _UNKNOWN, pending.arguments, pending.own_tensors, pending.number, pending.block)

    def _see_function(self, arguments: Sequence[Tensor]) -> None:
        """Count the function whose result may be among ``arguments``; if it is not, as one that saves one tensor."""
        function, self._function = self._function, None
        if function is None:
            return
        number, block = function
        nodes: list[Any] = [tensor.grad_fn for tensor in arguments]
        for node in nodes:
            if isinstance(node, BackwardCFunction) and node._sequence_nr() == number:
                saved = node.saved_tensors
                num_bytes = _FUNCTION_BYTES + _SLOT_BYTES * len(saved) if saved else _EMPTY_FUNCTION_BYTES
                self._add(number, block, num_bytes + sum(self._bytes_of_function(tensor, node) for tensor in saved))
                return
        self._add(number, block, _FUNCTION_BYTES + _SLOT_BYTES + _SAVED_OUTPUT_BYTES + _STORAGE_BYTES)

    def _count(self, kind: _Kind, arguments: Sequence[Tensor], own_tensors: Set[int], number: int, block: int) -> None:
        """Count a node of this ``kind``, in a call of Python that has made its ``own_tensors`` before."""
        num_bytes = kind.node_bytes
        if _hooks(True) is not None:
            num_bytes += kind.num_slots * _HOOKED_BYTES
        else:
            num_bytes += kind.num_outputs * (_SAVED_OUTPUT_BYTES + _STORAGE_BYTES) + kind.num_scalars * _SCALAR_BYTES
            num_bytes += sum(
                self._bytes_of(arguments[place], own_tensors) for place in kind.inputs if place < len(arguments)
            )
        self._add(number, block, num_bytes)

    def _bytes_of_function(self, saved: Tensor, node: Any) -> int:
        """Bytes of the objects of a tensor that the ``node`` of a function saves: an input, or one of its outputs."""
        if saved.grad_fn is not node:
            return self._bytes_of(saved, frozenset())
        return _SAVED_OUTPUT_BYTES + self._storage_bytes(saved)

    def _bytes_of(self, saved: Tensor, own_tensors: Set[int]) -> int:
        """Bytes of the objects of a tensor that a node saves, unless they are counted already."""
        if (saved.is_leaf and saved.requires_grad) or id(saved) in self._saved:
            return 0
        self._saved.add(id(saved))
        unwrapped = _WRAPPER_BYTES if id(saved) in own_tensors else 0
        if saved.requires_grad and saved._base is not None:
            return _SAVED_INPUT_BYTES + _VIEW_BYTES - unwrapped + self._bytes_of(saved._base, own_tensors)
        num_bytes = (_SAVED_INPUT_BYTES if saved.requires_grad else _SAVED_CONSTANT_BYTES) - unwrapped
        return num_bytes + self._storage_bytes(saved)

    def _storage_bytes(self, saved: Tensor) -> int:
        storage = saved.untyped_storage()._cdata if type(saved) is FakeTensor else id(saved)
        if storage in self._saved:
            return 0
        self._saved.add(storage)
        return _STORAGE_BYTES

    def _add(self, number: int, block: int, num_bytes: int) -> None:
        num_bytes += _ENGINE_BYTES
        self._alive.append((number, block, num_bytes))
        self._num_bytes += num_bytes

    def _pass_back(self) -> None:
        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else self._last
        self._reached = number if self._reached is None else min(number, self._reached)

    def _drop(self) -> None:
        """Forget the nodes that have run backward."""
        reached, self._reached = self._reached, None
        while reached is not None and self._alive and self._alive[-1][0] >= reached:
            self._num_bytes -= self._alive.pop()[2]
        self._saved.clear()
        self._last = _sequence_nr()


def _kind_of(node: Any, arguments: Sequence[Tensor], out: Tensor) -> _Kind:
    """The kind of a node, from its attributes ``_saved_…``; ``arguments`` and ``out`` are those of its operation."""
    names = [name for name in dir(type(node)) if name.startswith("_saved_")]
    slots = [name for name in names if hasattr(type(node), f"_raw{name}")]
    num_bytes = _NODE_BYTES + _SLOT_BYTES * len(slots)
    num_bytes += _INPUT_BYTES * (len(node.next_functions) - 1)
    num_bytes += _OUTPUT_BYTES * (len(node._input_metadata) - 1)
    num_bytes += sum(_member_bytes(name, getattr(node, name)) for name in names if name not in slots)
    inputs, num_outputs, num_scalars, saves_first = [], 0, 0, False
    for name in slots:
        value = getattr(node, name)
        num_bytes += len(value) * _SLOT_BYTES if isinstance(value, (list, tuple)) else 0
        for saved in _tensors(value):
            place = next((n for n, tensor in enumerate(arguments) if tensor is saved), _OUTSIDE)
            if place != _OUTSIDE and type(saved) is FakeTensor:
                inputs.append(place)
            elif saved.grad_fn is node or type(saved) is FakeTensor:
                num_outputs += 1
                if saved.requires_grad and saved.grad_fn is not node:  # a copy of what is changed in place
                    num_bytes += _SAVED_INPUT_BYTES - _SAVED_OUTPUT_BYTES - _WRAPPER_BYTES
                saves_first |= saved.untyped_storage()._cdata == out.untyped_storage()._cdata
            else:
                num_scalars += 1
    return _Kind(num_bytes, tuple(inputs), num_outputs, num_scalars, len(slots), saves_first)


def _member_bytes(name: str, value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return _SIZES_BYTES
    if isinstance(value, str):
        return _TEXT_BYTES
    return _SCALAR_MEMBER_BYTES if name.removeprefix("_saved_") in _SCALAR_MEMBERS else _NUMBER_BYTES


def _tensors(saved: Any) -> list[Tensor]:
    every = saved if isinstance(saved, (list, tuple)) else [saved]
    return [leaf for leaf in every if isinstance(leaf, Tensor)]
