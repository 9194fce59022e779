"""Calls to Ray's actors and tasks whose answers are awaited, so that nobody has to wait for any of them."""

from __future__ import annotations

from typing import Any

from scamp_service.cluster.driver.states.events import Call


class Calls:
    """Calls to ranks and to the sink by the reference to the answer. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._pending: dict[Any, tuple[Call, str] | None] = {}

    def expect(self, ref: Any, call: Call, rank: str) -> None:
        """Await the answer to a call to the rank with this name."""
        self._pending[ref] = (call, rank)

    def expect_sink(self, ref: Any) -> None:
        """Await an answer of the sink."""
        self._pending[ref] = None

    def refs(self) -> list[Any]:
        """References to all answers that have not been taken."""
        return list(self._pending)

    def take(self, ref: Any) -> tuple[Call, str] | None:
        """The call and the name of the rank, or None for the sink; the answer is awaited no more."""
        return self._pending.pop(ref)

    def awaits_sink(self) -> bool:
        """Whether the sink has not answered yet."""
        return None in self._pending.values()
