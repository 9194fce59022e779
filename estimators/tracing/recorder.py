"""Logs the life of every buffer of fake tensors: when it is made, resized and freed, in which category and on which
stream, and the work done meanwhile. It knows tensors, but neither models nor plans.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import dropwhile, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from estimators.peaks.depth import Passes
from estimators.tracing import kernels, patches, sparse  # noqa: F401  (registers kernels)
from estimators.tracing.device import CPU, Device, Objects
from estimators.tracing.gradients import Gradients
from estimators.tracing.operations import collective_of
from estimators.tracing.outcomes import OperationOutcome, Outcomes
from estimators.tracing.values.assumptions import DIFFERENT_ROWS
from estimators.tracing.values.effects import depends_on_values, takes_masks
from estimators.tracing.values.values import Values
from estimators.work import Operation, Work, WorkCounter

Batch = Any
_DEVICE = torch.ops.prim.device.default
_TRACED_DEVICES = ("cpu", "meta")


class OtherDevice(Exception):
    """A traced operation puts a tensor on another device than the CPU. Its fake kernels would end the process."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(f"it puts a tensor on {device}")


class _Buffer(NamedTuple):
    """A storage that is alive. ``number`` is that of its events, and ``size`` the bytes that it holds now."""

    reference: weakref.ref[Any]
    number: int
    size: int


