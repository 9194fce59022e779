"""Times the steps of a training, and measures once how long its ranks wait for each other."""

from __future__ import annotations

import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch
import torch.distributed as dist

from workloads.training.attempt.rank import TrainingRank
from workloads.training.waiting import Waiting

TIMED_STEPS = 1000  # the most steps whose median is the time of a step: the newest ones


class Timing:
    """Times the steps after ``measured_step``: those before it warm up, and that one runs under a profiler."""

    def __init__(self, rank: TrainingRank) -> None:
        self._rank, self.measured_step = rank, 0
        self._seconds: deque[float] = deque(maxlen=TIMED_STEPS)
        self._num_timed = 0
        self._waiting = Waiting()
        self._is_waiting_reported = False

    def step(self, step: int) -> AbstractContextManager[None]:
        """Measures how long this rank waits in a step, if that is not known yet."""
        return self._waiting.step() if self._measures_waiting(step) else nullcontext()

    def end_step(self, step: int, began: float) -> None:
        """Count the seconds of a step that ``began`` then, by ``time.perf_counter``."""
        if step > self.measured_step:
            self._seconds.append(time.perf_counter() - began)
            self._num_timed += 1

    def report_waiting(self) -> None:
        """Report once how much the ranks wait: as much as the one that waits least, for which all others wait."""
        if self._waiting.shares and not self._is_waiting_reported:
            self._is_waiting_reported = True
            least = torch.tensor(self._waiting.share, dtype=torch.float64)
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            if self._rank.is_first:
                self._rank.reporter.communicated(float(least))

    def report_seconds(self, check_share: float) -> None:
        """Report the median seconds of a step, if any was timed, and the share of the time that checks took."""
        if self._seconds:
            self._rank.reporter.timed(median(self._seconds), self._num_timed, check_share)

    def _measures_waiting(self, step: int) -> bool:
        return (
            self._rank.mesh is not None
            and self._rank.device.type == "cpu"
            and step > self.measured_step
            and not self._waiting.is_complete
            and not self._is_waiting_reported
        )
