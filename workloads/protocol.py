"""What a workload is: the model, data, loss and evaluation of one candidate. See ``docs/workloads.md``.

A workload never decides how it is spread: degrees, micro-batches, sharding, recompute, checkpoints and reporting
belong to ``workloads.training``. User files are loaded by ``workloads.loading``, in trace and rank processes only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Batch = Any  # a pytree of tensors whose first dimension is the sample


class Workload(ABC):
    """One candidate's training. Subclass it, and name the class in a study: ``workload: model.py:MyWorkload``.

    ``params`` are the sampled and fixed parameters of the candidate. ``batch`` is read by ScaMP itself: the samples
    of one optimizer step over all ranks, ``default_batch`` unless given. Raise ``ValueError`` in the constructor for
    parameters that make no sense: the message becomes the reason why the candidate is infeasible.
    """

    default_batch = 32

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model, its parameters initialised from torch's global generator.

        It is also called on the meta device and in fake mode: no I/O here, and every parameter and buffer the same
        in shape at each call.
        """

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Training samples."""

    @property
    @abstractmethod
    def num_eval(self) -> int:
        """Held-out samples."""

    @abstractmethod
    def train_batch(self, indices: Tensor) -> Batch:
        """Training samples ``indices`` (int64, shape [n]); called with any n, on the host."""

    @abstractmethod
    def eval_batch(self, indices: Tensor) -> Batch:
        """Held-out samples ``indices`` (int64, shape [n])."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scalar: the *mean* over the samples of ``batch``, so that micro-batches average to the effective batch."""

    @abstractmethod
    def evaluate(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Metric name → value of each sample, shape [n]; the runtime averages them over all held-out samples."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Default: AdamW with ``lr`` (1e-3) and ``weight_decay`` (0.01) of the candidate."""
        return torch.optim.AdamW(
            model.parameters(),
            lr=float(self.params.get("lr", 1e-3)),
            weight_decay=float(self.params.get("weight_decay", 0.01)),
        )

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The repeated blocks that are sharded and recomputed one by one; default: the longest ``nn.ModuleList``."""
        lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
        return max(lists, key=len, default=[])

    def on_step(self, step: int, steps: int, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027 - may stay empty
        """Called on every rank before optimizer step ``step`` (from 0) of ``steps``, also after a resume, where earlier
        steps are not repeated: set what depends on the step (``group["lr"]``) from ``step`` alone."""
