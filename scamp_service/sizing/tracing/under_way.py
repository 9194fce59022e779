"""Lists what trace processes are doing now, for someone who waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class UnderWay:
    """The requests that trace processes are answering, for someone who waits for them, and how many wait."""

    def __init__(self) -> None:
        self._began: dict[object, tuple[str, float]] = {}
        self._num = self._num_done = 0

    @contextmanager
    def doing(self, task: str) -> Iterator[None]:
        """Count ``task`` as under way."""
        key = object()
        self._began[key] = (task, time.monotonic())
        try:
            yield
        finally:
            del self._began[key]

    def expect(self, num: int) -> None:
        """Count ``num`` tasks that somebody has asked for; each is counted by ``end`` when it is done."""
        self._num += num

    def end(self) -> None:
        """Count one of the tasks that were expected as done."""
        self._num_done += 1

    def __str__(self) -> str:
        """Each with its seconds so far, such as ``1 rank 12 s; FSDP over 2 ranks 3 s (1 of 6 done)``."""
        now = time.monotonic()
        tasks = "; ".join(f"{task} {now - began:.0f} s" for task, began in list(self._began.values()))
        return f"{tasks} ({self._num_done} of {self._num} done)" if tasks and self._num > 1 else tasks
