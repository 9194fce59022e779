"""Measures the memory and time that training steps really take on the first GPU that CUDA shows, in a separate process.

``python -m benchmarks.estimating.gpu ORDER`` prints an ``Observation`` as one line of JSON. It has no predictions in
it, so a later estimator can be compared with it; only the capacities that are tried come from the estimator.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.estimating.case import Case
from estimators.peaks.allocator import GRANULE
from workloads.calibration.measure import held_bytes
from workloads.calibration.probes import GpuTime
from workloads.parallel.apply import apply_plan
from workloads.training.step import to_device, train_step
from workloads.training.warm_up import warm_up

NUM_STEPS = 2  # the first creates the optimizer's states
NUM_TIMED = 7  # further steps that are timed; the first two do not count
FINEST = 0.002  # the search stops when the capacity is known to this share


@dataclass(frozen=True, slots=True)
class ToObserve:
    """A case to observe, and capacities to try, in bytes over the memory that the process holds permanently."""

    case: str
    uuid: str
    capacities: Sequence[int]


@dataclass(frozen=True, slots=True)
class Observation:
    """Bytes, and seconds of one step.

    ``active_bytes`` and ``reserved_bytes`` are the peaks of two steps without a limit, over ``kept_bytes``: memory that
    PyTorch's allocator still holds when the model is gone (cuBLAS). ``attempts`` has pairs of a capacity over
    ``kept_bytes`` and whether two steps ran with it. ``context_bytes`` is the memory of the process that NVML counts
    beyond the memory that the allocator reserves.
    """

    active_bytes: int
    reserved_bytes: int
    kept_bytes: int
    context_bytes: int
    attempts: Sequence[tuple[int, bool]]
    step_seconds: float

    @property
    def smallest_capacity_bytes(self) -> int:
        """The smallest capacity with which two steps ran."""
        return min((capacity for capacity, ran in self.attempts if ran), default=self.reserved_bytes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        """The observation in a record."""
        return cls(**data | {"attempts": [(int(capacity), bool(ran)) for capacity, ran in data["attempts"]]})


def search(runs: Callable[[int], bool], first: Sequence[int], too_small: int, enough: int) -> list[tuple[int, bool]]:
    """Try the capacities in ``first``, then bisect between ``too_small`` and ``enough`` down to the share ``FINEST``.

    Returns each capacity that was tried, and whether it ran.
    """
    attempts: list[tuple[int, bool]] = []

    def attempt(capacity: int) -> None:
        attempts.append((capacity, runs(capacity)))

    for capacity in first:
        attempt(capacity)
    while True:
        low = max([too_small, *(capacity for capacity, ran in attempts if not ran)])
        high = min([enough, *(capacity for capacity, ran in attempts if ran)])
        if high - low <= max(GRANULE, int(FINEST * high)):
            return attempts
        attempt((low + high) // 2)


def observe(order: ToObserve) -> Observation:
    """Run the case on the GPU without a limit, time it, and search for the smallest capacity."""
    held_before = held_bytes(order.uuid)
    device, case = torch.device("cuda", 0), Case.from_json(order.case)
    warm_up(device, None)
    workload, total = case.workload(), torch.cuda.mem_get_info(device)[1]
    initial = workload.build_model()

    def steps(num: int) -> Callable[[], object]:
        """Takes ``num`` steps with a new model and optimizer, and returns a function that takes one more."""
        model = copy.deepcopy(initial).to(device)
        apply_plan(model, workload.blocks(model), case.layout, None)
        optimizer = workload.optimizer(model)

        def step() -> None:
            batches = map(workload.train_batch, [torch.arange(case.batch) % workload.num_train])
            train_step(workload, model, optimizer, (to_device(batch, device) for batch in batches), 1)

        for _ in range(num):
            step()
        return step

    def clear() -> int:
        """Free what can be freed; returns the bytes that the allocator still has reserved."""
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device)

    steps(NUM_STEPS)  # afterwards libraries hold all that they keep after a first use
    kept_reserved, kept_allocated = clear(), torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step = steps(NUM_STEPS)
    active = torch.cuda.max_memory_allocated(device) - kept_allocated
    reserved = torch.cuda.max_memory_reserved(device) - kept_reserved
    clock = GpuTime()
    seconds = median([clock.seconds(step) for _ in range(NUM_TIMED)][2:])
    del step
    context = held_bytes(order.uuid) - held_before - torch.cuda.memory_reserved(device)

    def runs(capacity: int) -> bool:
        clear()
        torch.cuda.set_per_process_memory_fraction(min(1.0, (capacity + kept_reserved) / total), device)
        try:
            steps(NUM_STEPS)
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        return True

    attempts = search(runs, order.capacities, active - GRANULE, reserved)
    return Observation(active, reserved, kept_allocated, context, attempts, seconds)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps(asdict(observe(ToObserve(**json.loads(sys.argv[1]))))))