class _EndOfForward(BaseException):
    def __init__(self, passes: Passes) -> None:
        super().__init__()
        self.passes = passes


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs the life of every storage of a fake tensor: allocated when first seen, freed when nothing refers to it."""

    def __init__(
        self,
        fake: FakeTensorMode,
        *,
        device: Device = CPU,
        even: bool = True,
        drawn: float | None = None,
        itemised: bool = False,
        groups: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        """``device`` says which memory kernels use internally. ``even`` and ``drawn``: see ``Values``.
        ``itemised``: keep the work of each operation as well.

        ``groups`` maps the names of process groups to the dimension of the mesh that they lie along, and its size.
        Collectives of other groups count as collectives of the whole gang.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._groups = groups or {}
        self.log: list[tuple[int, int]] = []
        self.live_bytes = 0
        self.categories: list[str] = []  # of the buffers in the log, by number
        self.streams: dict[int, int] = {}  # of buffers that are not made on the compute stream, by number
        # A CPU has no streams, but torch tracks the current one: code for any device enters the stream contexts that a
        # GPU would need.
        self._compute = torch.cpu.current_stream()
        self._others: dict[torch.cpu.Stream, int] = {}  # numbered from 1, in order of first use
        self.marks: list[tuple[int, int | None, Work]] = []
        self._done = WorkCounter()
        self._itemised = itemised
        self._operations: list[Operation] = []
        self._fake = fake
        self._outcomes = Outcomes(fake, device)
        self._objects = Objects() if device.holds_objects else None
        self.values = Values(is_even=even, drawn=drawn)
        self._paused = 0
        self._forward_work: Work | None = None  # the work done when the first backward pass began
        self._forward_only = False
        self._of_forward: list[int] = []  # buffers since the last backward pass
        self._gradients = Gradients(self._number_of)
        # By the address of the storage, which may be used again once it is freed.
        self._buffers: dict[int, _Buffer] = {}
        self._patches = contextlib.ExitStack()

    def begin(self, held_objects: Mapping[int, int] | None = None) -> int:
        """Begin a new log with all buffers that are alive, numbered anew; returns their bytes.

        ``held_objects`` are bytes of objects that stay alive, by block (None: those of the last log).
        """
        self._done.clear()
        if self._objects is not None:
            self._objects.begin(held_objects)
        self._operations.clear()
        self._forward_work = None
        self.log.clear()
        self.marks.clear()
        alive = sorted(self._buffers.items(), key=lambda item: item[1].number)
        self.categories = [self.categories[buffer.number] for _, buffer in alive]
        streams = enumerate(self.streams.get(buffer.number, 0) for _, buffer in alive)
        self.streams = {number: stream for number, stream in streams if stream}
        self._of_forward.clear()
        self._gradients.begin()
        for number, (address, (reference, _, size)) in enumerate(alive):
            self._buffers[address] = _Buffer(reference, number, size)
            if size:
                self.log.append((number, size))
        return self.live_bytes

    def mark(self, block: int | None) -> None:
        """Mark that everything logged from here on belongs to this block (None: to no block)."""
        self.marks.append((len(self.log), block, self.work))

    @property
    def marked(self) -> int | None:
        """The block of the last mark; None if there is no mark."""
        return self.marks[-1][1] if self.marks else None

    @property
    def work(self) -> Work:
        """The work done since the log began."""
        return self._done.work

    @property
    def passes(self) -> Passes:
        """The log up to now."""
        events, categories, streams = tuple(self.log), tuple(self.categories), dict(self.streams)
        forward = self.work if self._forward_work is None else self._forward_work
        marks, operations = tuple(self.marks), tuple(self._operations)
        return Passes(
            events, categories, self.work, marks=marks, streams=streams, forward=forward, operations=operations,
            objects=self._objects.most if self._objects is not None else {},
        )  # fmt: skip

    def forward_log(self, step: Callable[[], object]) -> Passes:
        """The log of ``step`` up to its first backward pass, where it is aborted. Raises ValueError without one."""
        self._forward_only = True
        try:
            step()
        except _EndOfForward as end:
            return end.passes
        finally:
            self._forward_only = False
        raise ValueError("the step has no backward pass")

    def copied(self, batch: Batch) -> Batch:
        """Fake tensors like those of ``batch``, each in memory of its own, as ranks have when they copy data."""
        fake = tree_map_only(Tensor, torch.empty_like, batch)
        self.values.know_batch(fake, batch)
        self.hold(fake, "batch")
        return fake

    def claim(self, category: str) -> None:
        """Put all live buffers that have no category yet (``scratch``) into this one."""
        for buffer in self._buffers.values():
            if self.categories[buffer.number] == "scratch":
                self.categories[buffer.number] = category

    def hold(self, tree: Any, category: str) -> None:
        """Log the storages of all tensors in ``tree`` from now on, in this category."""
        for tensor in _local_fakes(tree):
            self._see(tensor)
        self.categorise(tree, category)

    def categorise(self, tree: Any, category: str) -> None:
        """Put the storages of all tensors in ``tree`` into a category; storages that are not logged are ignored."""
        for number in self.numbers(tree):
            self.categories[number] = category

    def numbers(self, tree: Any) -> list[int]:
        """Numbers of the buffers of all tensors in ``tree``; storages that are not logged are left out."""
        buffers = (self._buffers.get(tensor.untyped_storage()._cdata) for tensor in _local_fakes(tree))
        return [buffer.number for buffer in buffers if buffer is not None]

    def __enter__(self) -> Recorder:
        self._patches.enter_context(patches.resizes(self._resized))
        self._patches.enter_context(patches.shape_inference(self._pause))
        if self._objects is not None:
            self._patches.enter_context(patches.random_states(self._see_storage))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc_info: Any) -> None:
        super().__exit__(*exc_info)  # type: ignore[no-untyped-call]
        self._patches.close()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and skipping it takes as long as many operations do

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two of three dispatches: answering here shortens a trace by a third
        if self._forward_work is None and torch._C._current_graph_task_id() != -1:
            self._forward_work = self.work
            if self._forward_only:
                raise _EndOfForward(self.passes)
        if self._objects is not None and not self._paused:
            self._objects.note(-1 if self.marked is None else self.marked)
        if any(issubclass(kind, DTensor) for kind in types):
            self._done.add("sharded")
            if self._itemised:
                self._operations.append(Operation("sharded", 0.0, False, (), ()))
            return NotImplemented  # DTensor splits it up; its local operations come back here
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # fake mode would return a new storage, ranks return the same one
        return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (device := kwargs.get("device")) is not None and device.type not in _TRACED_DEVICES:
            raise OtherDevice(device)
        if self._paused:
            return func(*args, **kwargs)
        if func in sparse.OPERATIONS and (sparse_tensor := sparse.sparse_argument(args)) is not None:
            return self._sparse(func, args, kwargs, sparse_tensor)
        positions_bytes = 0  # of the places that masks choose, which an operation holds while it runs
        if depends_on_values(func):
            if takes_masks(func):
                args, positions_bytes = self._with_positions(args)
            elif (decided := self.values.decide(func, args, kwargs, self._fake_like)) is not NotImplemented:
                return self._seen(decided)
        is_in_place = self._gradients.reuses_first(func, args, kwargs)
        key = self._outcomes.key(func, args, kwargs)
        outcome = None
        if key is not None:
            outcome = self._outcomes.cached(key) or self._outcomes.predict(key, func, args, kwargs)
        if outcome is not None:
            out = self._outcomes.new_outputs(outcome, args)
        else:
            # A fused optimizer writes values and returns nothing; torch takes long to find that out.
            fused = func._opname.startswith("_fused_") and func._opname.endswith("_")
            out = None if fused else func(*args, **kwargs)
            outcome = self._outcomes.learn(key, func, args, kwargs, out)
        self._count(outcome, func, args, out)
        self.values.follow(func, args, kwargs, out)
        if is_in_place:
            self._give_up(args[0])
        workspaces = outcome.workspace
        if positions_bytes:
            workspaces = ((0, positions_bytes),)
        if type(out) is FakeTensor and not workspaces:
            self._see(out)  # the usual case: no need to look for leaves
            return out
        for leaf, workspace in zip_longest(tree_leaves(out), workspaces, fillvalue=()):
            with self._taken(workspace):
                if isinstance(leaf, FakeTensor):
                    self._see(leaf)
        return out

    def _with_positions(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
        """The arguments with positions in place of masks, and the bytes of these positions."""
        masks, chosen = args[1], self.values.positions(args[1], self._fake_like)
        num_bytes = sum(
            tensor.nbytes for tensor in chosen if tensor is not None and all(tensor is not mask for mask in masks)
        )
        return (args[0], chosen, *args[2:]), num_bytes

    def _count(self, outcome: OperationOutcome, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Count the work of an operation, or what it sends to other ranks."""
        if outcome.kind is not None:
            self._done.add(outcome.kind, *outcome.amounts)
            if self._itemised and outcome.work is not None:
                self._operations.append(outcome.work)
        elif (collective := collective_of(func, args, out)) is not None:
            self._communicate(*collective)

    def _give_up(self, tensor: FakeTensor) -> None:
        """Log that the memory of ``tensor`` is free, although it is alive until the operation returns.

        The memory of a gradient that is written into thus has two names in the log, one after the other. Each
        block makes the gradients of its own, whatever the block before it has made, so equal blocks have equal logs.
        """
        address = tensor.untyped_storage()._cdata
        self._resize(address, self._buffers[address], 0)

    def _communicate(self, kind: str, group: str, num_bytes: int) -> None:
        dimension, num_ranks = self._groups.get(group, ("", 2))
        if num_ranks > 1:
            # FSDP2 communicates on streams of its own; collectives on the compute stream wait, except for the buckets
            # that whole replicas start in the backward pass.
            in_backward = torch._C._current_graph_task_id() != -1
            is_started = kind == "queued_all_reduce" and in_backward
            overlaps = is_started or torch.cpu.current_stream() is not self._compute
            self._done.communicate(kind, dimension, num_bytes, overlaps=overlaps)

    def _sparse(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sparse_tensor: FakeTensor) -> Any:
        """The result of an operation on ``sparse_tensor``, which is one of its arguments."""
        if operation is sparse.COALESCE and sparse_tensor._nnz() > 1:
            self.values.assumptions.assume_everywhere(DIFFERENT_ROWS)
        is_in_place = self._gradients.reuses_first(operation, args, kwargs)
        before = list(_local_fakes([sparse_tensor]))  # which a sum in place replaces, but needs until it is made
        out = sparse.result(operation, args, sparse_tensor, self.values.are_equal)
        if is_in_place:
            self._give_up(args[0])
        with self._taken((0, sparse.workspace_bytes(operation, sparse_tensor))):
            self._see(out)
        del before
        self.values.follow(operation, args, kwargs, out)
        return out

    def _fake_like(self, real: Tensor) -> FakeTensor:
        fake = self._fake.from_tensor(real, static_shapes=True)
        assert isinstance(fake, FakeTensor)
        return fake

    def _seen(self, out: Any) -> Any:
        for leaf in tree_leaves(out):
            if isinstance(leaf, FakeTensor):
                self._see(leaf)
        return out

    @contextlib.contextmanager
    def _taken(self, workspace: tuple[int, ...]) -> Iterator[None]:
        """Log that an operation holds these bytes, one amount after another, until the end of the context."""
        if not any(workspace):
            yield
            return
        number = len(self.categories)
        self.categories.append("workspace")
        self.log += [(number, num_bytes) for num_bytes in dropwhile(lambda num_bytes: not num_bytes, workspace)]
        yield
        self.log.append((number, 0))

    def _note_pass(self, number: int) -> None:
        """Note a new buffer: those of a forward pass that outlive it become activations."""
        if torch._C._current_graph_task_id() == -1:
            self._of_forward.append(number)
            return
        self._gradients.note(number)
        if self._of_forward:
            alive = {buffer.number for buffer in self._buffers.values()}
            for earlier in alive.intersection(self._of_forward):
                if self.categories[earlier] == "scratch":
                    self.categories[earlier] = "activations"
            self._of_forward.clear()

    def _see(self, tensor: FakeTensor) -> None:
        if tensor.fake_mode is not self._fake:
            return
        if tensor.layout is torch.sparse_coo:
            for part in _local_fakes([tensor]):
                self._see(part)
            return
        self._see_storage(tensor.untyped_storage())

    def _see_storage(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        buffer = self._buffers.get(address)
        if buffer is None:
            number = len(self.categories)
            self.categories.append("scratch")
            self._note_pass(number)
            stream = torch.cpu.current_stream()
            if stream is not self._compute:
                self.streams[number] = self._others.setdefault(stream, len(self._others) + 1)
            reference = weakref.ref(storage, lambda gone: self._freed(address, gone))
            self._resize(address, _Buffer(reference, number, 0), size)
        elif buffer.size != size:
            self._resize(address, buffer, size)

    def _resize(self, address: int, buffer: _Buffer, size: int) -> None:
        """Log that the buffer at this address holds ``size`` bytes from now on."""
        self._buffers[address] = _Buffer(buffer.reference, buffer.number, size)
        self.live_bytes += size - buffer.size
        if size != buffer.size:
            self.log.append((buffer.number, size))

    def _freed(self, address: int, gone: weakref.ref[Any]) -> None:
        buffer = self._buffers.get(address)
        if buffer is None or buffer.reference is not gone:
            return
        del self._buffers[address]
        self.live_bytes -= buffer.size
        if buffer.size:
            self.log.append((buffer.number, 0))

    def _number_of(self, storage: torch.UntypedStorage) -> int | None:
        buffer = self._buffers.get(storage._cdata)
        return None if buffer is None else buffer.number

    def _resized(self, storage: torch.UntypedStorage) -> None:
        buffer = self._buffers.get(storage._cdata)
        if buffer is not None:
            self._resize(storage._cdata, buffer, storage.nbytes())
            self.categories[buffer.number] = "gathered"

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        """Log nothing until the end of the context."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1


def _local_fakes(tree: Any) -> Iterator[FakeTensor]:
    for leaf in tree_leaves(tree):
        leaf = leaf._local_tensor if isinstance(leaf, DTensor) else leaf
        if isinstance(leaf, FakeTensor):
            if leaf.layout is torch.sparse_coo:
                yield from _local_fakes([leaf._indices(), leaf._values()])
            else:
                yield leaf
