"""A real sizer for tests, fed by hand, and a workload of a user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from estimators.learning import Ending, Learned, PastAttempt
from estimators.model import Candidate, Layout
from estimators.traits import NO_TRAITS, Traits
from placement.model import Cluster, Device
from scamp_service.control.executor import Demand, Unsized
from scamp_service.model import Sized
from scamp_service.sizing.sizer import ProcessSizer
from tests.waiting import until

FOUR_DEVICES = Cluster(tuple(Device(f"n/{index}", "n", index, "virtual", 96) for index in range(4)))

USER = """
import time
import torch
from torch import nn
from workloads.protocol import Workload

class Mine(Workload):
    num_train = num_eval = 9
    default_batch = 6
    def __init__(self, params):
        super().__init__(params)
        if params.get("width", 8) % 2:
            raise ValueError("width must be even")
    def build_model(self):
        if self.params.get("broken"):
            raise KeyError("no such model")
        if self.params.get("waits"):
            time.sleep(1000)
        while self.params.get("loops"):
            pass
        return nn.Linear(self.params.get("width", 8), 4)
    def train_batch(self, indices): return torch.zeros(len(indices), self.params.get("width", 8))
    eval_batch = train_batch
    def loss(self, model, batch): return model(batch).square().mean()
    def evaluate(self, model, batch): return {}
"""


class MemoryBlobs:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        self.data[sha] = data
        return sha

    def get(self, sha256: str) -> bytes:
        return self.data[sha256]


class Sizing:
    """A sizer and its candidates by name."""

    def __init__(self, sizer: ProcessSizer) -> None:
        self.sizer, self.num = sizer, 0

    def begin(
        self,
        params: dict[str, Any],
        *,
        workload: str = "vit_digits",
        code: str | None = None,
        extra: int = 0,
        learned: Learned | None = None,
        past: Sequence[PastAttempt] = (),
        cluster: Cluster = FOUR_DEVICES,
        study: int = 0,
        traits: Traits = NO_TRAITS,
        kinds: frozenset[str] = frozenset(),
    ) -> int:
        self.num += 1
        sizes = (1, 0, extra + 1, 0)  # of which a quarter is nothing
        failures = [PastAttempt(1, Layout(), ("virtual",), *sizes, Ending.OUT_OF_MEMORY)] if extra else []
        by_layout = {learned.layout: learned} if learned else {}
        demand = Demand(Candidate(workload, code, params), failures, by_layout, past, study, traits=traits, kinds=kinds)
        self.sizer.request(self.num, demand, cluster)
        return self.num

    def end(self, trial: int) -> Sized | Unsized:
        result = until(lambda: self.sizer.results().get(trial), f"a result for {trial}")
        assert isinstance(result, Sized | Unsized)
        self.sizer.forget([trial])
        return result

    def size(self, params: dict[str, Any], **options: Any) -> Sized | Unsized:
        return self.end(self.begin(params, **options))
