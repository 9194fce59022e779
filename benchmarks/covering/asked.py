"""One case of ``benchmarks.coverage``: a function in a file of this folder, and its parameters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from estimators.model import Layout
from workloads.function import FunctionWorkload
from workloads.protocol import Workload


@dataclass(frozen=True)
class Asked:
    """``make`` of ``benchmarks/covering/FILE.py``, or a class of that file, with ``params``, which have the batch."""

    file: str
    params: dict[str, Any]
    make: str = "make"

    num_micro_batches = 1
    layout = Layout()

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return int(self.params["batch"])

    @property
    def path(self) -> str:
        """The workload's name, as ``scamp estimate`` takes it in the root of the repository."""
        return f"benchmarks/covering/{self.file}.py:{self.make}"

    def workload(self) -> Workload:
        """A new workload, made in this process."""
        maker = getattr(import_module(f"benchmarks.covering.{self.file.replace('/', '.')}"), self.make)
        return maker(self.params) if isinstance(maker, type) else FunctionWorkload(maker, self.params)

    def to_json(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def from_json(cls, text: str) -> Asked:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        first = str(self.params.get("family") or self.params.get("model"))
        settings = {n: v for n, v in self.params.items() if n not in ("family", "model") and v not in ("fp32", "AdamW")}
        words = [self.make.lower()] if self.make != "make" else []
        return " ".join(
            [first, *words, *(str(v) if n in ("arithmetic", "optimizer") else f"{n}={v}" for n, v in settings.items())]
        )
