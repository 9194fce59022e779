"""Measures how long a rank communicates in its steps: collectives, messages, and waiting as an idle pipeline stage.

Calls are timed where Python makes them, for a few steps only: those that start collectives and messages of
``torch.distributed``, wait for them, or wait for DTensor's results, and FSDP2's collectives on gloo. This is what
``workloads.calibration`` times too. On CUDA calls return before the device has communicated, so nothing is measured.
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

from workloads.parallel.exchanging import gloo
from workloads.parallel.exchanging.gloo import AllGather, ReduceScatter

NUM_STEPS = 12
"""Steps that are measured; their median counts, because other processes disturb single ones."""

_CALLS: tuple[tuple[Any, str], ...] = (
    (AllGather, "__call__"),
    (ReduceScatter, "__call__"),
    (gloo, "gather"),
    (gloo, "reduce"),
    (dist.Work, "wait"),
    (functional, "wait_tensor"),
    *((dist, name) for name in ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")),
    *((dist, name) for name in ("all_gather_single", "all_to_all_single", "batch_isend_irecv")),
)


@dataclass(slots=True)
class Waiting:
    """The shares of the steps measured so far (0 to 1) in which this rank has communicated."""

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
        real = [(owner, name, getattr(owner, name)) for owner, name in _CALLS]
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
