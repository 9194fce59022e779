"""Whether the study database can be written now: one small transaction, shared by all who ask within some seconds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from scamp_service.errors import Unavailable
from scamp_service.store.store import Store

FRESH_SECONDS = 3.0
"""Seconds that an answer counts. ``/readyz`` is open to everybody, and each write waits for the disk."""
WAIT_SECONDS = 5.0


class WriteProbe:
    """Writes to the database when it is asked. Threads may share it; at most one write is under way."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._answer: Future[str] | None = None

    def trouble(self) -> str:
        """Why nothing can be written now, and what to do about it; an empty string if the last write was stored."""
        with self._lock:
            now = time.monotonic()
            if self._answer is None or (self._answer.done() and now - self._asked_at > FRESH_SECONDS):
                self._answer, self._asked_at = Future(), now
                # A daemon: a process that ends does not wait for the lock of another one.
                threading.Thread(target=self._write, args=[self._answer], daemon=True).start()
            answer, asked_at = self._answer, self._asked_at
        try:
            return answer.result(WAIT_SECONDS)
        except TimeoutError:
            seconds = time.monotonic() - asked_at
            return f"a write has not ended for {seconds:.0f} s; another process may have locked the study database"

    def _write(self, answer: Future[str]) -> None:
        try:
            self._store.write_nothing()
            answer.set_result("")
        except Unavailable as error:
            answer.set_result(str(error))
        except Exception as error:
            answer.set_exception(error)
