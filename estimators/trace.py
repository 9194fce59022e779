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
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from estimators.blocks import are_equal, container_of, lengthen, shorten
from estimators.depth import TRACED_BLOCKS, Passes, stretch
from estimators.envelope import EventLog, Line, PeakTable, fit, highest, live_bytes
from estimators.fake_gang import fake_mesh
from estimators.model import Layout, PeakCurve
from estimators.recorder import Batch, Recorder
from estimators.step_log import StepLog, log_of
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
    optimizer begins. ``alike``: its blocks are, and a few have told of all. ``log`` is there where the curve is an
    envelope.
    """

    curve: PeakCurve
    structure: str
    num_params: int
    state_bytes: int
    work: StepWork
    alike: bool
    log: StepLog | None = None


def trace(recipe: Recipe, layout: Layout, batch: int, alike: bool | None = None) -> Traced:
    """Trace ``layout`` for micro-batches up to ``batch`` samples, and beyond where the peak is affine.

    One model takes passes of 2, ``batch``, 3 and 1 samples, each from the same state, and updates. When the passes do
    not lie on lines, powers of two up to ``batch`` are traced one by one instead, two steps each, and the curve is a
    table of them.

    Of a model of more equal blocks than ``TRACED_BLOCKS`` only so many are traced, and their logs are stretched, unless
    that is known to fail: ``alike`` is what a trace of another layout has found, None where there was none. Then a
    forward pass of the whole model must come out of that of the few blocks; what is left to believe is that blocks
    which do the same forward with 2 samples do the same backward, with others, and under other layouts.
    """
    largest = max(batch, 4)
    short = alike is not False and layout.stage is None
    steps = _stretched(recipe, layout, largest, verify=alike is None) if short else None
    stretched = steps is not None
    steps = steps or _whole(recipe, layout, largest)
    curve = _curve(steps)
    log = _log(steps) if curve is not None else None
    if curve is None:
        curve = _table(recipe, layout, batch)
    second = steps.passes[2]
    passes_of_two = second.work * (1 / _num_passes(layout))
    passes_of_all = steps.passes[largest].work * (1 / _num_passes(layout))
    per_sample = (passes_of_all - passes_of_two) * (1 / (largest - 2))
    work = StepWork(passes_of_two - per_sample * 2, per_sample, steps.update_work)
    return Traced(curve, _structure(second, curve), steps.num_params, second.held_after, work, stretched, log)


def _num_passes(layout: Layout) -> int:
    """Micro-batches of a traced step: in a pipeline all, as its schedule tells how many are held."""
    if layout.stage is not None:
        return layout.stage.num_micro_batches
    return _NUM_ACCUMULATED if layout.accumulate else 1


@dataclass(frozen=True, slots=True)
class _Steps:
    """What one layout was seen to do. ``passes`` are by their samples: 2, 3 and more; ``single`` is of one sample.

    ``first_peak`` is all that the very first step needs beyond what later passes show, ``update_peak`` the larger of
    those of the first two updates, and ``update`` the events of what the second makes for itself.
    """

    passes: Mapping[int, Passes]
    single: Passes | None
    first_peak: Line
    update_peak: Line
    update_work: Work
    update: EventLog
    num_params: int


def _whole(recipe: Recipe, layout: Layout, largest: int) -> _Steps:
    with _Session(recipe, layout) as session:
        session.spread()
        first, second = session.step(2), session.step(2)
        passes = {2: second.passes} | {size: session.passes(size) for size in (largest, 3)}
        first_peak = max(first.passes.peak, first.update_peak)
        update_peak = max(first.update_peak, second.update_peak)
        single, num_params = _single(session), session.num_params
    return _Steps(passes, single, first_peak, update_peak, second.update_work, second.update, num_params)


def _stretched(recipe: Recipe, layout: Layout, largest: int, *, verify: bool) -> _Steps | None:
    """Of a few blocks, as if there were all; None where that cannot be done."""
    with _Session(recipe, layout) as session:
        if not session.can_be_shortened:
            return None
        try:
            forward = session.forward(2) if verify else None
            session.shorten()
            few: dict[int, Passes] = {}
            if forward is not None:
                plain = session.passes(2)
                if (whole := stretch(plain, session.num_blocks)) is None or not whole.begins_with(forward):
                    return None
                few = {2: plain} if layout == Layout() else {}
            session.spread()
            few |= {size: session.passes(size) for size in (2, largest, 3) if size not in few}
        except Exception:  # it does not work with fewer blocks; or not at all, and then the whole one will tell why
            return None
        few_single = _single(session)
        session.grow()
        first, second = session.update(), session.update()
        num_blocks, num_params = session.num_blocks, session.num_params

    def stretched(passes: Passes) -> Passes | None:
        longer = stretch(passes, num_blocks)
        return longer.after(second.passes.held("optimizer")) if longer is not None else None

    passes = {size: longer for size, one in few.items() if (longer := stretched(one)) is not None}
    single = stretched(few_single) if few_single is not None else None
    if len(passes) < len(few) or (single is None) != (few_single is None):
        return None
    # Gradients differ where they are not of the size of their parameters.
    if any(getattr(passes[2], name) != getattr(second.passes, name) for name in ("held_before", "gradient_bytes")):
        return None
    update_peak = max(first.update_peak, second.update_peak)
    return _Steps(passes, single, first.update_peak, update_peak, second.update_work, second.update, num_params)


def _curve(steps: _Steps) -> PeakCurve | None:
    """None where the passes are not affine in the micro-batch, or the first step needs more than they say."""
    of_two, single, floor = steps.passes[2], steps.single, steps.update_peak
    # The optimizer does the same after every micro-batch if it begins with the same gradients, and nothing else.
    if len({(one.held_before, one.held_after) for one in steps.passes.values()}) > 1:
        return None
    if single is not None:
        # A sum over a dimension of size 1 is a view: gradients of a single sample may keep larger buffers alive.
        kept = max(0, single.held_after - of_two.held_after)
        one_sample = max(single.peak, floor.plus("gradients", kept))
    else:
        one_sample = max(of_two.peak, floor)
    curve = fit({size: one.events for size, one in steps.passes.items()}, floor, one_sample, of_two.categories)
    return curve if curve is not None and steps.first_peak.fixed_bytes <= curve.peak_bytes(2) else None


def _log(steps: _Steps) -> StepLog:
    """Of steps on lines. A single sample counts as two where the model refuses it."""
    return log_of(steps.passes, steps.single or steps.passes[2], steps.update)


def _single(session: _Session) -> Passes | None:
    """The passes of one sample; None where the model refuses it, as batch normalisation does."""
    try:
        return session.passes(1)
    except Exception:
        session.forget()
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
        session.spread()
        steps = [session.step(micro_batch), session.step(micro_batch)]
    return max(max(step.passes.peak, step.update_peak) for step in steps)


def _structure(passes: Passes, curve: PeakCurve) -> str:
    live = live_bytes(passes.events)[passes.num_before :].tolist()
    text = json.dumps([torch.__version__, passes.held_before, live, curve.to_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Step:
    """One traced step: its forward and backward passes, and the peak and the work of the update after them, with the
    events of what it makes for itself."""

    passes: Passes
    update_peak: Line
    update_work: Work
    update: EventLog


class _Session:
    """One model in fake mode, as it is until ``spread`` applies the layout, of which it is the first rank.

    All but a few of its blocks may be left out (``shorten``), and put back afterwards for updates alone (``grow``).
    Collecting cyclic garbage is put off to the time between steps: it would free buffers at moments that
    no two traces share.
    """

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self._recipe = recipe
        self._wanted, self._layout = layout, Layout()
        self._modes = contextlib.ExitStack()
        self._num_steps = 0
        self._left_out: list[nn.Module] = []
        self._hooks: list[RemovableHandle] = []
        self._without_gradient: set[Tensor] = set()

    def __enter__(self) -> _Session:
        with contextlib.ExitStack() as modes:
            modes.enter_context(_deferred_garbage())
            self._mesh = modes.enter_context(fake_mesh(self._wanted))
            fake = modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            self._recorder = modes.enter_context(Recorder(fake))
            with _NoInit():
                self._model = self._recipe.build_model()
            gc.collect()
            self._recorder.own("buffers")  # tensors that modules hold without registering them
            self._model.train()
            self._blocks = list(self._recipe.blocks(self._model))
            self.num_params = sum(parameter.numel() for parameter in self._model.parameters())
            self.num_blocks = len(self._blocks)
            self._optimizer = self._recipe.optimizer(self._model)
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        del self._model, self._optimizer, self._blocks, self._left_out, self._without_gradient, self._hooks
        self._modes.close()

    @property
    def can_be_shortened(self) -> bool:
        """Whether there are more blocks than need to be traced, all alike and one after another."""
        alike = self.num_blocks > TRACED_BLOCKS and are_equal(self._blocks)
        return alike and container_of(self._model, self._blocks) is not None

    def shorten(self) -> None:
        """Leave ``TRACED_BLOCKS`` blocks in the model, and note where each begins."""
        self._left_out = self._blocks[TRACED_BLOCKS:]
        self._blocks = shorten(self._model, self._blocks, TRACED_BLOCKS)
        self._optimizer = self._recipe.optimizer(self._model)
        self._watch_blocks()

    def spread(self) -> None:
        """Apply the layout."""
        self._layout = self._wanted
        self._model = self._recipe.apply_plan(self._model, self._blocks, self._layout, self._mesh)
        kept = set(self._model.modules())
        self._blocks = [block for block in self._blocks if block in kept]  # those of other stages are gone
        self._optimizer = self._recipe.optimizer(self._model)
        if self._left_out:
            self._watch_blocks()

    def grow(self) -> None:
        """Put the blocks back that ``shorten`` has left out, with parameters like those of the others."""
        copied = list(lengthen(self._model, self._blocks, self._left_out))
        self._without_gradient |= {new for old, new in copied if old in self._without_gradient}
        self._optimizer = self._recipe.optimizer(self._model)

    def forget(self) -> None:
        """Drop what a pass that failed has left behind."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def forward(self, micro_batch: int) -> Passes:
        """The events of a step up to its first backward pass."""
        num_before, batches = self._begin(micro_batch, 1)
        forward = self._recorder.forward(lambda: self._recipe.train_step(self._model, self._optimizer, batches, 1))
        return replace(forward, num_before=num_before)

    def passes(self, micro_batch: int) -> Passes:
        """Those of a step without its update: its gradients are dropped at the end, and nothing changes."""
        return self._step(micro_batch, update=False).passes

    def step(self, micro_batch: int) -> _Step:
        """A step as ranks take it."""
        return self._step(micro_batch, update=True)

    def _step(self, micro_batch: int, *, update: bool) -> _Step:
        num = _num_passes(self._layout)
        num_before, batches = self._begin(micro_batch, num)
        owners = self._owners()
        if update:
            self._begin_step()
        watched = _WatchedOptimizer(self._model, self._optimizer, self._recorder, update)
        self._recipe.train_step(self._model, cast(Optimizer, watched), batches, num)
        self._without_gradient = watched.without_gradient
        return _Step(
            replace(watched.passes, num_before=num_before, owners=owners), watched.peak, watched.work, watched.update
        )

    def update(self) -> _Step:
        """An optimizer step on gradients that no pass has made."""
        num_before = self._begin_log()
        self._begin_step()
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter not in self._without_gradient:
                parameter.grad = torch.empty_like(parameter)
        watched = _WatchedOptimizer(self._model, self._optimizer, self._recorder, True)
        watched.step()
        watched.zero_grad()
        return _Step(replace(watched.passes, num_before=num_before), watched.peak, watched.work, watched.update)

    def _begin(self, micro_batch: int, num: int) -> tuple[int, Iterator[Batch]]:
        with _disable_current_modes():
            samples = self._recipe.make_batch(micro_batch)
        return self._begin_log(), map(self._recorder.copied, [samples] * num)

    def _begin_log(self) -> int:
        """A new log of what is alive now; returns its length."""
        gc.collect()
        gc.freeze()
        self._recorder.hold(list(self._model.parameters()), "parameters")
        self._recorder.hold(list(self._model.buffers()), "buffers")
        self._recorder.begin()
        return len(self._recorder.log)

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

        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for number, block in enumerate(self._blocks):
            # Before FSDP's own hooks, so that it gathers and frees a block's parameters in the part of that block.
            self._hooks.append(block.register_forward_pre_hook(begins(number), prepend=True))
            self._hooks.append(block.register_forward_hook(ends(number), prepend=True))

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

    def __init__(self, model: nn.Module, optimizer: Optimizer, recorder: Recorder, updates: bool) -> None:
        self._model, self._optimizer, self._recorder, self._updates = model, optimizer, recorder, updates
        self.passes = Passes((), (), Work())
        self.peak, self.work = Line(0, 0), Work()
        self.update: EventLog = ()
        self.without_gradient: set[Tensor] = set()

    def step(self) -> None:
        recorder, parameters = self._recorder, list(self._model.parameters())
        recorder.sort([parameter.grad for parameter in parameters], "gradients")
        self.without_gradient = {parameter for parameter in parameters if parameter.grad is None}
        self.passes = recorder.passes
        recorder.begin()
        num_alive = len(recorder.categories)
        if self._updates:
            self._optimizer.step()
            recorder.sort(self._optimizer.state, "optimizer")
        self.update = tuple((buffer - num_alive, size) for buffer, size in recorder.log if buffer >= num_alive)
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


class _NoInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: on fake tensors it changes nothing, but takes most of the time of building a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
