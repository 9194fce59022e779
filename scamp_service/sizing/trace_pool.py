"""Several processes that trace side by side."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self, TypeVar

from scamp_service.sizing.trace_process import TraceProcess

MOST = 4  # each takes a core, and some 400 MiB with what it has imported

_Answer = TypeVar("_Answer")


class TracePool:
    """Each process does one thing at a time, and starts when it is needed first. A context manager: they end with it,
    whatever they do."""

    def __init__(self, num_processes: int | None = None) -> None:
        """As many as there are cores, or ``MOST``."""
        num = num_processes or min(MOST, len(os.sched_getaffinity(0)))
        self._processes = [TraceProcess() for _ in range(num)]
        # The last first: no other is started as long as one is idle.
        self._idle: queue.LifoQueue[TraceProcess] = queue.LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(num)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)  # what waits does not begin
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.end()

    def start(self) -> None:
        """All at once, since that takes seconds; returns before they are ready."""
        for process in self._processes:
            process.start()

    def submit(self, work: Callable[[TraceProcess], _Answer]) -> Future[_Answer]:
        """Done by one of the processes, as soon as one is idle."""
        return self._threads.submit(self._do, work)

    def _do(self, work: Callable[[TraceProcess], _Answer]) -> _Answer:
        process = self._idle.get()
        try:
            return work(process)
        finally:
            self._idle.put(process)
