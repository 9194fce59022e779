"""Measures how busy a rank is, minute by minute."""

from __future__ import annotations

import logging
import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from estimators.model import MIB
from placement.packing.device_time import Watch, with_watch

log = logging.getLogger("scamp.rank")

WATCH_SECONDS = 60.0


class Gauge(Protocol):
    """Says how busy something was, and how much memory it has now."""

    sample_seconds: float
    """How often it must be asked."""

    def busy_seconds(self) -> float:
        """All time so far in which it was busy, from any beginning."""
        ...

    def mib(self) -> float: ...


class ProcessGauge:
    """The processor time and the resident memory of this process, without those that it has started."""

    sample_seconds = WATCH_SECONDS

    def busy_seconds(self) -> float:
        """Waiting for data workers, which are other processes, does not count: a GPU would be idle meanwhile."""
        return time.process_time()

    def mib(self) -> float:
        num_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return num_pages * mmap.PAGESIZE / MIB


class GpuGauge:
    """The utilisation of the first visible GPU, as NVML has measured it last, and what torch has reserved there."""

    sample_seconds = 1.0

    def __init__(self, cuda: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._cuda, self._clock = cuda, clock
        self._at, self._seconds = clock(), 0.0

    def busy_seconds(self) -> float:
        now = self._clock()
        self._seconds += self._cuda.utilization(0) / 100 * (now - self._at)
        self._at = now
        return self._seconds

    def mib(self) -> float:
        return float(self._cuda.memory_reserved(0)) / MIB


def gauge_of_rank() -> Gauge:
    """The gauge for the device on which this process trains."""
    torch = sys.modules.get("torch")
    return GpuGauge(torch.cuda) if torch is not None and torch.cuda.is_initialized() else ProcessGauge()


class LoadMeter:
    """Keeps the load of a rank, which grows by a watch every minute. A gauge that fails, as NVML's may, ends it."""

    def __init__(
        self,
        make_gauge: Callable[[], Gauge] = gauge_of_rank,
        watch_seconds: float = WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.load: tuple[Watch, ...] = ()
        self._make_gauge, self._watch_seconds, self._clock = make_gauge, watch_seconds, clock
        self._gauge: Gauge | None = None
        self._is_broken = False
        self._began_at = self._look_at = clock()
        self._busy_seconds = 0.0

    def look(self) -> bool:
        """Ask the gauge if that is due; whether the load has grown."""
        now = self._clock()
        if self._is_broken or now < self._look_at:
            return False
        try:
            return self._look(now)
        except Exception as error:  # NVML does not know it of every GPU, such as an instance
            log.warning("how busy this rank is cannot be measured: %s: %s", type(error).__name__, error)
            self._is_broken = True
            return False

    def _look(self, now: float) -> bool:
        if self._gauge is None:  # the rank has begun to train: it has chosen its device by then
            self._gauge = self._make_gauge()
            self._began_at, self._busy_seconds = now, self._gauge.busy_seconds()
        seconds, busy = now - self._began_at, self._gauge.busy_seconds() - self._busy_seconds
        self._look_at = now + min(self._gauge.sample_seconds, self._watch_seconds)
        if seconds < self._watch_seconds:
            return False
        watch = Watch(time.time(), seconds, min(1.0, max(0.0, busy / seconds)), self._gauge.mib())
        self.load = with_watch(self.load, watch)
        self._began_at, self._busy_seconds = now, self._busy_seconds + busy
        return True
