"""Makes a trainable workload from a function that builds a model, a data set, a loss and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from scamp.workload.datasets import SetName
from workloads.adapters.arguments import arguments_for
from workloads.protocol import Batch, Optimizers, Workload

Compare = Callable[[Any, Any], Tensor]
"""Takes the model's outputs and the targets, for n samples."""


def from_function(
    build: Callable[..., nn.Module],
    *,
    train: Any,
    held_out: Any,
    loss: Compare,
    metrics: Mapping[str, Compare],
    optimizer: Callable[..., Optimizers] | None = None,
) -> type[Workload]:
    """A workload class whose models ``build(**params)`` returns.

    ``train`` and ``held_out`` are pairs of arrays or tensors (inputs, targets) with a row for each sample, or data sets
    of such pairs. ``loss`` returns the mean over the samples; each of ``metrics`` returns one value for each sample,
    shape [n]. ``optimizer(parameters, **params)`` returns the optimizer; without it, the optimizer is AdamW. A function
    gets the parameters of the candidate that its signature names, or all with ``**params``. A candidate raises
    ``ValueError`` where one has no value.
    """
    sets: dict[str, Any] = {"train": _as_dataset(train), "eval": _as_dataset(held_out)}

    class FromFunction(Workload):
        """Made by ``from_function``."""

        def build_model(self) -> nn.Module:
            return build(**arguments_for(build, self.params))

        def dataset(self, split: SetName) -> Any:
            return sets[split]

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            inputs, targets = batch
            return loss(model(inputs), targets)

        def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            inputs, targets = batch
            outputs = model(inputs)
            return {name: metric(outputs, targets) for name, metric in metrics.items()}

        def optimizer(self, model: nn.Module) -> Optimizers:
            if optimizer is None:
                return super().optimizer(model)
            return optimizer(model.parameters(), **arguments_for(optimizer, self.params, num_given=1))

    FromFunction.__module__, FromFunction.__qualname__ = build.__module__, build.__qualname__
    return FromFunction


def _as_dataset(data: Any) -> Any:
    if isinstance(data, tuple | list) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
        return TensorDataset(*(torch.as_tensor(part) for part in data))
    return data
