"""Gives a LightningModule what its Trainer would: numbers, and schedulers that are stepped as it configures them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workloads.refusals import WorkloadError


@dataclass(slots=True)
class Numbers:
    """Answers what a module asks ``self.trainer`` about the training."""

    estimated_stepping_batches: int
    num_training_batches: int
    world_size: int = 1
    global_rank: int = 0
    global_step: int = 0
    logger: None = None
    loggers: tuple[()] = ()
    sanity_checking: bool = False
    progress_bar_callback: None = None  # self.print asks for it

    @property
    def max_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.estimated_stepping_batches

    @property
    def max_epochs(self) -> int:
        """Epochs of the whole training, the last of which may end early."""
        return -(-self.max_steps // self.num_training_batches)

    @property
    def current_epoch(self) -> int:
        """The epoch of the present step, counted from 0."""
        return self.global_step // self.num_training_batches

    @property
    def batch_idx(self) -> int:
        """The number of the present step in its epoch."""
        return self.global_step % self.num_training_batches

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the first rank."""
        return self.global_rank == 0

    def __getattr__(self, name: str) -> Any:
        have = ", ".join(name for name in dir(type(self)) if not name.startswith("_"))
        raise AttributeError(
            f"self.trainer.{name} is not known here, because ScaMP trains without a Trainer; what is known is {have}. "
            "Write self.optimizers() and self.lr_schedulers() for these, pass other values as parameters of the study, "
            "and use metrics in on_evaluate of the workload"
        )


@dataclass(frozen=True, slots=True)
class LightningSchedule:
    """A scheduler as ``configure_optimizers`` returns it: stepped after each ``frequency`` steps or epochs.

    One that waits for a metric is stepped after each evaluation, with the metric ``monitor``.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str = ""
    strict: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.scheduler, LRScheduler):
            raise WorkloadError(
                f"configure_optimizers returns a {type(self.scheduler).__name__} as lr_scheduler: return one of "
                "torch.optim.lr_scheduler, or a dictionary with it as scheduler"
            )
        if self.interval not in ("step", "epoch"):
            raise WorkloadError(f"the interval of a scheduler is {self.interval!r}: write 'step' or 'epoch'")
        if isinstance(self.frequency, bool) or not isinstance(self.frequency, int) or self.frequency < 1:
            raise WorkloadError(f"the frequency of a scheduler is {self.frequency!r}: write a whole number from 1")
        if self.waits and not self.monitor:
            raise WorkloadError("ReduceLROnPlateau needs a monitor: name the metric that it waits for")
        if self.waits and (self.interval, self.frequency) != ("epoch", 1):
            raise WorkloadError(
                "ReduceLROnPlateau is stepped after each evaluation: leave out interval and frequency, and set the "
                "study's report_every"
            )

    @property
    def waits(self) -> bool:
        """Whether the scheduler waits for a metric."""
        return isinstance(self.scheduler, ReduceLROnPlateau)


class Configured:
    """The only optimizer of a module and its schedulers, which can be made anew for a training that begins again."""

    def __init__(self, network: nn.Module) -> None:
        """Calls ``configure_optimizers``. Raises ``WorkloadError`` for what cannot be trained."""
        name = type(network).__name__
        optimizers, schedules = _parts(network.configure_optimizers())  # type: ignore[operator]
        if len(optimizers) != 1:
            raise WorkloadError(
                f"{name} has {len(optimizers)} optimizers: write a Workload with phases() instead; "
                'see "Several losses and optimizers" in docs/updates.md'
            )
        self.optimizer: Optimizer = optimizers[0]
        self.schedules = [
            LightningSchedule(**schedule) if isinstance(schedule, Mapping) else LightningSchedule(schedule)
            for schedule in schedules
        ]
        self._network = network
        self._new = deepcopy(self.schedules, self._shared(self.optimizer))
        self._options = [_options(group) for group in self.optimizer.param_groups]

    def begin(self, optimizer: Optimizer, steps_per_epoch: int) -> list[LRScheduler]:
        """New schedulers of ``optimizer``, which gets its first options again, to be stepped after every step."""
        for group, options in zip(optimizer.param_groups, self._options, strict=False):
            group.update(options)
        self.schedules = deepcopy(self._new, self._shared(optimizer))
        return [
            schedule.scheduler
            if schedule.waits or (schedule.interval, schedule.frequency) == ("step", 1)
            else EveryFewSteps(
                schedule.scheduler, schedule.frequency * (steps_per_epoch if schedule.interval == "epoch" else 1)
            )
            for schedule in self.schedules
        ]

    def after_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Step the schedulers that wait for a metric. Raises ``WorkloadError`` for a metric that is not there."""
        for schedule in self.schedules:
            if schedule.waits and schedule.monitor in metrics:
                schedule.scheduler.step(metrics[schedule.monitor])
            elif schedule.waits and schedule.strict:
                raise WorkloadError(
                    f"a scheduler of {type(self._network).__name__} waits for {schedule.monitor!r}, but the metrics "
                    f"are {', '.join(metrics)}: log it in validation_step, or name one of these as its monitor"
                )

    def _shared(self, optimizer: Optimizer) -> dict[int, Any]:
        """Objects that a copy of the schedules refers to and does not copy."""
        return {id(self.optimizer): optimizer, id(self._network): self._network}


class EveryFewSteps(LRScheduler):
    """Steps another scheduler only once in ``num_steps`` of its own steps."""

    def __init__(self, scheduler: LRScheduler, num_steps: int) -> None:
        self.optimizer, self.scheduler, self.num_steps = scheduler.optimizer, scheduler, num_steps
        self.num_done = 0

    def step(self, epoch: Any = None) -> None:
        """Call it after each optimizer step."""
        self.num_done += 1
        if self.num_done % self.num_steps == 0:
            self.scheduler.step()

    def get_last_lr(self) -> list[Any]:
        """The present rate of each group."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The count of steps, and the state of the other scheduler."""
        return {"num_done": self.num_done, "scheduler": self.scheduler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.num_done = state_dict["num_done"]
        self.scheduler.load_state_dict(state_dict["scheduler"])


def _parts(configured: Any) -> tuple[list[Any], list[Any]]:
    """Optimizers and schedulers in what ``configure_optimizers`` returns, in any form that Lightning takes."""
    if isinstance(configured, Mapping):
        scheduler = configured.get("lr_scheduler")
        return [configured["optimizer"]], [] if scheduler is None else [_scheduler_config(scheduler)]
    if not isinstance(configured, tuple | list):
        return [configured] if configured is not None else [], []
    if len(configured) == 2 and all(isinstance(part, tuple | list) for part in configured):
        return list(configured[0]), [_scheduler_config(scheduler) for scheduler in configured[1]]
    parts = [_parts(part) for part in configured]
    every_optimizer = [optimizer for optimizers, _ in parts for optimizer in optimizers]
    return every_optimizer, [scheduler for _, schedulers in parts for scheduler in schedulers]


def _scheduler_config(scheduler: Any) -> Any:
    """The scheduler with its options, without those that change no rate."""
    if not isinstance(scheduler, Mapping):
        return scheduler
    ignored = ("name", "reduce_on_plateau")
    return {name: value for name, value in scheduler.items() if name not in ignored and value is not None}


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
