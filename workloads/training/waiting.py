"""Measures how long a rank waits for others in its steps: in collectives, for messages, and as an idle pipeline stage.

Calls that wait are timed where Python makes them, for a few steps only: those of torch's handles of collectives, of
DTensor's results, and of FSDP2's collectives on gloo. On CUDA they return before the device has waited, so nothing is
measured there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from workloads.training.gang import AllGather, ReduceScatter

NUM_STEPS = 12
"""Steps that are measured; their median counts, because other processes disturb single ones."""


@dataclass(slots=True)
class Waiting:
    """The shares of the steps measured so far (0 to 1) in which this rank has waited."""

    shares: list[float] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether enough steps are measured."""
        return len(self.shares) >= NUM_STEPS

    @property
    def share(self) -> float:
        """The median of the shares."""
        return median(self.shares)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure what is run in the context as one step."""
        clock = _Clock()
        patched = [
            (AllGather, "__call__"),
            (ReduceScatter, "__call__"),
            (dist.Work, "wait"),
            (functional, "wait_tensor"),
        ]
        real = [(owner, name, getattr(owner, name)) for owner, name in patched]
        began = time.perf_counter()
        try:
            for owner, name, call in real:
                setattr(owner, name, clock.timed(call))
            yield
        finally:
            for owner, name, call in real:
                setattr(owner, name, call)
        self.shares.append(min(1.0, clock.seconds / (time.perf_counter() - began)))


@dataclass(slots=True)
class _Clock:
    seconds: float = 0.0
    depth: int = 0  # of calls that wait within others

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            self.depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                self.depth -= 1
                if not self.depth:
                    self.seconds += time.perf_counter() - began

        return run
