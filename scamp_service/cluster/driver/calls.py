"""Calls to Ray's actors and tasks whose answers are awaited, so that nobody has to wait for any of them."""

from __future__ import annotations

from typing import Any

from scamp_service.cluster.driver.rank_handle import RankHandle


class Calls:
    """What was asked, by the reference to the answer. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._pending: dict[Any, tuple[str, RankHandle | None]] = {}

    def expect(self, kind: str, rank: RankHandle | None, ref: Any) -> None:
        """Await the answer to a call of this ``kind``; ``rank`` is the one that was called, None for the sink."""
        self._pending[ref] = (kind, rank)

    def refs(self) -> list[Any]:
        """References to all answers that have not been taken."""
        return list(self._pending)

    def take(self, ref: Any) -> tuple[str, RankHandle | None]:
        """What was asked, and whom; the answer is awaited no more."""
        return self._pending.pop(ref)

    def awaits(self, kind: str) -> bool:
        """Whether a call of this kind has no answer yet."""
        return any(kind == other for other, _ in self._pending.values())
