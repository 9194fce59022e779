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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from estimators.axes import MESH, SHARES
from estimators.model import Layout
from workloads.parallel.exchanging.gloo import reduce
from workloads.parallel.forward_state.snapshot import (
    NAME,
    ModuleSnapshot,
    Place,
    attributes_of,
    has_fractions,
    hooks_of,
    may_be_state,
    tensor_at,
)
from workloads.parallel.forward_state.watch import TWICE, Watch, WatchCalls
from workloads.parallel.traits import note
from workloads.refusals import WITHOUT_FSDP, WorkloadError

_STATISTICS = ("running_mean", "running_var")


def forward_state(model: nn.Module) -> ForwardState:
    """The forward state of ``model``."""
    state = model.__dict__.get(NAME)
    return state if isinstance(state, ForwardState) else attach_state(model, Layout(), None)


def attach_state(model: nn.Module, layout: Layout, mesh: DeviceMesh | None) -> ForwardState:
    """A new forward state for ``model``, which is divided by ``layout`` on ``mesh``."""
    state = model.__dict__[NAME] = ForwardState(model, layout, mesh)
    return state


@dataclass(slots=True, eq=False)
class ForwardState:
    """The state that forward passes of a model change.

    As far as is known, ``changed`` are the tensors that they change in place, ``statistics`` the buffers that they
    compute from samples, and ``attributes`` those of modules that they change and do not compute from samples.
    ``num_copied`` grows when a pass finds a tensor that must be copied before each pass from then on. It ``is_known``
    what passes change once the first one was watched. ``weight`` is that of this rank's samples in a mean over ranks
    (see ``Plan.weight_of``).
    """

    model: nn.Module
    layout: Layout
    mesh: DeviceMesh | None
    changed: dict[Place, None] = field(default_factory=dict)
    statistics: dict[Place, None] = field(default_factory=dict)
    attributes: dict[Place, None] = field(default_factory=dict)
    num_copied: int = 0
    is_known: bool = False
    weight: float = 1.0
    _begin: ModuleSnapshot | None = None
    _sums: dict[Place, Tensor] = field(default_factory=dict)
    _num_passes: int = 0
    _results: dict[int, weakref.ref[Tensor]] = field(default_factory=dict)  # of earlier passes, in attributes
    _phases: set[str] = field(default_factory=set)  # those whose first pass was watched

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The passes of one of several phases of a step: the first of each is watched, as it may change other state."""
        if name in self._phases:
            yield
            return
        attributes, statistics, self.is_known = self.attributes, self.statistics, False
        yield
        self._phases.add(name)
        self.attributes, self.statistics = attributes | self.attributes, statistics | self.statistics

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
            if self.is_known:
                yield
            else:
                before = begin or self.snapshot()
                with self.watching(self.model, batch, keeps=num > 1) as watch:
                    yield
                before.add(watch.changed)
                self.is_known = True
                self._learn(watch, before, replace(self.layout, accumulate=self.layout.accumulate or num > 1))
        except BaseException:
            self._forget_step()
            raise
        if num > 1:
            for place in self.statistics:
                value = tensor_at(place).detach()
                self._sums[place] = self._sums[place] + value if place in self._sums else value.clone()

    def as_micro_batch(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` of a stage of a pipeline, each of whose calls in training is the pass of one micro-batch."""
        watched: set[int] = set()

        def call(*inputs: Any, **options: Any) -> Any:
            if not self.model.training:
                return forward(*inputs, **options)
            place: Any = self.model.place
            stage: int = place.stages[0].index
            self.is_known &= stage in watched  # the first pass of each stage is watched
            watched.add(stage)
            with self.micro_batch((inputs, options), self.layout.num_micro_batches):
                return forward(*inputs, **options)

        return call

    def end_step(self) -> None:
        """Give every statistic the mean of what the micro-batches of all ranks have made of it; all ranks call it."""
        groups, num = self._groups(), self._num_passes
        values = [self._sums[place] / num if place in self._sums else tensor_at(place) for place in self.statistics]
        self._forget_step()
        if self.weight != 1:
            values = [value * self.weight for value in values]
        if values and (num > 1 or groups):
            for place, value in zip(self.statistics, _mean_over_ranks(values, groups), strict=True):
                tensor_at(place).data.copy_(value)

    @contextlib.contextmanager
    def unchanged(self, batch: Any) -> Iterator[None]:
        """Undo at the end what passes through the model have changed."""
        before = self.snapshot()
        if self.is_known:
            yield
        else:
            with self.watching(self.model, batch, keeps=True) as watch:
                yield
            before.add(watch.changed)
        before.restore()

    def snapshot(self, module: nn.Module | None = None) -> ModuleSnapshot:
        """The state now: of the whole model, or during a pass of one module with its submodules.

        The latter includes what earlier calls of the same pass have left for later ones, with its graph.
        """
        modules = list((module or self.model).modules())
        inside = set(modules) if module is not None else None
        values = {
            place: tensor_at(place).data.clone() for place in self.changed if inside is None or place[0] in inside
        }
        is_state = may_be_state if module is None else self._is_of_pass
        objects = [(module, attributes_of(module, is_state), dict(module._buffers)) for module in modules]
        return ModuleSnapshot(objects, values, is_state, () if inside is not None else hooks_of(self.model))

    def _is_of_pass(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or not value.requires_grad:
            return may_be_state(value)
        result = self._results.get(id(value))
        return result is None or result() is not value

    @contextlib.contextmanager
    def watching(self, module: nn.Module, batch: Any, *, keeps: bool) -> Iterator[Watch]:
        """Watch a pass through ``module``; with ``keeps`` there are copies of what it changes in place."""
        with Watch(module, batch, keeps=keeps, frees=bool(self.layout.fsdp_mesh)) as watch, WatchCalls(watch) as calls:
            # Hooks run in a backward pass, where torch calls no function mode.
            with mock.patch.object(torch.autograd, "grad", partial(calls.see, torch.autograd.grad)):
                yield watch
        for place in watch.changed:
            self.num_copied += keeps and place not in self.changed
            self.changed[place] = None

    def _learn(self, watch: Watch, before: ModuleSnapshot, layout: Layout) -> None:
        if watch.whole_parameters and self.layout.fsdp_mesh:
            raise WorkloadError(
                f"the forward pass changes the parameter {self._name(next(iter(watch.whole_parameters)))}, and FSDP "
                f"frees the copy that is changed: change it in on_step, or {WITHOUT_FSDP}"
            )
        replaced = [place for place in before.replaced() if watch.is_of_batch(tensor_at(place))]
        of_samples = dict.fromkeys((*watch.of_batch, *replaced))
        other = next((place for place in of_samples if not _is_statistic(place)), None)
        self.attributes = {
            (module, name): None
            for module, name in before.changed_attributes()
            if not (isinstance(value := module.__dict__[name], Tensor) and watch.is_of_batch(value))
        }
        self.statistics = {place: None for place in of_samples if has_fractions(tensor_at(place))}
        changed = next(iter((*self.changed, *self.statistics, *self.attributes)), None)
        note(
            self.model,
            layout,
            repeats_backward=TWICE if watch.keeps_graph else "",
            keeps_samples=f"the forward pass changes {self._name(other)} by the samples that it gets" if other else "",
            changes_state=f"the forward pass changes {self._name(changed)}" if changed else "",
        )

    def _forget_step(self) -> None:
        self._begin, self._num_passes, self._sums = None, 0, {}

    def _name(self, place: Place) -> str:
        module, name = place
        path = next((path for path, part in self.model.named_modules() if part is module), "")
        return f"{path}.{name}" if path else name

    def _groups(self) -> list[dist.ProcessGroup]:
        """Process groups over which the ranks of a gang divide a batch."""
        if self.mesh is None:
            return []
        divides = [MESH[axis].name for axis in (*SHARES, "spatial")]
        return [self.mesh.get_group(name) for name in self.mesh.mesh_dim_names or () if name in divides]


def _results_in(model: nn.Module) -> dict[int, weakref.ref[Tensor]]:
    """Tensors with a graph that modules have as attributes, by their ids."""
    values = (value for module in model.modules() for value in module.__dict__.values())
    return {id(value): weakref.ref(value) for value in values if isinstance(value, Tensor) and value.requires_grad}


def _is_statistic(place: Place) -> bool:
    return isinstance(place[0], nn.modules.batchnorm._NormBase) or place[1] in _STATISTICS


def _mean_over_ranks(values: Sequence[Tensor], groups: Sequence[dist.ProcessGroup]) -> list[Tensor]:
    """The mean of each tensor over the ranks of the groups; tensors of one type travel together."""
    means = list(values)
    for dtype in dict.fromkeys(value.dtype for value in values) if groups else ():
        places = [place for place, value in enumerate(values) if value.dtype == dtype]
        flat = torch.cat([values[place].reshape(-1) for place in places])
        for group in groups:
            reduce(flat, group)
            flat /= group.size()
        for place, part in zip(places, torch.split(flat, [values[place].numel() for place in places]), strict=True):
            means[place] = part.view_as(values[place])
    return means
