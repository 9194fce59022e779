"""Trains a LightningModule with a LightningDataModule, without Lightning's Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import RandomSampler, SequentialSampler

from workloads.adapters.arguments import arguments_for
from workloads.adapters.lightning_schedules import Configured, Numbers
from workloads.datasets import SetName
from workloads.protocol import Batch, Outputs, Workload, defines
from workloads.refusals import WorkloadError

_UNUSED_OF_DATA = ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer")
_UNUSED = (
    *_UNUSED_OF_DATA,
    *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_validation_start", "on_validation_end"),
    *("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end"),
    *("on_train_batch_start", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step"),
    *("configure_gradient_clipping", "configure_callbacks", "configure_sharded_model", "lr_scheduler_step"),
    *("backward", "optimizer_step", "optimizer_zero_grad", "on_save_checkpoint", "on_load_checkpoint"),
)
"""Methods that Lightning's Trainer calls and that change a training or what is known of it."""


class LightningWorkload(Workload):
    """Subclass it, and name the classes ``module`` and ``datamodule``.

    Both get the candidate's parameters that their constructors name. The data sets, ``collate_fn`` and ``num_workers``
    are those of ``train_dataloader()`` and ``val_dataloader()``; the order and the batches are ScaMP's. The loss is
    that of ``training_step``. Metrics are what ``validation_step`` logs: means over a batch are averaged over the
    samples, and torchmetrics of the module are computed over the whole set. Both steps are called with the batch and,
    if they take it, the number 0.
    """

    module: ClassVar[Any]
    datamodule: ClassVar[Any]

    def build_model(self) -> nn.Module:
        """The module, in one that calls its steps. Raises ``WorkloadError`` for what only a Trainer can do."""
        model = self.module(**arguments_for(self.module, self.params))
        if not getattr(model, "automatic_optimization", True):
            raise WorkloadError(
                f"{self.module.__name__} optimizes by itself (automatic_optimization = False): write a Workload with "
                "phases() instead"
            )
        for owner, unused in ((self.module, _UNUSED), (self.datamodule, _UNUSED_OF_DATA)):
            _expect_no_hooks(owner, unused)
        for hook in ("setup", "configure_model"):
            if _overrides(self.module, hook):
                getattr(model, hook)(*(["fit"] if hook == "setup" else []))
        return _Steps(model)

    def dataset(self, split: SetName) -> Any:
        """The data set of the loader for ``split``."""
        return self._loaders[split].dataset

    def collate(self, samples: list[Any]) -> Batch:
        """As the loader for training puts samples together."""
        return self._loaders["train"].collate_fn(samples)

    @property
    def num_workers(self) -> int:  # type: ignore[override]
        """As many as the loader for training has."""
        return int(self._loaders["train"].num_workers)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss that ``training_step`` returns, alone or as ``loss`` of a dictionary."""
        returned = model("training_step", batch, {})
        loss = returned["loss"] if isinstance(returned, Mapping) else returned
        assert isinstance(loss, Tensor)
        return loss

    def evaluate(self, model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Outputs]:
        """Each number that ``validation_step`` logs, and the arguments of each metric that it updates."""
        logged: dict[str, Any] = {}
        model("validation_step", batch, logged)
        num = _num_samples(batch)
        self._updated = {name: value for name, value in logged.items() if isinstance(value, _Updated)}
        values = {
            name: torch.as_tensor(value).detach().float().expand(num)
            for name, value in logged.items()
            if name not in self._updated
        }
        updates = {name: _by_position(updated.arguments) for name, updated in self._updated.items()}
        return values, {"sample": torch.zeros(num), **updates}

    def summarize(self, outputs: Outputs) -> Mapping[str, float]:
        """Each of the module's torchmetrics over the whole set."""
        summary = {}
        for name, updated in self._updated.items():
            # The metrics in the model may have been built without memory, and then do not know how they begin.
            metric = self._without_parameters.get_submodule(updated.path)
            metric.reset()
            metric.update(*(outputs[name][str(place)] for place in range(len(updated.arguments))))
            summary[name] = float(metric.compute())
        return summary

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of ``configure_optimizers``. Raises ``WorkloadError`` if that returns more than one."""
        network: Any = model.module
        network.trainer = self._numbers = Numbers(
            self.trial.steps, self._steps_per_epoch, self.trial.world_size, self.trial.rank
        )
        self._configured = Configured(network)
        return self._configured.optimizer

    def scheduler(self, optimizer: torch.optim.Optimizer, steps: int) -> list[LRScheduler]:
        """The schedulers of ``configure_optimizers``, stepped at their intervals."""
        return self._configured.begin(optimizer, self._steps_per_epoch)

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:
        """Tell the module its step, as ``self.global_step`` and ``self.current_epoch``."""
        self._numbers.global_step = step

    def on_evaluate(self, metrics: Mapping[str, float]) -> None:
        """Step the schedulers that wait for a metric."""
        self._configured.after_evaluation(metrics)

    @property
    def _steps_per_epoch(self) -> int:
        batch = int(self.params.get("batch") or self.default_batch)
        num = len(self.order(0, torch.Generator())) if defines(self, "order") else self.num_train
        return -(-num // batch)

    @cached_property
    def _without_parameters(self) -> Any:
        """Another module of this candidate, whose parameters take no memory."""
        with _parameters_on_meta():
            return self.module(**arguments_for(self.module, self.params))

    @cached_property
    def _loaders(self) -> Mapping[SetName, Any]:
        data = self.datamodule(**arguments_for(self.datamodule, self.params))
        data.prepare_data()
        data.setup("fit")
        loaders: dict[SetName, Any] = {"train": data.train_dataloader(), "eval": data.val_dataloader()}
        for loader in loaders.values():
            if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
                kind = type(loader.sampler).__name__
                raise WorkloadError(
                    f"a loader of {self.datamodule.__name__} has a {kind}, which nothing would ask here: define "
                    "order(epoch, generator) in the workload instead"
                )
        return loaders


def _overrides(owner: type, hook: str) -> bool:
    """Whether a class of the user defines a method of Lightning anew."""
    defining = next((class_ for class_ in owner.__mro__ if hook in vars(class_)), None)
    return defining is not None and not defining.__module__.startswith(("lightning.", "pytorch_lightning."))


def _expect_no_hooks(owner: type, hooks: Sequence[str]) -> None:
    for hook in hooks:
        if _overrides(owner, hook):
            raise WorkloadError(
                f"{owner.__name__} defines {hook}, which nothing would call here: log torchmetrics in "
                "validation_step, put callbacks and clipping into the study, or override summarize, optimizer or "
                "on_step of the workload"
            )


@dataclass(frozen=True, slots=True)
class _Updated:
    """Stands for a metric that was updated: its name in the module, and the tensors that it got."""

    path: str
    arguments: tuple[Tensor, ...]


class _Steps(nn.Module):
    """Calls a step of the module in its own ``forward``, where plans divide the model."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, name: str, batch: Batch, logged: dict[str, Any]) -> Any:
        """The result of the step ``name``; what it logs is put into ``logged``."""
        with _Recording(self.module, logged):
            step = getattr(self.module, name)
            return step(batch, 0) if _takes_index(step) else step(batch)


