"""All that a user's file needs from ScaMP: a ``Workload``, and how its model says that it can be divided.

A workload is the model, data, loss and evaluation of one candidate; a ``Chain``, a ``Split`` and a ``Spatial`` open a
model to further plans (see ``docs/workloads.md``). A workload never decides how it is spread: ``workloads.parallel``
divides the model, and micro-batches, checkpoints and reporting belong to ``workloads.training``. User files are loaded
by ``workloads.loading``, in trace and rank processes only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from estimators.model import Stage

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Batch", "Chain", "Spatial", "Split", "Workload"]

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


@dataclass(frozen=True, slots=True)
class Split:
    """How a block is divided; a block that can be has it as its attribute ``split``.

    ``columns`` are linear layers divided by their outputs; ``rows`` take these, are divided by their inputs, and what
    they give is summed over ranks. Between the two every rank computes its own part, so the block's ``forward``
    must take the size of that part from the tensors. ``norms`` are normalisations of single positions. The ranks must
    divide ``most_parts``, the number of attention heads. ``branches`` are submodules each of which has some of these
    columns and rows and gives the sum of what its parts give; only co-shard asks for them.
    """

    columns: tuple[str, ...]
    rows: tuple[str, ...]
    norms: tuple[str, ...]
    most_parts: int
    branches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spatial:
    """How the space of a model is divided; a model that can be has it as its attribute ``spatial``.

    ``dims`` are, of each tensor of a batch in order, the dimension that is divided; None where each rank has all of it.
    Its size must be a multiple of ``multiple_of`` times the ranks: what the model divides space by on its way down.
    The model's convolutions, poolings and normalisations are modules; whatever else its ``forward`` and the loss do
    treats positions alike and alone, but for a mean over all of them at the end.
    """

    dims: tuple[int | None, ...]
    multiple_of: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Which stage a rank has, and the group of ranks that have the others, by their index."""

    stage: Stage
    group: ProcessGroup


class Chain(nn.Module, ABC):
    """Subclass it, hold the blocks in ``blocks``, name the attributes that only ``enter`` and only ``leave`` use."""

    enters: ClassVar[tuple[str, ...]]
    leaves: ClassVar[tuple[str, ...]]
    blocks: nn.ModuleList
    place: Place | None = None
    """None: the whole model is here."""

    @abstractmethod
    def enter(self, inputs: Tensor) -> Tensor:
        """What the first block takes."""

    @abstractmethod
    def leave(self, x: Tensor) -> Tensor:
        """The model's output, of what the last block gives."""

    @abstractmethod
    def hidden_shape(self, num_samples: int) -> tuple[int, ...]:
        """Of what every block takes and gives, for so many samples."""

    @property
    def is_first(self) -> bool:
        return self.place is None or self.place.stage.index == 0

    @property
    def is_last(self) -> bool:
        return self.place is None or self.place.stage.index == self.place.stage.count - 1

    def forward(self, x: Tensor) -> Tensor:
        """Of the part that is here: a later stage takes what the one before it gives."""
        if self.is_first:
            x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x) if self.is_last else x
