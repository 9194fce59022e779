"""One case of ``benchmarks.estimators``: a model, how it is trained, and the number of samples in a micro-batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.estimating.zoo import make
from estimators.model import Layout
from workloads.function import FunctionWorkload
from workloads.loading import BUILT_INS, load_workload
from workloads.protocol import Workload

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Steps(Protocol):
    """Optimizer steps of a workload on one rank. ``batch`` is the number of samples in one micro-batch."""

    @property
    def batch(self) -> int: ...
    @property
    def num_micro_batches(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    def workload(self) -> Workload: ...


@dataclass(frozen=True)
class Case:
    """A model and how it is trained. ``batch`` is the number of samples in one micro-batch.

    ``model`` names one of ``zoo.MODELS``, a built-in workload, or one of a file in ``examples``. A workload always has
    its own optimizer and fp32.
    """

    model: str
    batch: int
    params: dict[str, Any] = field(default_factory=dict)
    arithmetic: str = "fp32"
    optimizer: str = "adamw"
    recompute: bool = False
    num_micro_batches: int = 1
    selective: bool = False

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        size = " ".join(f"{name}={value}" for name, value in self.params.items())
        more = [word for word in (self.arithmetic, self.optimizer) if word not in ("fp32", "adamw")]
        batch = f"batch={f'{self.num_micro_batches}×' if self.num_micro_batches > 1 else ''}{self.batch}"
        recompute = f"{'selective ' * self.selective}{'recompute' * self.recompute}"
        return " ".join(filter(None, [self.model, size, batch, *more, recompute]))

    @property
    def layout(self) -> Layout:
        """The layout of its single rank."""
        return Layout(recompute=self.recompute, accumulate=self.num_micro_batches > 1, selective=self.selective)

    def workload(self) -> Workload:
        """A new workload with the case's parameters."""
        if self.model in BUILT_INS or ":" in self.model:
            return load_workload(self.model, EXAMPLES)(self.params)
        chosen = {"model": self.model, "arithmetic": self.arithmetic, "optimizer": self.optimizer}
        return FunctionWorkload(make, chosen | self.params)
