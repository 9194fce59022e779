"""What training steps really take from a GPU: in a process of its own, on the first GPU that CUDA shows.

``python -m benchmarks.estimating.gpu ORDER`` prints an ``Observation`` as one line of JSON. What was foretold is not in
it, so that a later estimator can be held against it; only the capacities that were tried are chosen by it.
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

NUM_STEPS = 2  # the first makes the optimizer's states
NUM_TIMED = 7  # more steps, of which the first two do not count
FINEST = 0.002  # of a capacity: no more is asked of the search


@dataclass(frozen=True, slots=True)
class Order:
    """What to observe: a case, and capacities to try, in bytes over what the process holds for good."""

    case: str
    uuid: str
    capacities: Sequence[int]


@dataclass(frozen=True, slots=True)
class Observation:
    """Bytes, and seconds of a step.

    ``active_bytes`` and ``reserved_bytes`` are peaks of two steps without a limit, over the ``kept_bytes`` that
    PyTorch's allocator still has when the model is gone (cuBLAS). ``attempts`` are (capacity over ``kept_bytes``,
    whether two steps ran with it); ``context_bytes`` what NVML counts beyond what the allocator reserves.
    """

    active_bytes: int
    reserved_bytes: int
    kept_bytes: int
    context_bytes: int
    attempts: Sequence[tuple[int, bool]]
    step_seconds: float

    @property
    def smallest_capacity_bytes(self) -> int:
        """The least that was seen to do."""
        return min((capacity for capacity, ran in self.attempts if ran), default=self.reserved_bytes)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        return cls(**data | {"attempts": [(int(capacity), bool(ran)) for capacity, ran in data["attempts"]]})


def search(runs: Callable[[int], bool], first: Sequence[int], too_small: int, enough: int) -> list[tuple[int, bool]]:
    """Try ``first``, then halve what is left between too small and enough, until that is fine enough."""
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


def observe(order: Order) -> Observation:
    held_before = held_bytes(order.uuid)
    device, case = torch.device("cuda", 0), Case.from_json(order.case)
    warm_up(device, None)
    workload, total = case.workload(), torch.cuda.mem_get_info(device)[1]
    initial = workload.build_model()

    def steps(num: int) -> Callable[[], object]:
        """Takes so many from a fresh start, and returns one more to be taken."""
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
        """Bytes that the allocator still has reserved."""
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(device)

    steps(NUM_STEPS)  # what libraries keep from a first use on is there afterwards
    kept_reserved, kept = clear(), torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step = steps(NUM_STEPS)
    active = torch.cuda.max_memory_allocated(device) - kept
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
    return Observation(active, reserved, kept, context, attempts, seconds)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps(asdict(observe(Order(**json.loads(sys.argv[1]))))))
