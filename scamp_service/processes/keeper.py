"""Keeps a controller in the lead while its loop turns, and no longer."""

from __future__ import annotations

import logging
import threading
import time

from scamp_service.control.leadership import RENEWALS, Leadership
from scamp_service.processes.heartbeat import Heartbeat

log = logging.getLogger("scamp.local")

STUCK_SECONDS = 120.0
"""A controller whose loop does not turn for so long gives up its lead."""


class Keeper:
    """Renews the lease in a thread of its own, so that a long cycle does not cost the leadership, and informs the
    supervisor that this process is well.

    It stops both when the loop has not turned for ``STUCK_SECONDS``: then another controller should lead.
    """

    def __init__(self, leadership: Leadership, lease_seconds: float) -> None:
        self._leadership, self._pause = leadership, min(1.0, lease_seconds / RENEWALS)
        self._turned = time.monotonic()
        self._ended = threading.Event()
        # Two threads: a renewal may have to wait for the database, and to be restarted would not help then.
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._renew, self._beat)]

    def __enter__(self) -> Keeper:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def turns(self) -> None:
        """Say that the loop turns."""
        self._turned = time.monotonic()

    def _renew(self) -> None:
        while not self._ended.wait(self._pause):
            if self._is_turning():
                try:
                    self._leadership.renew()
                except Exception as error:
                    log.warning("the lease cannot be renewed now: %s", error)

    def _beat(self) -> None:
        heartbeat = Heartbeat()
        while not self._ended.wait(1.0):
            if self._is_turning():
                heartbeat.beat()

    def _is_turning(self) -> bool:
        return time.monotonic() - self._turned < STUCK_SECONDS
