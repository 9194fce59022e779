"""Trains a LightningModule with a LightningDataModule, without Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial, reduce
from operator import getitem
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from scamp.workload.datasets import SetName
from scamp.workload.seeds import DATA_SEED, kept_generators, seed_host
from workloads.adapters.arguments import arguments_for
from workloads.adapters.lightning_loaders import Keys, keys_of_samples, loaders_of
from workloads.adapters.lightning_schedules import Configured, Numbers
from workloads.adapters.lightning_steps import (
    EPOCH_END,
    Call,
    OfWholeSet,
    Steps,
    end_epoch,
    keeping_nothing,
    line_without_result,
)
from workloads.protocol import Batch, Outputs, Workload, defines
from workloads.refusals import WorkloadError, expect

_OF_BATCHES = {
    "change batches in collate_fn or in the steps": (
        *("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer"),
    )
}
_UNUSED: Mapping[str, tuple[str, ...]] = {
    **_OF_BATCHES,
    f"metrics are new for each evaluation; update them in validation_step, and compute them in {EPOCH_END}": (
        *("on_validation_start", "on_validation_epoch_start", "on_validation_end"),
        *("on_validation_batch_start", "on_validation_batch_end"),
        *("on_validation_model_eval", "on_validation_model_train"),
    ),
    "what changes with the epoch belongs into training_step (self.current_epoch) or into on_step of the workload; "
    "training reports its mean loss as train_loss, and no other metric": (
        *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start"),
        *("on_train_epoch_end", "on_train_batch_start", "on_train_batch_end"),
    ),
    "override optimizer, scheduler or on_step of the workload, and limit gradients by the study's clip_norm": (
        *("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
        *("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    ),
    "stopping is up to the study, and checkpoints, devices and shards are up to ScaMP": (
        *("configure_callbacks", "configure_sharded_model", "on_save_checkpoint", "on_load_checkpoint"),
    ),
}
"""Methods that Lightning's Trainer calls and nothing would call here, by what to do instead."""


_SKIPS = (
    "training_step of {name} returns None, by which Lightning skips a batch, but ranks and micro-batches would skip "
    "other samples than the whole batch: leave such samples out of the data set, or return a loss to which they add 0"
)


