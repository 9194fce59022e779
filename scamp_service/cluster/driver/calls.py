"""Calls to Ray's actors and tasks whose answers are awaited, so that nobody has to wait for any of them."""

from __future__ import annotations

import queue
from functools import partial
from typing import Any

from scamp_service.cluster.driver.states.events import Call


class Calls:
    """Calls to ranks and to the sink by the reference to the answer.

    Not thread-safe, except for ``answered``: its owner holds a lock.
    """

    def __init__(self) -> None:
        self._pending: dict[Any, tuple[Call, str] | None] = {}
        self._answered: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def expect(self, ref: Any, call: Call, rank: str) -> None:
        """Await the answer to a call to the rank with this name."""
        self._await(ref, (call, rank))

    def expect_sink(self, ref: Any) -> None:
        """Await an answer of the sink."""
        self._await(ref, None)

    def answered(self, seconds: float) -> list[Any]:
        """References to the answers, or errors, that have come since the last call; waits so long for the first one.

        ``ray.wait`` would not see the answer to a call that is sent while it waits.
        """
        answers = []
        try:
            answers.append(self._answered.get(timeout=seconds))
            while True:
                answers.append(self._answered.get_nowait())
        except queue.Empty:
            return answers

    def _await(self, ref: Any, whose: tuple[Call, str] | None) -> None:
        self._pending[ref] = whose
        ref.future().add_done_callback(partial(_put, self._answered, ref))

    def take(self, ref: Any) -> tuple[Call, str] | None:
        """The call and the name of the rank, or None for the sink; the answer is awaited no more."""
        return self._pending.pop(ref)

    def awaits_sink(self) -> bool:
        """Whether the sink has not answered yet."""
        return None in self._pending.values()


def _put(answered: queue.SimpleQueue[Any], ref: Any, future: Any) -> None:
    answered.put(ref)
