"""The state that a model changes in its forward pass, kept the same under every plan.

Running statistics, teachers that follow their students, power iterations and counters change when the model is called.
How often that happens must not depend on the plan, so

- every micro-batch of a step begins from the state at the beginning of the step. After the last one, each buffer is the
  mean of what the micro-batches of all ranks have made of it;
- a pass that is recomputed begins from the state that it began from the first time, and changes nothing;
- evaluation changes nothing.

This gives the state of one rank, except for what a model computes from the samples themselves: only running statistics
may depend on how a batch is divided. A division that would change other state, such as a queue of samples, is refused,
and so is FSDP for a model that changes its parameters: their gathered copies are freed after the pass.

The first pass of a model is watched, operation by operation, to see which tensors it changes.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from estimators.axes import MESH, SHARES
from estimators.model import Layout
from workloads.refusals import WorkloadError

_NAME = "_scamp_forward_state"
_OWN = frozenset(nn.Module().__dict__) | {_NAME, "forward"}
"""Attributes of every module that are not state of the model."""
_STATISTICS = ("running_mean", "running_var")
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

Place = tuple[nn.Module, str]
"""A module and the name of one of its tensors."""


def forward_state(model: nn.Module) -> ForwardState:
    """The forward state of ``model``."""
    state = model.__dict__.get(_NAME)
    return state if isinstance(state, ForwardState) else attach_state(model, Layout(), None)


def set_attributes(model: nn.Module, values: Mapping[str, Any]) -> None:
    """Set attributes of modules of ``model`` by their qualified names; those of other stages are left out."""
    modules = dict(model.named_modules())
    state = forward_state(model)
    for qualified, value in values.items():
        path, _, name = qualified.rpartition(".")
        if path in modules:
            modules[path].__dict__[name] = value
            state.attributes[modules[path], name] = None


def attach_state(model: nn.Module, layout: Layout, mesh: DeviceMesh | None) -> ForwardState:
    """A new forward state for ``model``, which is divided by ``layout`` on ``mesh``."""
    state = model.__dict__[_NAME] = ForwardState(model, layout, mesh)
    return state


@dataclass(slots=True, eq=False)
class ForwardState:
    """The state that forward passes of a model change.

    As far as is known, ``changed`` are the tensors that they change in place, ``statistics`` the buffers that they
    compute from samples, and ``attributes`` those of modules that they change and do not compute from samples.
    ``num_copied`` grows when a pass finds a tensor that must be copied before each pass from then on.
    """

    model: nn.Module
    layout: Layout
    mesh: DeviceMesh | None
    changed: dict[Place, None] = field(default_factory=dict)
    statistics: dict[Place, None] = field(default_factory=dict)
    attributes: dict[Place, None] = field(default_factory=dict)
    num_copied: int = 0
    _is_known: bool = False
    _begin: _Snapshot | None = None
    _sums: dict[Place, Tensor] = field(default_factory=dict)
    _num_passes: int = 0
    _results: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)  # of earlier passes, in attributes

    @contextlib.contextmanager
    def micro_batch(self, batch: Any, num: int) -> Iterator[None]:
        """The passes of one of ``num`` micro-batches of a step, or in a pipeline the forward pass.

        Raises ``WorkloadError`` for a model that would not train as on one rank.
        """
        begin = self._begin
        if num > 1:
            if begin is not None:
                begin.restore()
            else:
                begin = self._begin = self.snapshot()
        self._num_passes += 1
        self._results = _results_in(self.model) if self.layout.recompute or self.layout.co_shard > 1 else {}
        try:
            if self._is_known:
                yield
            else:
                before = begin or self.snapshot()
                with self._watching(self.model, batch, keeps=num > 1) as watch:
                    yield
                before.add(watch.changed)
                self._is_known = True
                self._learn(watch, before, is_divided=num > 1 or _is_divided(self.layout))
        except BaseException:
            self._forget_step()
            raise
        if num > 1:
            for place in self.statistics:
                value = _get(place).detach()
                self._sums[place] = self._sums[place] + value if place in self._sums else value.clone()

    def as_micro_batch(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of a stage of a pipeline, each of whose calls in training is the pass of one micro-batch."""

        def call(*inputs: Any) -> Any:
            if not self.model.training:
                return forward(*inputs)
            with self.micro_batch(inputs, self.layout.num_micro_batches):
                return forward(*inputs)

        return call

    def end_step(self) -> None:
        """Give every statistic the mean of what the micro-batches of all ranks have made of it; all ranks call it."""
        groups, num = self._groups(), self._num_passes
        values = [self._sums[place] / num if place in self._sums else _get(place) for place in self.statistics]
        self._forget_step()
        if values and (num > 1 or groups):
            for place, value in zip(self.statistics, _mean_over_ranks(values, groups), strict=True):
                _get(place).data.copy_(value)

    @contextlib.contextmanager
    def unchanged(self, batch: Any) -> Iterator[None]:
        """Undo at the end what passes through the model have changed."""
        before = self.snapshot()
        if self._is_known:
            yield
        else:
            with self._watching(self.model, batch, keeps=True) as watch:
                yield
            before.add(watch.changed)
        before.restore()

    def passes(self, module: nn.Module) -> RepeatedPasses:
        """Passes through ``module`` that repeat the first of them, as for a backward pass."""
        return RepeatedPasses(self, module)

    def named_attributes(self) -> dict[str, Any]:
        """The values of the ``attributes`` by their qualified names; checkpoints hold them."""
        return {self._name((module, name)): module.__dict__[name] for module, name in self.attributes}

    def snapshot(self, module: nn.Module | None = None) -> _Snapshot:
        """The state now: of the whole model, or during a pass of one module with its submodules.

        The latter includes what earlier calls of the same pass have left for later ones, with its graph.
        """
        modules = list((module or self.model).modules())
        inside = set(modules) if module is not None else None
        values = {place: _get(place).data.clone() for place in self.changed if inside is None or place[0] in inside}
        is_state = _may_be_state if module is None else self._is_of_pass
        return _Snapshot(
            [(each, _attributes(each, is_state), dict(each._buffers)) for each in modules], values, is_state
        )

    def _is_of_pass(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return _may_be_state(value)
        known = self._results.get(id(value))
        return known is None or known() is not value

    @contextlib.contextmanager
    def _watching(self, module: nn.Module, batch: Any, *, keeps: bool) -> Iterator[_Watch]:
        with _Watch(module, batch, keeps=keeps) as watch, _WatchCalls(watch) as calls:
            # Hooks run in a backward pass, where torch calls no function mode.
            with mock.patch.object(torch.autograd, "grad", partial(calls.see, torch.autograd.grad)):
                yield watch
        for place in watch.changed:
            self.num_copied += keeps and place not in self.changed
            self.changed[place] = None

    def _learn(self, watch: _Watch, before: _Snapshot, *, is_divided: bool) -> None:
        if watch.whole_parameters and self.layout.fsdp_mesh:
            raise WorkloadError(
                f"the forward pass changes the parameter {self._name(next(iter(watch.whole_parameters)))}, and FSDP "
                "frees the copy that is changed: change it in on_step, or use plans without FSDP, such as ZeRO-1"
            )
        if watch.keeps_graph and self.layout.fsdp_mesh:
            raise WorkloadError(
                "the loss goes backward through the same graph again (create_graph or retain_graph), and FSDP frees "
                "parameters after the first time: use plans without FSDP, such as ZeRO-1"
            )
        replaced = [place for place in before.replaced() if watch.is_of_batch(_get(place))]
        of_samples = dict.fromkeys((*watch.of_batch, *replaced))
        other = next((place for place in of_samples if not _is_statistic(place)), None)
        if is_divided and other is not None:
            raise WorkloadError(
                f"the forward pass changes {self._name(other)} by the samples that it gets, so it would depend on how "
                "ranks and micro-batches divide a batch: use plans of one rank and one micro-batch, or change it in "
                "on_step"
            )
        self.attributes = {
            (module, name): None
            for module, name in before.changed_attributes()
            if not (isinstance(value := module.__dict__[name], Tensor) and watch.is_of_batch(value))
        }
        self.statistics = {place: None for place in of_samples if _get(place).is_floating_point()}

    def _forget_step(self) -> None:
        self._begin, self._num_passes, self._sums = None, 0, {}

    def _name(self, place: Place) -> str:
        module, name = place
        path = next((path for path, each in self.model.named_modules() if each is module), "")
        return f"{path}.{name}" if path else name

    def _groups(self) -> list[dist.ProcessGroup]:
        """Process groups over which the ranks of a gang divide a batch."""
        if self.mesh is None:
            return []
        divides = [MESH[axis].name for axis in (*SHARES, "spatial")]
        return [self.mesh.get_group(name) for name in self.mesh.mesh_dim_names or () if name in divides]


class RepeatedPasses:
    """Passes that repeat the first of them: each begins from the state before the first, and changes nothing.

    Only the first one changes the state. Each uses the parameters that the first one used, which may have been those of
    a ``functional_call``.
    """

    def __init__(self, state: ForwardState, module: nn.Module) -> None:
        self._state, self._module = state, module
        self._before: _Snapshot | None = None
        self._parameters: list[dict[str, nn.Parameter | None]] = []

    def context(self, inner: AbstractContextManager[Any]) -> AbstractContextManager[None]:
        """A context for any number of passes, one after another; each is also inside of ``inner``."""
        return _Reentered(self._one_pass, inner)

    @contextlib.contextmanager
    def _one_pass(self) -> Iterator[None]:
        state, now = self._state, self._state.snapshot(self._module)
        parameters = [dict(each._parameters) for each in self._module.modules()]
        if self._before is not None:
            self._before.restore()
            self._use(self._parameters)
            try:
                yield
            finally:
                self._use(parameters)
                now.restore()
            return
        self._before, self._parameters = now, parameters
        if state._is_known:
            yield
            return
        with state._watching(self._module, None, keeps=True) as watch:
            yield
        now.add(watch.changed)

    def _use(self, parameters: Sequence[dict[str, nn.Parameter | None]]) -> None:
        for module, own in zip(self._module.modules(), parameters, strict=True):
            module._parameters.update(own)


class _Reentered(AbstractContextManager[None]):
    """``inner`` inside of a new ``outer`` each time: gradients of gradients compute a block more than twice."""

    def __init__(self, outer: Callable[[], AbstractContextManager[None]], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner
        self._entered: list[ExitStack] = []

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._outer())
            stack.enter_context(self._inner)
            self._entered.append(stack.pop_all())

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


@dataclass(slots=True)
class _Snapshot:
    """The state of some modules: attributes and buffers as objects, and copies of the tensors that change in place."""

    objects: Sequence[tuple[nn.Module, dict[str, Any], dict[str, Tensor | None]]]
    values: dict[Place, Tensor]
    is_state: Callable[[Any], bool]

    def add(self, values: Mapping[Place, Tensor | None]) -> None:
        """Add copies of tensors that were made later, but before the tensors changed."""
        for place, value in values.items():
            if value is not None:
                self.values.setdefault(place, value)

    def replaced(self) -> Iterator[Place]:
        """Buffers that are other tensors now."""
        for module, _, buffers in self.objects:
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer is not buffers.get(name):
                    yield module, name

    def changed_attributes(self) -> Iterator[Place]:
        """Attributes that have other values now."""
        for module, attributes, _ in self.objects:
            for name, value in _attributes(module, self.is_state).items():
                if name not in attributes or attributes[name] is not value:
                    yield module, name

    def restore(self) -> None:
        """Bring this state back. Autograd does not see it: tensors that it keeps for a backward pass stay valid."""
        for module, attributes, buffers in self.objects:
            for name in _attributes(module, self.is_state).keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            module._buffers.update(buffers)
        for place, value in self.values.items():
            _get(place).data.copy_(value)


def _attributes(module: nn.Module, is_state: Callable[[Any], bool]) -> dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if name not in _OWN and is_state(value)}


