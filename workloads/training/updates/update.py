"""Makes a candidate's optimizer with all that happens around its steps: loss scaling, clipping, averages, schedules.

Ranks and the tracer call it. All of it hangs on the model (``updates_of``), so that the code of a step need not know
what a candidate asks for. Hooks of the optimizer do the work, because gradients of ZeRO-1's replicas are reduced in its
step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Adafactor, Optimizer, Rprop

from estimators.constraints import UNCONSTRAINED
from estimators.model import Layout
from scamp.workload.split_sgd import SplitSGD
from workloads.options import TrainingOptions
from workloads.parallel.apply import spread_optimizer
from workloads.parallel.constraints import with_reduction
from workloads.parallel.optimizers.alone import updates_each_alone
from workloads.parallel.traits import note
from workloads.protocol import Phase, Workload, defines
from workloads.refusals import WorkloadError, expect_optimizers
from workloads.training.data.outputs import has_summary
from workloads.training.updates.adascale import AdaScale
from workloads.training.updates.averages import Averages
from workloads.training.updates.loss_scale import LossScale
from workloads.training.updates.norms import clip, global_norm
from workloads.training.updates.phases import (
    JointOptimizer,
    PhasedOptimizer,
    expect_own_parameters,
    optimizer_of,
    phases_of,
)
from workloads.training.updates.precision import options_of
from workloads.training.updates.schedules import Schedules

_NAME, _OWN = "_scamp_updates", "_scamp_parameters"


@dataclass(slots=True, eq=False)
class Updates:
    """Everything that a candidate's optimizer does besides its steps. ``step`` is the one that runs, counted from 0.

    ``stages`` are the ranks of a pipeline that hold different parameters, ``replicas`` those with gradients of their
    own, which Adasum combines. With ``phases``, ``phased`` is their common optimizer, and ``losses`` are those of the
    present step, by the names of the phases that have had a turn. ``loss_is_sum`` says whether the loss of the last
    step was one, None before the first step; ``world`` are the ranks that add up such sums, if they are several, and
    ``num_shares`` those that divide a batch. Losses are computed in ``low_types`` of 16 bits, as far as is known. With
    ``has_every_phase`` all phases have a turn in every step, as in a trace.
    """

    options: TrainingOptions
    stages: dist.ProcessGroup | None = None
    replicas: dist.ProcessGroup | None = None
    world: dist.ProcessGroup | None = None
    averages: Averages | None = None
    ada_scale: AdaScale | None = None
    loss_scale: LossScale | None = None
    schedules: list[Schedules] = field(default_factory=list)
    phases: Sequence[Phase] = ()
    phased: PhasedOptimizer | None = None
    losses: dict[str, Tensor] = field(default_factory=dict)
    loss_is_sum: bool | None = None
    num_shares: int = 1
    low_types: set[torch.dtype] = field(default_factory=set)
    step: int = 0
    has_every_phase: bool = False

    @property
    def turns(self) -> list[int]:
        """Numbers of the phases that have a turn in this step."""
        return [
            number
            for number, phase in enumerate(self.phases)
            if self.has_every_phase or phase.turns_before(self.step + 1) > phase.turns_before(self.step)
        ]

    def loss_factor(self, num_micro_batches: int) -> float:
        """The number by which the loss of each of this many micro-batches is multiplied before its backward pass."""
        if self.loss_scale is None:
            return 1.0
        self.loss_scale.num_micro_batches = num_micro_batches
        return self.loss_scale.factor

    def part(self, num_micro_batches: int) -> float:
        """The part of a batch that each of this many micro-batches is, by which its loss is multiplied, if it must be.

        A workload that computes in fp16 itself scales its loss for a whole batch: each sample of a part has larger
        gradients, which would overflow, and other updates would be skipped.
        """
        scales_itself = self.loss_scale is None and torch.float16 in self.low_types
        return 1 / (num_micro_batches * self.num_shares) if scales_itself else 1.0

    @property
    def scale_of_sums(self) -> float:
        """The number by which a loss that is a sum is multiplied before its backward pass, under every plan."""
        return self.loss_scale.scale_of_sums if self.loss_scale is not None else 1.0

    def averaged(self, model: nn.Module) -> AbstractContextManager[None]:
        """The context in which the model has its averaged weights, if it averages any."""
        return self.averages.used(model) if self.averages is not None else nullcontext()

    def end_step(self, num: int = 1) -> None:
        """Call it after each step, which counts as ``num``: the schedulers of optimizers that had a turn go on."""
        for number, schedules in enumerate(self.schedules):
            if not self.phases or number in self.turns:
                for _ in range(num):
                    schedules.step()

    def after_evaluation(self, workload: Workload, metrics: Mapping[str, float]) -> None:
        """Call the workload's ``on_evaluate``, which may step schedulers."""
        with ExitStack() as stack:
            for schedules in self.schedules:
                stack.enter_context(schedules.changing())
            workload.on_evaluate(metrics)

    def forget(self) -> None:
        """Let go of the optimizers, whose hooks hold this: a trace makes several, and collects no garbage meanwhile."""
        self.schedules.clear()
        self.phased = None

    def state(self) -> dict[str, Any]:
        """All of it that a resumed run needs and that is not a tensor, as JSON holds it."""
        scale = [self.loss_scale.scale, self.loss_scale.num_good] if self.loss_scale is not None else None
        scaling = self.ada_scale.state() if self.ada_scale is not None else None
        schedulers = [schedules.state() for schedules in self.schedules]
        return {"schedulers": schedulers, "loss_scale": scale, "adascale": scaling}

    def load(self, state: dict[str, Any], *, with_options: bool) -> None:
        """Continue from what ``state`` returned; without the options of the optimizer, schedulers stay new."""
        if self.loss_scale is not None and state.get("loss_scale"):
            self.loss_scale.scale, self.loss_scale.num_good = state["loss_scale"]
        if self.ada_scale is not None and state.get("adascale"):
            self.ada_scale.load(state["adascale"])
        stored = state.get("schedulers", [])
        for number, schedules in enumerate(self.schedules if with_options else ()):
            schedules.load(stored[number] if number < len(stored) else [])

    def skip(self, num_steps: int) -> None:
        """Have new schedulers go ahead, as if ``num_steps`` updates had been made with the optimizer's own options."""
        for number, schedules in enumerate(self.schedules):
            schedules.skip(self.phases[number].turns_before(num_steps) if self.phases else num_steps)

    def attach_to(self, model: nn.Module, optimizer: Optimizer, phase: Phase | None = None) -> None:
        """Have the new ``optimizer``, which is that of a ``phase`` or of all steps, do all this but schedules."""
        clip_norm = (phase and phase.clip_norm) or self.options.clip_norm
        if self.loss_scale is not None:
            first = optimizer.register_step_pre_hook(self._unscale)
            hooks = optimizer._optimizer_step_pre_hooks
            cast(OrderedDict[int, Any], hooks).move_to_end(first.id, last=False)  # before the hooks of users
        if clip_norm is not None or self.averages is not None or self.ada_scale is not None:
            optimizer.register_step_pre_hook(partial(self._before, clip_norm))
        if self.averages is not None or self.ada_scale is not None:
            optimizer.register_step_post_hook(partial(self._after, model, phase))

    def _unscale(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        assert self.loss_scale is not None
        self.loss_scale.unscale(_parameters(optimizer), self.replicas or self.stages)  # all skip the same updates

    def _before(self, clip_norm: float | None, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = list(_parameters(optimizer))
        if self.averages is not None:
            self.averages.begin(parameters)
        if self.ada_scale is not None:
            self.ada_scale.measure(parameters, self.stages)
            self.ada_scale.raise_rates(optimizer)
        if clip_norm is not None:
            clip(parameters, global_norm(parameters, self.stages), clip_norm)

    def _after(self, model: nn.Module, phase: Phase | None, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.ada_scale is not None:
            self.ada_scale.restore_rates(optimizer)
        if self.averages is not None:
            num_before, num_until_start = (
                phase.turns_before(step) if phase is not None else step for step in (self.step, self.averages.start)
            )
            self.averages.update(_parameters(optimizer), num_before, num_until_start)
            if phase is None or phase in (self.phases[number] for number in self.turns[-1:]):
                self.averages.update_buffers(model, self.step)


def make_optimizer(
    workload: Workload, model: nn.Module, layout: Layout, mesh: DeviceMesh | None, steps: int
) -> Optimizer:
    """The optimizer of ``model``, which is spread by ``layout``, with all that the candidate asks for.

    ``steps`` is the length of the training. Raises ``WrongResult`` or ``WorkloadError`` for what cannot be used.
    """
    workload.trial = replace(workload.trial, steps=steps)
    updates_of(model).forget()
    options = options_of(workload)
    updates = model.__dict__[_NAME] = _new_updates(options, layout, mesh)
    if (base_batch := scaled_from(workload)) is not None:
        updates.ada_scale = AdaScale(base_batch)
    if updates.averages is not None:
        updates.averages.begin_buffers(model)

    def spread(optimizer: Optimizer, turns: int = steps) -> Optimizer:
        _expect_parameters_of(model, optimizer)
        _expect_no_sparse_momentum(model, optimizer)
        if options.reduce == "adasum" and isinstance(optimizer, SplitSGD):
            raise WorkloadError(
                "SplitSGD keeps the lower halves of the weights, and Adasum's replicas combine the upper ones alone: "
                "use reduce: mean, or torch.optim.SGD with weights in fp32"
            )
        note(model, layout, **_traits_of(optimizer))
        schedules = Schedules(workload, optimizer, turns)
        updates.schedules.append(schedules)
        rank_optimizer = spread_optimizer(optimizer, layout, mesh)
        schedules.follow(optimizer, rank_optimizer)
        return rank_optimizer

    note(
        model,
        layout,
        summarizes="metrics of the whole set need whole samples" if has_summary(workload) else "",
        illustrates="illustrate calls the whole model with whole samples" if defines(workload, "illustrate") else "",
    )
    updates.phases = phases_of(workload)
    if not updates.phases:
        return _of_one_loss(workload, model, layout, updates, spread)
    note(model, layout, has_phases="the workload trains in phases")
    if updates.ada_scale is not None:
        raise WorkloadError(
            "the workload trains in phases, whose gradients are of several losses, and AdaScale knows one learning "
            "rate: use scale_lr: none"
        )
    optimizers = [optimizer_of(phase, model) for phase in updates.phases]
    for phase, optimizer in zip(updates.phases, optimizers, strict=True):
        updates.attach_to(model, optimizer, phase)
    spread_optimizers = [
        spread(optimizer, phase.turns_before(steps))
        for phase, optimizer in zip(updates.phases, optimizers, strict=True)
    ]
    updates.phased = PhasedOptimizer(updates.phases, spread_optimizers, model)
    return updates.phased


def _of_one_loss(
    workload: Workload, model: nn.Module, layout: Layout, updates: Updates, spread: Callable[[Optimizer], Optimizer]
) -> Optimizer:
    """The optimizer of a workload that trains one loss, or all of its optimizers as one."""
    first, *others = expect_optimizers(workload.optimizer(model), workload.optimizer)
    if not others:
        updates.attach_to(model, first)
        return spread(first)
    note(model, layout, has_several_optimizers="the workload has several optimizers")
    optimizers = [first, *others]
    functions = [(f"optimizer {number}", workload.optimizer) for number in range(1, len(optimizers) + 1)]
    expect_own_parameters(functions, optimizers, model)
    joint = JointOptimizer([spread(optimizer) for optimizer in optimizers])
    updates.attach_to(model, joint)
    return joint


def _traits_of(optimizer: Optimizer) -> dict[str, str]:
    """Why ranks with a part of the parameters, or of each, cannot update them."""
    kind, why = type(optimizer).__name__, dict[str, str]()
    is_of_torch = f"{type(optimizer).__module__}.".startswith("torch.optim.")  # itself or a module of it
    if not is_of_torch and not updates_each_alone(optimizer):
        why["has_own_optimizer"] = f"{kind}, which is none of torch's optimizers, may need all parameters for an update"
    if isinstance(optimizer, Adafactor | Rprop):  # norms or masks of whole parameters, which DTensor cannot change
        why["updates_whole_parameters"] = f"torch's {kind} updates whole parameters"
    return why


def _expect_parameters_of(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ``WorkloadError`` if ``optimizer`` has parameters other than those that ``model`` has or has had.

    A trace takes blocks out of the model, and then asks again.
    """
    ids = model.__dict__.setdefault(_OWN, set())
    ids.update(map(id, model.parameters()))
    others = [parameter for parameter in _parameters(optimizer) if id(parameter) not in ids]
    if others:
        shapes = ", ".join(str(list(parameter.shape)) for parameter in others[:3]) + ", …" * (len(others) > 3)
        raise WorkloadError(
            f"the optimizer trains {len(others)} parameters of shape {shapes} that {type(model).__name__} does not "
            "have: pass parameters of the model that optimizer gets, and make others a part of it in build_model; "
            "what is outside is not sharded, not averaged over ranks, and not in checkpoints"
        )


def _expect_no_sparse_momentum(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ``WorkloadError`` for a momentum of sparse gradients: it has more rows with each step, and no checkpoint
    can hold it."""
    if not isinstance(optimizer, torch.optim.SGD):
        return
    with_momentum = {
        parameter for group in optimizer.param_groups if group["momentum"] for parameter in group["params"]
    }
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight in with_momentum:
            raise WorkloadError(
                f"the gradients of {name or type(module).__name__} are sparse, and the momentum that torch.optim.SGD "
                "keeps of them grows with every step: use momentum=0, torch.optim.SparseAdam or sparse=False"
            )


def scaled_from(workload: Workload) -> int | None:
    """The batch that the learning rate and the steps of the candidate are meant for, if AdaScale scales both."""
    options = options_of(workload)
    return (options.base_batch or workload.default_batch) if options.scale_lr == "adascale" else None


def expect_reduction(workload: Workload, layout: Layout) -> None:
    """Raise ``WorkloadError`` for plans that do not combine gradients or updates as the candidate asks."""
    constraints = with_reduction(UNCONSTRAINED, options_of(workload))
    if not constraints.allow(layout):
        raise WorkloadError(f"{constraints.words or 'the candidate asks for reduce: mean'}, and the plan is {layout}")


def updates_of(model: nn.Module) -> Updates:
    """The updates that ``make_optimizer`` has made for ``model`` besides the optimizer."""
    updates = model.__dict__.get(_NAME)
    return updates if isinstance(updates, Updates) else Updates(TrainingOptions())


def scale_steps(model: nn.Module, batch: int) -> None:
    """Scale from the base batch to ``batch`` samples a step, if AdaScale does so. Raises ``WorkloadError``."""
    if (scaling := updates_of(model).ada_scale) is None:
        return
    scaling.scale = batch / scaling.base_batch
    if scaling.scale < 1:
        raise WorkloadError(
            f"AdaScale takes batches of at least base_batch, which is {scaling.base_batch}, and the plan has {batch}"
        )


def averages_of(model: nn.Module) -> dict[Tensor, Tensor]:
    """The average of each parameter and buffer that has one."""
    averages = updates_of(model).averages
    return averages.pairs(model) if averages is not None else {}


def previous_gradients_of(model: nn.Module) -> dict[Tensor, Tensor]:
    """The gradient of each parameter in the step before, where AdaScale compares it with the present one."""
    scaling = updates_of(model).ada_scale
    return scaling.previous if scaling is not None else {}


def kept_of(model: nn.Module) -> dict[Tensor, list[Tensor]]:
    """Tensors like a parameter or buffer that are kept for it between steps, besides the states of the optimizer."""
    kept_tensors: dict[Tensor, list[Tensor]] = {}
    for state in (averages_of(model), previous_gradients_of(model)):
        for parameter, tensor in state.items():
            kept_tensors.setdefault(parameter, []).append(tensor)
    return kept_tensors


def _new_updates(options: TrainingOptions, layout: Layout, mesh: DeviceMesh | None) -> Updates:
    shares = layout.spatial * layout.num_shares
    averages = None
    if options.ema_decay is not None or options.swa_start is not None:
        averages = Averages(options.ema_decay, options.swa_start or 0, options.ema_warmup, options.average_buffers)
    return Updates(
        options,
        mesh.get_group("pp") if mesh is not None and layout.pp > 1 else None,
        mesh.get_group("replicate") if mesh is not None and layout.adasum else None,
        dist.group.WORLD if mesh is not None and not layout.adasum else None,
        averages=averages,
        loss_scale=LossScale(shares) if options.precision == "fp16" else None,
        num_shares=shares,
    )


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