def _takes_index(step: Callable[..., Any]) -> bool:
    """Whether a step takes the number of the batch as its second argument, whatever it calls it, as in Lightning."""
    kinds = [parameter.kind for parameter in inspect.signature(step).parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(kind in by_position for kind in kinds) > 1 or inspect.Parameter.VAR_POSITIONAL in kinds


class _Recording:
    """Keeps what a module logs, and what its metrics are updated with, while the context lasts."""

    def __init__(self, module: Any, logged: dict[str, Any]) -> None:
        self._module, self._logged = module, logged
        self._metrics = {
            name: metric
            for name, metric in module.named_modules()
            if hasattr(metric, "compute") and hasattr(metric, "update")
        }
        self._updates: dict[int, _Updated] = {}
        self._replaced = ExitStack()

    def __enter__(self) -> None:
        self._replace(self._module, "log", self._log)
        for path, metric in self._metrics.items():
            for name in ("update", "forward"):
                self._replace(metric, name, self._updater(path, metric))

    def __exit__(self, *error: object) -> None:
        self._replaced.close()

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute until the context ends; torchmetrics has some on each object, others on the class."""
        if name in vars(owner):
            self._replaced.callback(setattr, owner, name, vars(owner)[name])
        else:
            self._replaced.callback(delattr, owner, name)
        setattr(owner, name, value)

    def _updater(self, path: str, metric: Any) -> Any:
        parts = {name: metric for name, metric in self._metrics.items() if name == path or name.startswith(f"{path}.")}

        def update(*arguments: Tensor) -> Any:
            if id(metric) in self._updates:
                raise WorkloadError(f"the metric {path} is updated twice in one step: use two metrics")
            for name, part in parts.items():  # a collection, and the metrics in it
                self._updates[id(part)] = _Updated(name, tuple(argument.detach() for argument in arguments))
            return self._updates[id(metric)]

        return update

    def _log(self, name: str, value: Any, *more: Any, **options: Any) -> None:
        self._logged[name] = self._updates.get(id(value), value)


def _by_position(arguments: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {str(place): argument for place, argument in enumerate(arguments)}


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


def _num_samples(batch: Batch) -> int:
    first = next(leaf for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
    return int(first.shape[0])
