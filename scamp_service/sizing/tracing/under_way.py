"""Lists what trace processes are doing now, for someone who waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class UnderWay:
    """The requests that trace processes are answering, for someone who waits for them."""

    def __init__(self) -> None:
        self._began: dict[object, tuple[str, float]] = {}

    @contextmanager
    def doing(self, task: str) -> Iterator[None]:
        """Count ``task`` as under way."""
        key = object()
        self._began[key] = (task, time.monotonic())
        try:
            yield
        finally:
            del self._began[key]

    def __str__(self) -> str:
        """Each with its seconds so far, such as ``single 12 s, fsdp2 3 s``."""
        now = time.monotonic()
        return ", ".join(f"{task} {now - began:.0f} s" for task, began in list(self._began.values()))