def _results_in(model: nn.Module) -> dict[int, weakref.ref[Tensor]]:
    """Tensors with a graph that modules have as attributes, by their ids."""
    values = (value for module in model.modules() for value in module.__dict__.values())
    return {id(value): weakref.ref(value) for value in values if isinstance(value, Tensor) and value.requires_grad}


def _may_be_state(value: Any) -> bool:
    """Whether a later pass may depend on an attribute: on numbers, text, and tensors that are no results of a pass."""
    if isinstance(value, Tensor):
        return not value.requires_grad
    return value is None or isinstance(value, bool | int | float | complex | str)


def _get(place: Place) -> Tensor:
    """The tensor, or a rank's part of it."""
    module, name = place
    tensors = (tensors.get(name) for tensors in (module._buffers, module._parameters, module.__dict__))
    return _local(next(tensor for tensor in tensors if tensor is not None))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _is_statistic(place: Place) -> bool:
    return isinstance(place[0], nn.modules.batchnorm._NormBase) or place[1] in _STATISTICS


def _is_divided(layout: Layout) -> bool:
    return layout.spatial > 1 or any(getattr(layout, axis) > 1 for axis in SHARES)


def _mean_over_ranks(values: Sequence[Tensor], groups: Sequence[dist.ProcessGroup]) -> list[Tensor]:
    """The mean of each tensor over the ranks of the groups; tensors of one type travel together."""
    means = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values) if groups else ():
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        flat = torch.cat([values[place].reshape(-1) for place in places])
        for group in groups:
            dist.all_reduce(flat, group=group)
            flat /= group.size()
        for place, part in zip(places, torch.split(flat, [values[place].numel() for place in places]), strict=True):
            means[place] = part.view_as(values[place])
    return means


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees which tensors of a module forward passes change in place, and follows what is computed from samples or drawn
    at random."""

    def __init__(self, module: nn.Module, batch: Any, *, keeps: bool) -> None:
        """``keeps``: keep the copies, otherwise only see what changes."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules, self._keeps = list(module.modules()), keeps
        self.changed: dict[Place, Tensor | None] = {}  # with the copy from before
        self.of_batch: dict[Place, None] = {}
        self.keeps_graph = False
        self.whole_parameters: dict[Place, None] = {}  # those that changed while they were no DTensors
        self._from_batch: dict[int, weakref.ref[Any]] = {}
        self._mark(tree_leaves(batch))

    def is_of_batch(self, tensor: Tensor) -> bool:
        """Whether the tensor was computed from samples."""
        if tensor.layout is not torch.strided:
            return False
        known = self._from_batch.get(_local(tensor).untyped_storage()._cdata)
        return known is not None and known() is not None

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
        written = _written(func, args, kwargs)
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_of_batch = torch.Tag.nondeterministic_seeded in func.tags or any(map(self.is_of_batch, leaves))
        self.note(written, is_of_batch)
        out = func(*args, **kwargs)
        if is_of_batch:
            self._mark([*tree_leaves(out), *written])
        return out

    def note(self, written: Sequence[Tensor], is_of_batch: bool) -> None:
        """Note that these tensors are about to change."""
        for place in [place for tensor in written for place in self._places(tensor)]:
            module, name = place
            if place not in self.changed:
                self.changed[place] = _get(place).data.clone() if self._keeps else None
            if is_of_batch:
                self.of_batch[place] = None
            if name in module._parameters and not isinstance(module._parameters[name], DTensor):
                self.whole_parameters[place] = None

    def _mark(self, leaves: Iterable[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                storage = _local(leaf).untyped_storage()
                self._from_batch[storage._cdata] = weakref.ref(storage)

    def _places(self, tensor: Tensor) -> Iterator[Place]:
        """Where the modules have a tensor with the memory of this one."""
        address = tensor.untyped_storage()._cdata
        for module in self._modules:
            for name, own in (*module._buffers.items(), *module._parameters.items(), *module.__dict__.items()):
                if not isinstance(own, Tensor) or own.layout is not torch.strided:
                    continue
                if _local(own).untyped_storage()._cdata == address:
                    yield module, name


FREED = (
    "the backward pass uses parameters that FSDP has freed, because it did not see where the pass through a block "
    "begins: return tensors from blocks in tuples, dictionaries or dataclasses, do not change views of them in place, "
    "or use plans without FSDP, such as ZeRO-1"
)


def _expect_memory(tree: Any) -> None:
    """Raise ``WorkloadError`` for a tensor whose memory FSDP has freed, before torch fails without words."""
    for leaf in tree_leaves(tree):
        is_dense = isinstance(leaf, Tensor) and leaf.layout is torch.strided
        if is_dense and leaf.numel() and not leaf.untyped_storage().nbytes():
            raise WorkloadError(FREED)


class _WatchCalls(TorchFunctionMode):
    """Sees what is no operation: ``tensor.data = …``, and backward passes that make a graph of their own."""

    def __init__(self, watch: _Watch) -> None:
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
        return func(*args, **kwargs)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that the operation changes in place."""
    if func in _UNSAID:
        trains = args[5] if len(args) > 5 else kwargs.get("training", False)
        found: list[Any] = [args[place] for place in _UNSAID[func] if place < len(args)] if trains else []
    elif func._schema.is_mutable:
        found = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    else:
        return []
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor) and leaf.layout is torch.strided]
