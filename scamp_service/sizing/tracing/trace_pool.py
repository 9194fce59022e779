"""Several processes that trace in parallel."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self, TypeVar

from scamp_service.sizing.tracing.trace_process import TraceProcess

MOST = 4  # each takes a core, and about 400 MiB after its imports
START_SECONDS = 4.0
"""Processor time that a process takes to start, mostly to import torch. Work that waits less needs no further one."""

_Answer = TypeVar("_Answer")


class TracePool:
    """Trace processes, each of which does one task at a time. The first starts on first use, and another one when a
    task has waited as long as a start takes.

    A context manager, which ends them on exit, even in the middle of a task.
    """

    def __init__(self, num_processes: int | None = None, *, start_seconds: float = START_SECONDS) -> None:
        """``num_processes`` defaults to the number of cores, at most ``MOST``."""
        self.num_processes = num = num_processes or min(MOST, len(os.sched_getaffinity(0)))
        self._processes = [TraceProcess() for _ in range(num)]
        self._start_seconds = start_seconds
        self._idle: queue.SimpleQueue[TraceProcess] = queue.SimpleQueue()
        self._idle.put(self._processes[0])
        self._further: queue.SimpleQueue[TraceProcess] = queue.SimpleQueue()  # which have not started
        for process in self._processes[1:]:
            self._further.put(process)
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
        with suppress(queue.Empty):
            while True:
                self._idle.put(self._further.get_nowait())

    def submit(self, work: Callable[[TraceProcess], _Answer]) -> Future[_Answer]:
        """Future of ``work``, which runs as soon as a process is idle."""
        return self._threads.submit(self._do, work)

    def _do(self, work: Callable[[TraceProcess], _Answer]) -> _Answer:
        process = self._take()
        try:
            return work(process)
        finally:
            self._idle.put(process)

    def _take(self) -> TraceProcess:
        with suppress(queue.Empty):
            return self._idle.get(timeout=self._start_seconds)
        with suppress(queue.Empty):
            return self._further.get_nowait()
        return self._idle.get()
