"""One model in fake mode, and the training steps that it runs there, with the layout applied or not.

``estimators.tracing.tracer`` puts the logs of several micro-batches together.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from estimators.axes import MESH
from estimators.model import INDIVISIBLE, Divisions, Layout
from estimators.peaks.depth import TRACED_BLOCKS, Passes
from estimators.peaks.envelope import EventLog
from estimators.peaks.units import Outline
from estimators.tracing.block_watch import ENTERING, BlockWatch
from estimators.tracing.blocks import are_equal, container_of, lengthen, shorten
from estimators.tracing.cuda import as_on_cuda
from estimators.tracing.fake_gang import fake_mesh, groups_of
from estimators.tracing.graph import module_bytes
from estimators.tracing.recorder import Batch, Recorder
from estimators.tracing.stand_ins import stand_ins
from estimators.work import Work

UNEVEN = 2**16
"""The draw in which a model always makes the same choices."""
_NUM_ACCUMULATED = 2  # micro-batches of a step that accumulates: all after the second repeat it
GET_GRADIENTS = "parameters without a gradient in the traced step get one in others"
_NUM_EVALUATED = 2  # micro-batches of an evaluation: FSDP's root, or all of it, stays gathered after the first


Evaluate = Callable[[nn.Module, Iterable[Batch], int], object]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The training of one candidate, as callables.

    ``make_batch`` returns real tensors with the given number of samples. ``begin_step`` takes the number of the step,
    from 0. ``train_step`` runs the forward and backward passes of all micro-batches that it is given, and then calls
    ``step`` and ``zero_grad`` of the optimizer that it is given. ``make_evaluation`` returns a function that evaluates
    the model on all micro-batches that it is given, each with this number of samples; whatever one such function keeps,
    others do not know. None: there is no evaluation. ``make_evaluation_batch`` is for it what ``make_batch`` is for
    steps. ``unfreezes`` is the assumption that all parameters of the optimizer train, if a later step may unfreeze some
    of them; empty if not. ``kept`` returns what is kept for each parameter between steps besides the states of the
    optimizer, from the first update on. ``most_parts`` returns the number of parts that the layers of a block can be
    divided into, ``tables`` the embedding tables that ranks may divide, and ``divisions`` how the model with its blocks
    can be divided. ``rank_part`` returns the part of a batch that a rank has. ``on_cuda`` asks for the behaviour on
    CUDA (see ``estimators.tracing.cuda``). ``num_copied`` returns how many tensors a step copies because forward passes
    change them; a pass that finds another one takes other memory than those after it. A step that ``has_phases`` takes
    its micro-batches several times, with an update after each; only the last one is that of the optimizer.
    """

    build_model: Callable[[], nn.Module]
    make_batch: Callable[[int], Batch]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    apply_plan: Callable[[nn.Module, Sequence[nn.Module], Layout, DeviceMesh | None], nn.Module]
    optimizer: Callable[[nn.Module, Layout, DeviceMesh | None], Optimizer]
    begin_step: Callable[[int, Optimizer], None]
    train_step: Callable[[nn.Module, Optimizer, Iterable[Batch], int], object]
    unfreezes: str = ""
    make_evaluation: Callable[[], Evaluate] | None = None
    make_evaluation_batch: Callable[[int], Batch] = lambda size: None
    kept: Callable[[nn.Module], Mapping[Tensor, Sequence[Tensor]]] = lambda model: {}
    most_parts: Callable[[nn.Module], int] = lambda block: 1
    tables: Callable[[nn.Module], Collection[Tensor]] = lambda model: ()
    divisions: Callable[[nn.Module, Sequence[nn.Module]], Divisions] = lambda model, blocks: INDIVISIBLE
    rank_part: Callable[[nn.Module, Batch, Layout], Batch] = lambda model, batch, layout: batch
    on_cuda: bool = False
    num_copied: Callable[[nn.Module], int] = lambda model: 0
    has_phases: bool = False