class LightningWorkload(Workload):
    """Subclass it, and name the classes ``module`` and ``datamodule``.

    Both get the candidate's parameters that their constructors name. The data sets, ``collate_fn``, ``num_workers`` and
    ``batch_size`` are those of ``train_dataloader()`` and ``val_dataloader()``; the order is ScaMP's. The loss is that
    of ``training_step``. Metrics are what ``validation_step`` and ``on_validation_epoch_end`` log: means over a batch
    are averaged over the samples, and torchmetrics of the module are computed over the whole set.
    """

    module: ClassVar[Any]
    datamodule: ClassVar[Any]
    _configured: Configured | None = None
    _optimizer: torch.optim.Optimizer | None = None  # the one that ranks use, once there is a step
    _keys_of_samples: Keys | None = None  # to the list or tensor in a batch that has one entry for each sample

    def __init__(self, params: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` for a ``batch_size`` that would not be the batch."""
        super().__init__(params)
        arguments = _arguments(self.datamodule, params)
        if "batch_size" in params and "batch" not in params and "batch_size" not in arguments:
            raise ValueError(
                f"{self.datamodule.__name__} takes no batch_size: name it batch in the study, which replaces that of "
                "the loader"
            )
        if "batch_size" in params and params.get("batch", params["batch_size"]) != params["batch_size"]:
            raise ValueError(
                f"batch is {params['batch']}, but batch_size is {params['batch_size']}: leave one of them out of the "
                "study"
            )

    @property
    def default_batch(self) -> int:  # type: ignore[override]
        """The ``batch_size`` of the loader for training. Raises ``WorkloadError`` if it has none."""
        batch_size = self._loaders["train"].batch_size
        if batch_size is None:
            raise WorkloadError("train_dataloader has a batch sampler of its own: name batch in the study")
        return int(batch_size)

    def build_model(self) -> nn.Module:
        """The module, in one that calls its steps. Raises ``WorkloadError`` for what only a Trainer can do."""
        model = self.module(**_arguments(self.module, self.params))
        if not getattr(model, "automatic_optimization", True):
            raise WorkloadError(
                f"{self.module.__name__} optimizes by itself (automatic_optimization = False): write a Workload with "
                'phases() instead; see "Several losses and optimizers" in docs/updates.md'
            )
        for owner, unused in ((self.module, _UNUSED), (self.datamodule, _OF_BATCHES)):
            _expect_no_hooks(owner, unused)
        if (line := line_without_result(model.training_step)) is not None:
            raise WorkloadError(f"{_SKIPS.format(name=self.module.__name__)} (line {line})")
        for hook in ("setup", "configure_model"):
            if _overrides(self.module, hook):
                getattr(model, hook)(*(["fit"] if hook == "setup" else []))
        return Steps(model)

    def dataset(self, split: SetName) -> Any:
        """The data set of the loader for ``split``."""
        dataset = self._loaders[split].dataset
        if split == "eval":
            with kept_generators(self):
                seed_host(DATA_SEED, self)
                self._keys_of_samples = keys_of_samples(dataset, self.collate)
        return dataset

    def collate(self, samples: list[Any]) -> Batch:
        """As the loader for training puts samples together."""
        return self._loaders["train"].collate_fn(samples)

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        """As many as the loader for training has."""
        return int(self._loaders["train"].num_workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss that ``training_step`` returns, alone or as ``loss`` of a dictionary."""
        call = self._call(model, batch)
        call.batch_idx = self._numbers.batch_idx
        returned = model("training_step", batch, call)
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        if loss is None:
            raise WorkloadError(_SKIPS.format(name=self.module.__name__))
        return expect(loss, Tensor, _module_of(model).training_step, "the loss, a tensor with one number")

    def evaluate(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Outputs]:
        """Each number that ``validation_step`` logs, and the arguments of each metric that it updates."""
        call = self._call(model, batch)
        with keeping_nothing(_module_of(model), "validation_step") if self._ends_epochs else nullcontext():
            model("validation_step", batch, call)
        self._logged_metrics = {name: value for name, value in call.logged.items() if isinstance(value, OfWholeSet)}
        values = {
            name: _real(name, value).expand(call.num_samples)
            for name, value in call.logged.items()
            if name not in self._logged_metrics
        }
        return values, {"sample": torch.zeros(call.num_samples), "updates": call.updates}

    def summarize(self, outputs: Outputs) -> Mapping[str, float]:
        """Each of the module's torchmetrics over the whole set, and what ``on_validation_epoch_end`` logs."""
        module = self._without_parameters  # metrics in the model may have been built without memory
        for path, (args, kwargs) in outputs["updates"].items():
            metric = module.get_submodule(path)
            metric.reset()
            metric.update(*args, **kwargs)
        summary = {name: module.get_submodule(of.path).compute() for name, of in self._logged_metrics.items()}
        if self._ends_epochs:
            module.trainer = self._numbers
            call = Call(self._present_optimizer, self._present_schedulers, is_end=True, updates=outputs["updates"])
            end_epoch(module, call)
            if both := sorted(summary.keys() & call.logged.keys()):
                raise WorkloadError(f"validation_step and {EPOCH_END} both log {both[0]!r}: use two names")
            summary |= call.logged
        return summary

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of ``configure_optimizers``. Raises ``WorkloadError`` if that returns more than one."""
        network = _module_of(model)
        network.trainer = self._numbers
        self._numbers.estimated_stepping_batches = self.trial.steps
        self._optimizer, self._configured = None, Configured(network)
        return self._configured.optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> list[LRScheduler]:
        """The schedulers of ``configure_optimizers``, stepped at their intervals."""
        return self._configured.begin(optimizer, self._steps_per_epoch) if self._configured else []

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Tell the module its step, as ``self.global_step`` and ``self.current_epoch``, and its optimizer."""
        self._numbers.global_step, self._numbers.estimated_stepping_batches = step, steps
        self._optimizer = optimizer

    def on_evaluate(self, metrics: Mapping[str, float]) -> None:
        """Step the schedulers that wait for a metric."""
        if self._configured:
            self._configured.after_evaluation(metrics)

    def _call(self, model: nn.Module, batch: Batch) -> Call:
        """A call of a step of the module, which knows the numbers of the training."""
        _module_of(model).trainer = self._numbers
        return Call(
            partial(self._present_optimizer, model), self._present_schedulers, num_samples=self._num_samples(batch)
        )

    def _num_samples(self, batch: Batch) -> int:
        if self._keys_of_samples is not None:
            return len(reduce(getitem, self._keys_of_samples, batch))
        return len(next(leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)))

    def _present_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer | None:
        """The one that ranks use, or before the first step the module's own; ``model`` may need its first."""
        if self._optimizer is None and self._configured is None and model is not None:
            return self.optimizer(model)
        return self._optimizer or (self._configured.optimizer if self._configured else None)

    def _present_schedulers(self) -> list[Any]:
        return [schedule.scheduler for schedule in self._configured.schedules] if self._configured else []

    @property
    def _ends_epochs(self) -> bool:
        return _overrides(self.module, EPOCH_END)

    @cached_property
    def _numbers(self) -> Numbers:
        return Numbers(self.trial.steps, self._steps_per_epoch, self.trial.world_size, self.trial.rank)

    @property
    def _steps_per_epoch(self) -> int:
        """The number of batches in the loader for training. Samples of the next epoch fill up the last one."""
        batch = int(self.params.get("batch") or self.default_batch)
        num = len(self.order(0, torch.Generator())) if defines(self, "order") else self.num_train
        return max(1, num // batch) if self._loaders["train"].drop_last else -(-num // batch)

    @cached_property
    def _without_parameters(self) -> Any:
        """Another module of this candidate, whose parameters take no memory."""
        with _parameters_on_meta():
            return self.module(**_arguments(self.module, self.params))

    @cached_property
    def _loaders(self) -> Mapping[SetName, Any]:
        has_collate = type(self).collate is not LightningWorkload.collate
        with kept_generators(self):
            seed_host(DATA_SEED, self)
            datamodule = self.datamodule(**_arguments(self.datamodule, self.params))
            return loaders_of(datamodule, has_order=defines(self, "order"), has_collate=has_collate)


def _arguments(owner: type, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a constructor of the user takes; that of Lightning takes any, and ignores them or fails."""
    return arguments_for(owner, params) if _overrides(owner, "__init__") else {}


def _real(name: str, value: Any) -> Tensor:
    number = torch.as_tensor(value).detach()
    if number.is_complex():
        raise WorkloadError(f"validation_step logs a complex number as {name!r}: log its real part or absolute value")
    return number.float()


def _overrides(owner: type, hook: str) -> bool:
    """Whether a class of the user defines a method of Lightning anew, and no subclass sets it to None."""
    defining = next((class_ for class_ in owner.__mro__ if hook in vars(class_)), None)
    return (
        defining is not None
        and vars(defining)[hook] is not None
        and not defining.__module__.startswith(("lightning.", "pytorch_lightning."))
    )


def _expect_no_hooks(owner: type, unused: Mapping[str, tuple[str, ...]]) -> None:
    for advice, hooks in unused.items():
        for hook in hooks:
            if _overrides(owner, hook):
                raise WorkloadError(
                    f"{owner.__name__} defines {hook}, which nothing would call here: {advice}. If it can be left out, "
                    f"name a subclass of {owner.__name__} in the workload that says {hook} = None"
                )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters of modules that are built lose their memory at once, one after another; nothing else does."""
    register = nn.Module.register_parameter

    def without_memory(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, _on_meta(parameter))

    nn.Module.register_parameter = without_memory  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _on_meta(parameter: nn.Parameter | None) -> nn.Parameter | None:
    return None if parameter is None else nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)


def _module_of(model: nn.Module) -> Any:
    return model.module
