"""Whether a study that is submitted now would run: one check at a time, for all who ask at ``/readyz``.

A check reads the database and the data directory, and writes to the database every few seconds. It has a thread of its
own, because a server or a disk that hangs holds it for as long as it likes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future

from api.views.process import Readiness
from scamp_service.errors import Unavailable
from scamp_service.files import trouble_with_data
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.settings import Settings
from scamp_service.store.store import Store

FRESH_SECONDS = 3.0
"""Seconds that a write counts. ``/readyz`` is open to everybody, and each write waits for the disk."""
WAIT_SECONDS = 5.0
HANGS = "another process may have locked the study database, or its server or a disk hangs"


class ReadyProbe:
    """Checks when it is asked. Used from the event loop; no request waits in a thread."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._began = 0.0
        self._wrote = -FRESH_SECONDS
        self._answer: Future[Readiness] | None = None

    async def readiness(self) -> Readiness:
        """The answer of the check that is under way or begins now; what may hang, if there is none in time."""
        if self._answer is None or self._answer.done():
            self._answer, self._began = Future(), time.monotonic()
            self._answer.set_running_or_notify_cancel()  # whoever stops waiting does not cancel it for the others
            # A daemon: a process that ends does not wait for the lock of another one.
            threading.Thread(target=self._check, args=[self._answer], daemon=True).start()
        left = self._began + WAIT_SECONDS - time.monotonic()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._answer), left)
        except TimeoutError:
            words = f"a check has not ended for {time.monotonic() - self._began:.0f} s; {HANGS}"
            return _readiness(words, "unknown", "unknown")

    def _check(self, answer: Future[Readiness]) -> None:
        try:
            answer.set_result(self._checked())
        except Exception as error:
            answer.set_exception(error)

    def _checked(self) -> Readiness:
        directory, controller = trouble_with_data(self._settings) or "ok", "unknown"
        try:
            controller = self._controller()
            if time.monotonic() - self._wrote >= FRESH_SECONDS:
                self._store.write_nothing()
                self._wrote = time.monotonic()
        except Unavailable as error:
            return _readiness(str(error), directory, controller)
        return _readiness("ok", directory, controller)

    def _controller(self) -> str:
        age = self._store.leases.age(CONTROLLER_LEASE)
        if age is None:
            return "no controller holds the lease"
        return f"silent for {age:.0f} s" if age > self._settings.lease_seconds else "ok"


def _readiness(database: str, directory: str, controller: str) -> Readiness:
    ready = {database, directory, controller} == {"ok"}
    return Readiness(
        status="ready" if ready else "not ready", database=database, data_directory=directory, controller=controller
    )


def controller_silent_seconds(store: Store, confirmed: float | None) -> float | None:
    """Seconds since the controller last renewed its lease; None when no controller has ever reported.

    When nobody holds the lease, they count from ``confirmed``, when the cluster was last recorded.
    """
    age = store.leases.age(CONTROLLER_LEASE)
    return age if age is not None or confirmed is None else max(0.0, store.now() - confirmed)