def num_passes(layout: Layout) -> int:
    """Micro-batches of a traced step: all in a pipeline, because its schedule decides how many are held at a time."""
    if layout.pp > 1:
        return layout.num_micro_batches
    return _NUM_ACCUMULATED if layout.accumulate else 1


_DIVIDED = MESH["tp"].name, MESH["dp_replicate"].name  # dimensions whose ranks divide layers, or tables
_NOTHING = Passes((), (), Work())


@dataclass(frozen=True, slots=True)
class Step:
    """One traced step: its forward and backward passes, and the update after them.

    ``num_alive`` is the number of buffers alive before the update.
    """

    passes: Passes
    update: Passes
    num_alive: int = 0

    @property
    def made(self) -> EventLog:
        """The events of the buffers that the optimizer makes, numbered from 0."""
        first = self.num_alive
        return tuple((buffer - first, size) for buffer, size in self.update.events if buffer >= first)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One traced evaluation. It ``is_cut`` if code that looks at values ended the trace early."""

    passes: Passes
    is_cut: bool = False


class Session:
    """One model in fake mode: the whole model at first, and the share of the layout's first rank after ``spread``.

    All but a few of its blocks can be left out (``shorten``), and put back afterwards, but only for updates (``grow``).
    Cyclic garbage is collected only between steps. Otherwise, buffers would be freed at moments that differ from trace
    to trace.
    """

    def __init__(self, recipe: Recipe, layout: Layout, draw: int = 0, *, itemised: bool = False) -> None:
        """``draw`` seeds the generators of random numbers before each step. ``itemised`` logs each operation as well.

        With ``UNEVEN`` the model's own choices, such as experts, are all the same (see ``estimators.tracing.values``).
        """
        self._recipe, self._draw, self._itemised = recipe, draw, itemised
        self.has_drawn = False  # whether random numbers may have decided what a step does
        self._wanted, self._layout = layout, Layout()
        self._modes = contextlib.ExitStack()
        self._num_steps = 0
        self._left_out: list[nn.Module] = []
        self._evaluate: Evaluate | None = None
        self._begun: list[tuple[int, Work]] = []  # where in the log each micro-batch begins, and the work done by then
        self._without_gradient: set[Tensor] = set()
        self._filled: set[Tensor] = set()  # parameters that only other steps give gradients
        self._assumed: set[str] = set()
        # Micro-batch → block → bytes that the block returns; at -1 those that the first block takes.
        self._outputs: dict[int, dict[int, int]] = {}

    def __enter__(self) -> Session:
        with contextlib.ExitStack() as modes:
            modes.enter_context(_deferred_garbage())
            if self._recipe.on_cuda:
                modes.enter_context(as_on_cuda())
            self._mesh = modes.enter_context(fake_mesh(self._wanted))
            fake = modes.enter_context(_FakeMode(allow_non_fake_inputs=True))
            recorder = Recorder(
                fake,
                workspaces=not self._recipe.on_cuda,
                even=self._draw != UNEVEN,
                itemised=self._itemised,
                groups=groups_of(self._mesh) if self._mesh is not None else None,
            )
            self._recorder = modes.enter_context(recorder)
            self._watch = BlockWatch(self._recorder)
            modes.enter_context(stand_ins(self._recorder.values))
            modes.enter_context(torch.random.fork_rng(devices=[]))
            modes.callback(random.setstate, random.getstate())
            modes.callback(np.random.set_state, np.random.get_state(legacy=False))
            with NoInit():
                self._model = self._recipe.build_model()
            gc.collect()
            self._recorder.own("buffers")  # tensors that modules hold without registering them
            self._model.train()
            self._blocks = list(dict.fromkeys(self._recipe.blocks(self._model)))  # one may be there several times
            self.num_params = sum(parameter.numel() for parameter in self._model.parameters())
            self.num_blocks = len(self._blocks)
            self.divisions = self._divisions() if self._wanted == Layout() else INDIVISIBLE
            self.outlines = _outlines(self._model, self._blocks, self._recipe)
            self._optimizer = self._new_optimizer()
            self._modes = modes.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        del self._model, self._optimizer, self._blocks, self._left_out, self._without_gradient, self._watch
        del self._filled
        self._evaluate = None
        self._modes.close()

    @property
    def assumptions(self) -> list[str]:
        """Assumptions of decisions by values of tensors so far (see ``estimators.tracing.values``)."""
        return [*self._recorder.values.assumptions.described, *sorted(self._assumed)]

    @property
    def can_be_shortened(self) -> bool:
        """Whether there are more blocks than must be traced, all equal and one after another."""
        return (
            not self._recipe.has_phases
            and self.num_blocks > TRACED_BLOCKS
            and self.has_equal_blocks
            and container_of(self._model, self._blocks) is not None
        )

    @property
    def has_equal_blocks(self) -> bool:
        """Whether all blocks are equal."""
        return are_equal(self._blocks)

    @property
    def shapes(self) -> tuple[tuple[tuple[int, ...], int | None], ...]:
        """The shape of each parameter, with the number of its block (None outside of the blocks).

        Layers and tables that ranks divide have the shape of a rank's part; shards of FSDP are not counted.
        """
        blocks = {parameter: number for number, block in enumerate(self._blocks) for parameter in block.parameters()}
        return tuple((_shape_of(parameter), blocks.get(parameter)) for parameter in self._model.parameters())

    @property
    def sample_dimensions(self) -> list[int]:
        """Sizes of all dimensions of each tensor of a batch, except its first dimension."""
        with _disable_current_modes():
            samples = self._recipe.make_batch(2)
        return [size for leaf in tree_leaves(samples) if isinstance(leaf, Tensor) for size in leaf.shape[1:]]

    def shorten(self) -> None:
        """Leave ``TRACED_BLOCKS`` blocks in the model, and mark in the log where each begins."""
        self._evaluate = None  # with what evaluations of the whole model have kept
        self._left_out = self._blocks[TRACED_BLOCKS:]
        self._blocks = shorten(self._model, self._blocks, TRACED_BLOCKS)
        self._optimizer = self._new_optimizer()
        self._watch.watch(self._blocks)

    def spread(self) -> None:
        """Apply the layout to the model."""
        self._evaluate = None
        self._layout = self._wanted
        self._model = self._recipe.apply_plan(self._model, self._blocks, self._layout, self._mesh)
        kept = set(self._model.modules())
        self._blocks = [block for block in self._blocks if block in kept]  # blocks of other stages are gone
        self._optimizer = self._new_optimizer()
        if self._left_out or self._layout == Layout():
            self._watch.watch(self._blocks)

    def traced_outputs(self, micro_batch: int) -> list[int]:
        """Bytes that went into the first block, and out of each block that was traced; empty if none was watched."""
        crossing = self._outputs.get(micro_batch)
        return [crossing.get(number, 0) for number in range(ENTERING, max(crossing) + 1)] if crossing else []

    def outputs(self, micro_batch: int) -> list[int]:
        """Bytes that went into the first block, and out of each block; empty if the blocks were not watched."""
        seen = self.traced_outputs(micro_batch)
        return seen[:3] + [seen[2]] * len(self._left_out) + seen[3:] if self._left_out and len(seen) > 3 else seen

    def grow(self, num: int | None = None) -> None:
        """Put back ``num`` of the blocks that ``shorten`` left out (None: all), with parameters like the others'."""
        copied = list(lengthen(self._model, self._blocks, self._left_out[:num]))
        self._without_gradient |= {new for old, new in copied if old in self._without_gradient}
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> Optimizer:
        optimizer = self._recipe.optimizer(self._model, self._layout, self._mesh)
        self._unfreeze(optimizer)
        return optimizer

    def _unfreeze(self, optimizer: Optimizer) -> None:
        """Train whatever a later step may train: activations, gradients and states are then traced with all others."""
        frozen = [tensor for tensor in _held_by(optimizer) if not tensor.requires_grad and tensor.is_floating_point()]
        if self._recipe.unfreezes and frozen:
            self._assumed.add(self._recipe.unfreezes)
            for parameter in frozen:
                parameter.requires_grad_(True)

    def forget(self) -> None:
        """Drop the gradients that a failed pass has left behind."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def forward(self, micro_batch: int) -> Passes:
        """The log of a step up to its first backward pass."""
        num_before, batches = self._begin(micro_batch, 1)
        forward = self._recorder.forward(lambda: self._recipe.train_step(self._model, self._optimizer, batches, 1))
        return replace(forward, num_before=num_before)

    def passes(self, micro_batch: int) -> Passes:
        """The passes of a step without its update: its gradients are dropped at the end, and nothing changes."""
        return self._passes(micro_batch, num_passes(self._layout))

    def one_and_two(self, micro_batch: int) -> tuple[Passes, Passes]:
        """The passes of the first of two micro-batches of one step, and those of both."""
        two = self._passes(micro_batch, 2)
        end, work = self._begun[1]
        marks = [mark for mark in two.marks if mark[0] < end]
        operations = two.operations[: work.num_operations]
        of_one = replace(two, events=two.events[:end], work=work, marks=marks, operations=operations)
        return of_one, two

    def step(self, micro_batch: int) -> Step:
        """A whole step, as ranks run it."""
        return self._step(micro_batch, num_passes(self._layout), update=True)

    def _passes(self, micro_batch: int, num: int) -> Passes:
        num_copied = self._recipe.num_copied(self._model)
        passes = self._step(micro_batch, num, update=False).passes
        if self._recipe.num_copied(self._model) > num_copied:
            passes = self._step(micro_batch, num, update=False).passes
        return passes

    def _step(self, micro_batch: int, num: int, *, update: bool) -> Step:
        num_before, batches = self._begin(micro_batch, num)
        owners = self._owners()
        if update:
            self._begin_step()
        before = self._seeded()

        def varies() -> bool:
            """Whether another step may use other parameters than this one."""
            values = self._recorder.values
            return (
                bool(self._recipe.unfreezes) or values.assumptions.varies or self.has_drawn or _random_state() != before
            )

        watched = self._watched(update, varies)
        if num > 1:  # an earlier micro-batch may have used them
            watched.fill(self._filled)
        self._recipe.train_step(self._model, cast(Optimizer, watched), batches, num)
        self.has_drawn |= self._recorder.values.assumptions.has_drawn or _random_state() != before
        self._without_gradient, self._filled = watched.without_gradient, watched.filled
        if self._filled:
            self._assumed.add(self._recipe.unfreezes or GET_GRADIENTS)
        return replace(watched.seen, passes=replace(watched.seen.passes, num_before=num_before, owners=owners))

    @property
    def has_evaluation(self) -> bool:
        """Whether the recipe has an evaluation."""
        return self._recipe.make_evaluation is not None

    def held_bytes(self) -> int:
        """Bytes that are alive now."""
        gc.collect()
        return self._recorder.live_bytes

    def evaluation(self, micro_batch: int) -> Evaluated:
        """An evaluation, as far as it goes without the values of tensors. Call it after all steps.

        The model has the states that it has between steps, and no gradients.
        """
        assert self._recipe.make_evaluation is not None
        if self._evaluate is None:
            self._evaluate = self._recipe.make_evaluation()
        with _disable_current_modes():
            made = self._recipe.make_evaluation_batch(micro_batch)
            samples = self._recipe.rank_part(self._model, made, self._layout)
        self._watch.crossing = {}
        num_before, owners, is_cut = self._begin_log(), self._owners(), False
        self._seeded()
        batches = (self._recorder.copied(samples) for _ in range(_NUM_EVALUATED))
        with self._recorder.values.assumptions.of_evaluation():
            try:
                self._evaluate(self._model, batches, micro_batch)
            except Exception as error:
                self._recorder.values.assumptions.cut(error)
                is_cut = True
        passes = replace(self._recorder.passes, num_before=num_before, owners=owners)
        return Evaluated(passes, is_cut)

    def update(self) -> Step:
        """An optimizer step on gradients that no pass has computed."""
        num_before = self._begin_log()
        self._begin_step()
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter not in self._without_gradient:
                parameter.grad = torch.empty_like(parameter)
        watched = self._watched(True, lambda: False)
        watched.step()
        watched.zero_grad()
        return replace(watched.seen, passes=replace(watched.seen.passes, num_before=num_before))

    def _watched(self, updates: bool, varies: Callable[[], bool]) -> _WatchedOptimizer:
        return _WatchedOptimizer(self._model, self._optimizer, self._recorder, updates, varies, self._recipe.kept)

    def _begin(self, micro_batch: int, num: int) -> tuple[int, Iterable[Batch]]:
        with _disable_current_modes():
            samples = self._recipe.rank_part(self._model, self._recipe.make_batch(micro_batch), self._layout)
        self._begun.clear()
        self._watch.crossing = self._outputs[micro_batch] = {}
        return self._begin_log(), _Repeated(lambda: (self._next_batch(samples) for _ in range(num)))

    def _seeded(self) -> object:
        """Seed all generators; returns the state of those of Python and numpy."""
        torch.manual_seed(self._draw)
        random.seed(self._draw)
        np.random.seed(self._draw)
        return _random_state()

    def _next_batch(self, samples: Batch) -> Batch:
        self._begun.append((len(self._recorder.log), self._recorder.work))
        self._watch.crossing.clear()
        return self._recorder.copied(samples)

    def _begin_log(self) -> int:
        """Begin a new log with what is alive now; returns its number of events."""
        gc.collect()
        gc.freeze()
        self._recorder.hold(list(self._model.parameters()), "parameters")
        self._recorder.hold(list(self._model.buffers()), "buffers")
        self._recorder.begin(module_bytes(self._model, self._blocks))
        return len(self._recorder.log)

    def _begin_step(self) -> None:
        self._recipe.begin_step(self._num_steps, self._optimizer)
        self._unfreeze(self._optimizer)
        self._num_steps += 1

    def _divisions(self) -> Divisions:
        with _disable_current_modes():  # batches are real
            return self._recipe.divisions(self._model, self._blocks)

    def _owners(self) -> dict[int, int]:
        """The block of each buffer that is alive between steps, by the buffer's number."""
        owners: dict[int, int] = {}
        kept_of = self._recipe.kept(self._model)
        for number, block in enumerate(self._blocks):
            states = [self._optimizer.state.get(parameter, {}) for parameter in block.parameters()]
            kept = [kept_of[parameter] for parameter in block.parameters() if parameter in kept_of]
            held = [list(block.parameters()), list(block.buffers()), states, kept]
            owners |= dict.fromkeys(self._recorder.numbers(held), number)
        return owners


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Micro-batches that are made anew each time."""

    make: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.make()


def _shape_of(parameter: Tensor) -> tuple[int, ...]:
    sizes = list(parameter.shape)
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        for name, placement, num_ranks in zip(mesh.mesh_dim_names or (), parameter.placements, mesh.shape, strict=True):
            if name in _DIVIDED and placement.is_shard():
                sizes[cast(Shard, placement).dim] //= num_ranks
    return tuple(sizes)


def _outlines(model: nn.Module, blocks: Sequence[nn.Module], recipe: Recipe) -> list[Outline]:
    """Outlines of the part before the blocks, of each block, and of the part after; by the order of the parameters."""
    owners = {parameter: number for number, block in enumerate(blocks) for parameter in block.parameters()}
    ends: list[dict[str, int]] = [{}, {}]  # parameters before and after, by the model's attribute that they are in
    tables, in_tables, reached = set(recipe.tables(model)), [0, 0], False
    for name, parameter in model.named_parameters():
        if parameter in owners:
            reached = True
        else:
            attribute = name.partition(".")[0]
            ends[reached][attribute] = ends[reached].get(attribute, 0) + parameter.numel()
            in_tables[reached] += parameter.numel() if parameter in tables else 0
    names = {block: name for name, block in model.named_modules()}
    before, after = (
        Outline(", ".join(end) or "nothing", sum(end.values()), num_table_params=num)
        for end, num in zip(ends, in_tables, strict=True)
    )
    return [before, *(_outline(block, names[block], tables, recipe) for block in blocks), after]


def _outline(block: nn.Module, name: str, tables: Set[Tensor], recipe: Recipe) -> Outline:
    parameters = set(block.parameters())
    num_params = sum(parameter.numel() for parameter in parameters)
    num_in_tables = sum(parameter.numel() for parameter in parameters & tables)
    return Outline(name, num_params, recipe.most_parts(block), num_in_tables)


def _random_state() -> object:
    state: Any = np.random.get_state(legacy=False)
    return random.getstate(), state["state"]["pos"], state["state"]["key"].tobytes()


def _held_by(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class _WatchedOptimizer:
    """Stands in for the optimizer in ``train_step``: splits the log where the passes end, and may skip the update.

    If the step ``varies``, parameters of the optimizer that it has not used are ``filled`` with gradients, so that they
    have optimizer states as after a step that has used them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        recorder: Recorder,
        updates: bool,
        varies: Callable[[], bool],
        kept: Callable[[nn.Module], Mapping[Tensor, Sequence[Tensor]]],
    ) -> None:
        self._kept = kept
        self._model, self._optimizer, self._recorder, self._updates = model, optimizer, recorder, updates
        self._varies = varies
        self.seen = Step(_NOTHING, _NOTHING)
        self.without_gradient: set[Tensor] = set()
        self.filled: set[Tensor] = set()

    def fill(self, parameters: Iterable[Tensor]) -> None:
        """Give these parameters gradients, those that have one excepted."""
        if isinstance(self._optimizer, torch.optim.SparseAdam):
            return  # it takes sparse gradients only
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
                self.filled.add(parameter)

    def step(self) -> None:
        recorder, parameters = self._recorder, list(self._model.parameters())
        if any(parameter.grad is None and parameter.requires_grad for parameter in parameters) and self._varies():
            self.fill(tensor for tensor in _held_by(self._optimizer) if tensor.requires_grad)
        recorder.sort([parameter.grad for parameter in parameters], "gradients")
        self.without_gradient = {parameter for parameter in parameters if parameter.grad is None}
        passes = recorder.passes
        recorder.begin()
        num_alive, num_before = len(recorder.categories), len(recorder.log)
        if self._updates:
            self._optimizer.step()
            recorder.sort([self._optimizer.state, list(self._kept(self._model).values())], "optimizer")
        self.seen = Step(passes, replace(recorder.passes, num_before=num_before), num_alive)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._optimizer.zero_grad(set_to_none)


_keeps_frozen = False


def keep_frozen() -> None:
    """Exempt everything that this process has from garbage collection, for good: it is made for traces."""
    global _keeps_frozen
    gc.collect()
    gc.freeze()
    _keeps_frozen = True


@contextlib.contextmanager
def _deferred_garbage() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what exists already need not be scanned again between steps
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not _keeps_frozen:
            gc.unfreeze()


class _FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Takes shapes from torch's meta kernels where there are any. ``FakeTensorMode`` itself would first decompose
    operations in Python, which only symbolic shapes need and which takes two to four times as long."""

    def cpp_meta_supports_symint(self, func: Any) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta")


class NoInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: it changes nothing on fake tensors, but takes most of the time of building a model."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)
