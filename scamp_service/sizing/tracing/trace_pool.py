"""Several processes that trace in parallel."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

from scamp_service.sizing.tracing.trace_process import TraceProcess

MOST = 4  # each takes a core, and about 400 MiB after its imports

_Answer = TypeVar("_Answer")


class TracePool:
    """Trace processes, each of which starts on first use and does one task at a time.

    A context manager, which ends them on exit, even in the middle of a task.
    """

    def __init__(self, num_processes: int | None = None) -> None:
        """``num_processes`` defaults to the number of cores, at most ``MOST``."""
        self.num_processes = num = num_processes or min(MOST, len(os.sched_getaffinity(0)))
        self._processes = [TraceProcess() for _ in range(num)]
        # Last in, first out: no further process starts while another is idle.
        self._idle: queue.LifoQueue[TraceProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(num)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # pending tasks do not begin
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.end()

    def start(self) -> None:
        """Start all processes at once, because that takes seconds. Returns before they are ready."""
        for process in self._processes:
            process.start()

    def submit(self, work: Callable[[TraceProcess], _Answer]) -> Future[_Answer]:
        """Future of ``work``, which runs as soon as a process is idle."""
        return self._threads.submit(self._do, work)

    def _do(self, work: Callable[[TraceProcess], _Answer]) -> _Answer:
        process = self._idle.get()
        try:
            return work(process)
        finally:
            self._idle.put(process)
