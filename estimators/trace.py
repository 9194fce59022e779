"""Traces training steps of a model on fake CPU tensors: which buffers are allocated and freed, and when. No memory.

``trace`` turns the logs of a few micro-batches into the peak on one rank for any of them. The model comes as
callables; this module knows no workload, and how a layout is applied to a model is its caller's as well. It does not
see what is not a tensor: allocator slack, Python objects, buffers inside gloo (see ``estimators.memory``).
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from estimators.blocks import are_equal, container_of, shorten
from estimators.depth import TRACED_BLOCKS, Passes, stretch
from estimators.envelope import EventLog, Line, PeakTable, fit, highest
from estimators.model import Layout, PeakCurve
from estimators.recorder import Batch, Recorder
from estimators.work import StepWork, Work

_NUM_ACCUMULATED = 2  # micro-batches of a step that accumulates: from the second on, all are alike


@dataclass(frozen=True, slots=True)
class Recipe:
    """One candidate's training as callables.

    ``make_batch`` gives real tensors of that many samples; ``begin_step`` takes the number of the step from 0;
    ``train_step`` runs all micro-batches that it is given forward and backward, then ``step`` and ``zero_grad`` of
    what it is given as the optimizer.
    """

    build_model: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    apply_plan: Callable[[nn.Module, Sequence[nn.Module], Layout, DeviceMesh | None], nn.Module]
    optimizer: Callable[[nn.Module], Optimizer]
    begin_step: Callable[[int, Optimizer], None]
    train_step: Callable[[nn.Module, Optimizer, Iterable[Batch], int], object]


@dataclass(frozen=True, slots=True)
class Traced:
    """What traces of one layout say of one rank.

    ``structure`` identifies the sequence of operations and all sizes; ``state_bytes`` are alive when the
    optimizer begins. ``alike``: its blocks are, and a few have told of all.
    """

    curve: PeakCurve
    structure: str
    num_params: int
    state_bytes: int
    work: StepWork
    alike: bool


def trace(recipe: Recipe, layout: Layout, batch: int, alike: bool | None = None) -> Traced:
    """Trace ``layout`` for micro-batches up to ``batch`` samples, and beyond where the peak is affine.

    One model takes two steps of 2 samples; the first creates the optimizer's states. Passes of ``batch``, 3 and 1
    samples follow, each from the same state. When these do not lie on lines, powers of two up to ``batch`` are traced
    one by one instead, two steps each, and the curve is a table of them.

    Of a model of more equal blocks than ``TRACED_BLOCKS`` only so many are traced, and their logs are stretched, unless
    that is known to fail: ``alike`` is what a trace of another layout has found, None where there was none. Then the
    first step of the whole model is traced too, and must come out of that of the few blocks; what is left to believe
    is that blocks which do the same with 2 samples do the same with others, and under other layouts.
    """
    largest = max(batch, 4)
    num_params, num_blocks = _size(recipe)
    short = alike is not False and num_blocks > TRACED_BLOCKS
    stretched = _stretched(recipe, layout, largest, num_blocks, verify=alike is None) if short else None
    steps = stretched or _traced(recipe, layout, largest)
    curve = _curve(steps)
    if curve is None:
        curve = _table(recipe, layout, batch)
    second = steps.second.passes
    passes_of_two = second.work * (1 / _NUM_ACCUMULATED if layout.accumulate else 1)
    passes_of_all = steps.others[largest].passes.work * (1 / _NUM_ACCUMULATED if layout.accumulate else 1)
    per_sample = (passes_of_all - passes_of_two) * (1 / (largest - 2))
    work = StepWork(passes_of_two - per_sample * 2, per_sample, steps.second.optimizer_work)
    structure = _structure(second.events, curve)
    return Traced(curve, structure, num_params, second.held_after, work, stretched is not None)


def _size(recipe: Recipe) -> tuple[int, int]:
    """Parameters of the whole model, and its blocks; 0 when these are not alike, or not one after another."""
    with FakeTensorMode(allow_non_fake_inputs=True), _NoInit():
        model = recipe.build_model()
    blocks = list(recipe.blocks(model))
    alike = are_equal(blocks) and container_of(model, blocks) is not None
    return sum(parameter.numel() for parameter in model.parameters()), len(blocks) if alike else 0


@dataclass(frozen=True, slots=True)
class _Steps:
    """Two steps of 2 samples, with the optimizer, and passes of others, by their samples; ``single`` is of one."""

    first: _Step
    second: _Step
    others: Mapping[int, _Step]
    single: _Step | None


def _traced(recipe: Recipe, layout: Layout, largest: int, num_blocks: int | None = None) -> _Steps:
    with _Session(recipe, layout, num_blocks) as session:
        first, second = session.step(2), session.step(2)
        others = {size: session.step(size, optimize=False) for size in (largest, 3)}
        return _Steps(first, second, others, _single(session))


def _stretched(recipe: Recipe, layout: Layout, largest: int, num_blocks: int, *, verify: bool) -> _Steps | None:
    """Of a few blocks, as if there were all; None where that cannot be done."""
    try:
        few = _traced(recipe, layout, largest, TRACED_BLOCKS)
    except Exception:  # the model does not work with fewer blocks; or not at all, and then the whole one will tell why
        return None
    with _Session(recipe, layout) as session:
        whole_first = session.step(2) if verify else None
        first_update = whole_first or session.update()
        update = session.update()

    def grown(step: _Step, update: _Step) -> _Step | None:
        passes = stretch(step.passes, num_blocks)
        return None if passes is None else replace(update, passes=passes)

    first, second = grown(few.first, first_update), grown(few.second, update)
    others = {size: grown(step, update) for size, step in few.others.items()}
    single = None if few.single is None else grown(few.single, update)
    if first is None or second is None or None in others.values() or (single is None and few.single is not None):
        return None
    # Gradients differ where a parameter takes no part in the loss.
    if (second.passes.held_before, second.passes.gradient_bytes) != (
        update.passes.held_before,
        update.passes.gradient_bytes,
    ):
        return None
    if whole_first is not None and not first.passes.same_as(whole_first.passes):
        return None
    return _Steps(first, second, cast("dict[int, _Step]", others), single)


def _curve(steps: _Steps) -> PeakCurve | None:
    """None where the passes are not affine in the micro-batch, or the first step needs more than they say."""
    first, second, single = steps.first, steps.second, steps.single
    passes = {2: second.passes, **{size: step.passes for size, step in steps.others.items()}}
    # The optimizer does the same after every micro-batch if it begins with the same gradients, and nothing else.
    if len({(one.held_before, one.held_after) for one in passes.values()}) > 1:
        return None
    floor = max(first.optimizer_peak, second.optimizer_peak)
    if single is not None:
        # A sum over a dimension of size 1 is a view: gradients of a single sample may keep larger buffers alive.
        kept = max(0, single.passes.held_after - second.passes.held_after)
        one_sample = max(single.passes.peak, floor.plus("gradients", kept))
    else:
        one_sample = max(second.passes.peak, floor)
    curve = fit({size: one.events for size, one in passes.items()}, floor, one_sample, second.passes.categories)
    beyond = max(first.passes.peak, first.optimizer_peak).fixed_bytes
    return curve if curve is not None and beyond <= curve.peak_bytes(2) else None


def _single(session: _Session) -> _Step | None:
    """The passes of one sample; None where the model refuses it, as batch normalisation does. Last in its session."""
    try:
        return session.step(1, optimize=False)
    except Exception:
        return None


def _table(recipe: Recipe, layout: Layout, batch: int) -> PeakTable:
    """A single sample counts as two when the model refuses it, so that it fits wherever two do and is not preferred."""
    sizes = sorted({1 << power for power in range(1, batch.bit_length())} | {max(batch, 2)})
    points = [(size, trace_peak(recipe, layout, size)) for size in sizes]
    try:
        single_peak = trace_peak(recipe, layout, 1)
    except Exception:
        single_peak = points[0][1]
    return PeakTable(((1, single_peak), *points))


def trace_peak(recipe: Recipe, layout: Layout, micro_batch: int) -> Line:
    """The peak of this micro-batch alone, from two steps of the whole model: no shortcut."""
    with _Session(recipe, layout) as session:
        steps = [session.step(micro_batch), session.step(micro_batch)]
    return max(max(step.passes.peak, step.optimizer_peak) for step in steps)


def _structure(log: EventLog, curve: PeakCurve) -> str:
    text = json.dumps([torch.__version__, log, curve.to_json()], separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Step:
    """One traced step: its forward and backward passes, and the peak and the work of the optimizer after them."""

    passes: Passes
    optimizer_peak: Line
    optimizer_work: Work


class _Session:
    """One model of rank 0 (whose shards are the largest) in fake mode, ready to take steps.

    With ``num_blocks`` all but so many of its blocks are left out. Collecting cyclic garbage is put off to the time
    between steps: it would free buffers at moments that no two traces share.
    """

    def __init__(self, recipe: Recipe, layout: Layout, num_blocks: int | None = None) -> None:
        self._recipe = recipe
        self._layout = layout
        self._shortened_to = num_blocks
        self._modes = contextlib.ExitStack()
        self._num_steps = 0

    def __enter__(self) -> _Session:
        with contextlib.ExitStack() as modes:
            modes.enter_context(_deferred_garbage())
            mesh = modes.enter_context(_mesh(self._layout.dp_shard))
            fake = modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            with _NoInit():
                model = self._recipe.build_model()
            blocks = list(self._recipe.blocks(model))
            if self._shortened_to is not None:
                blocks = shorten(model, blocks, self._shortened_to)
            self._model = self._recipe.apply_plan(model, blocks, self._layout, mesh)
            self._model.train()
            self._recorder = modes.enter_context(Recorder(fake))
            self._recorder.hold(list(self._model.parameters()), "parameters")
            self._recorder.hold(list(self._model.buffers()), "buffers")
            self._optimizer = self._recipe.optimizer(self._model)
            self._blocks = blocks if self._shortened_to is not None else []
            self._watch_blocks()
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        del self._model, self._optimizer, self._blocks
        self._modes.close()

    def step(self, micro_batch: int, *, optimize: bool = True) -> _Step:
        """A step as ranks take it; without ``optimize`` its gradients are dropped at the end, and nothing changes."""
        with _disable_current_modes():
            samples = self._recipe.make_batch(micro_batch)
        gc.collect()
        recorder = self._recorder
        recorder.begin()
        num_before, owners = len(recorder.log), self._owners()
        if optimize:
            self._begin_step()
        num = _NUM_ACCUMULATED if self._layout.accumulate else 1
        batches = map(recorder.copied, [samples] * num)
        watched = _WatchedOptimizer(self._model, self._optimizer, recorder, optimize)
        self._recipe.train_step(self._model, cast(Optimizer, watched), batches, num)
        passes = replace(watched.passes, num_before=num_before, owners=owners)
        return _Step(passes, watched.peak, watched.work)

    def update(self) -> _Step:
        """An optimizer step on gradients that no pass has made."""
        gc.collect()
        self._recorder.begin()
        num_before = len(self._recorder.log)
        self._begin_step()
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
        watched = _WatchedOptimizer(self._model, self._optimizer, self._recorder, True)
        watched.step()
        watched.zero_grad()
        return _Step(replace(watched.passes, num_before=num_before), watched.peak, watched.work)

    def _begin_step(self) -> None:
        self._recipe.begin_step(self._num_steps, self._optimizer)
        self._num_steps += 1

    def _watch_blocks(self) -> None:
        """Have the recorder note where each block begins its forward and its backward pass."""
        mark, last = self._recorder.mark, len(self._blocks) - 1

        def begins(number: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                if torch._C._current_graph_task_id() == -1:  # else it is recomputed
                    mark(number)

            return hook

        def ends(number: int) -> Callable[..., None]:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                if torch._C._current_graph_task_id() != -1:
                    return
                if number == last:
                    mark(None)
                for tensor in tree_leaves(output):
                    if isinstance(tensor, Tensor) and tensor.requires_grad:
                        tensor.register_hook(lambda gradient: mark(number))  # type: ignore[no-untyped-call]
                        return

            return hook

        for number, block in enumerate(self._blocks):
            # Before FSDP's own hooks, so that it gathers and frees a block's parameters in the part of that block.
            block.register_forward_pre_hook(begins(number), prepend=True)
            block.register_forward_hook(ends(number), prepend=True)

    def _owners(self) -> dict[int, int]:
        """The block of each buffer that is alive between steps."""
        owners: dict[int, int] = {}
        for number, block in enumerate(self._blocks):
            states = [self._optimizer.state.get(parameter, {}) for parameter in block.parameters()]
            held = [list(block.parameters()), list(block.buffers()), states]
            owners |= dict.fromkeys(self._recorder.numbers(held), number)
        return owners


class _WatchedOptimizer:
    """Stands for the optimizer in ``train_step``: parts the log where the passes end, and may leave the update out."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, recorder: Recorder, optimize: bool) -> None:
        self._model, self._optimizer, self._recorder, self._optimize = model, optimizer, recorder, optimize
        self.passes = Passes((), (), Work())
        self.peak, self.work = Line(0, 0), Work()

    def step(self) -> None:
        recorder = self._recorder
        recorder.sort([parameter.grad for parameter in self._model.parameters()], "gradients")
        self.passes = Passes(
            tuple(recorder.log), tuple(recorder.categories), recorder.work, marks=tuple(recorder.marks)
        )
        recorder.begin()
        if self._optimize:
            self._optimizer.step()
            recorder.sort(self._optimizer.state, "optimizer")
        self.peak, self.work = highest(recorder.log, recorder.categories), recorder.work

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)


@contextlib.contextmanager
def _deferred_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is here already need not be searched again between steps
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def _mesh(num_ranks: int) -> Iterator[DeviceMesh | None]:
    """A mesh over a process group that communicates with nobody. Made outside of fake mode: a mesh holds real ranks."""
    if num_ranks == 1:
        yield None
        return
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        yield init_device_mesh("cpu", (num_ranks,))
    finally:
        dist.destroy_process_group()


class _NoInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: on fake tensors it changes nothing, but takes most of the time of building a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
