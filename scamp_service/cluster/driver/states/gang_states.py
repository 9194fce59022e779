"""The states of gangs: which are broken and why, which are being stopped, and when one is forgotten.

A gang exists as long as a rank has its key; which ranks do is known by ``RankStates``, which passes them here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scamp_service.cluster.driver.states.rank_record import RankRecord
from scamp_service.control.executor import GangState, GangStatus

STOP_GRACE_SECONDS = 5.0


@dataclass(eq=False, slots=True)
class _Gang:
    """State of a gang that its ranks do not hold.

    ``broken`` says why the gang must be stopped; empty while every rank lives. ``is_recorded`` means that a rank has
    stored the outcome.
    """

    broken: str = ""
    is_recorded: bool = False
    stops_until: float | None = None

    def is_overdue(self, now: float) -> bool:
        if self.stops_until is None:
            return False
        return bool(self.broken) or now > self.stops_until


class GangStates:
    """State of each gang by its key (``trial/attempt``). Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._gangs: defaultdict[str, _Gang] = defaultdict(_Gang)
        self._found: dict[str, int] = {}  # gang of an earlier controller → number of ranks that it should have

    def mark_launched(self, key: str) -> None:
        """Note that a gang begins."""
        self._gangs[key] = _Gang()

    def mark_found(self, key: str, num_ranks: int) -> None:
        """Note that a rank of an earlier controller works for a gang of this many ranks."""
        self._found.setdefault(key, num_ranks)  # others may have left it already

    def mark_broken(self, key: str, why: str) -> None:
        """Note that the gang must be stopped. The first reason counts; no effect without a key."""
        if key and not self._gangs[key].broken:
            self._gangs[key].broken = why

    def mark_recorded(self, key: str) -> None:
        """Note that a rank has stored the outcome."""
        self._gangs[key].is_recorded = True

    def mark_stopping(self, key: str, until: float) -> bool:
        """Note that the gang is to stop by this time; returns False if it was to stop by then already."""
        gang = self._gangs[key]
        if gang.stops_until is not None and gang.stops_until <= until:
            return False
        gang.stops_until = until
        return True

    def is_broken(self, key: str) -> bool:
        """Whether one of its ranks is dead or missing, so that the others hang in a collective."""
        return bool(self._gangs[key].broken)

    def overdue(self, now: float) -> list[str]:
        """Gangs that are to stop and cannot, as they are broken, or have not done so in time."""
        return [key for key, gang in self._gangs.items() if gang.is_overdue(now)]

    def break_incomplete(self, num_members: Mapping[str, int]) -> None:
        """Break gangs that were found with ranks missing. Call it when it is known what every rank does."""
        for key, num_ranks in self._found.items():
            if (missing := num_ranks - num_members.get(key, 0)) > 0:
                self.mark_broken(key, f"{missing} of its {num_ranks} ranks are missing")
        self._found.clear()

    def remove_rank(self, key: str, *, is_last: bool) -> None:
        """Note that a rank has left the gang, and forget the gang with the last one (see ``forget_without_ranks``)."""
        if key in self._found:
            self._found[key] -= 1
        if is_last:
            self.forget_without_ranks(key)

    def forget_without_ranks(self, key: str) -> None:
        """Forget a gang without ranks, unless nobody else knows why it is broken."""
        gang = self._gangs.get(key)
        if gang is not None and (not gang.broken or gang.is_recorded or gang.stops_until is not None):
            del self._gangs[key]

    def unexplained(self) -> set[str]:
        """Gangs that are broken without an outcome in the database. They are listed until they are stopped."""
        return {key for key, gang in self._gangs.items() if gang.broken and not gang.is_recorded}

    def status(self, key: str, members: Sequence[RankRecord], now: float) -> GangStatus:
        """State of a gang with these ranks, for the controller."""
        gang = self._gangs[key]
        if gang.stops_until is not None:
            return GangStatus(GangState.STOPPING, gang.broken)
        if gang.broken:
            return GangStatus(GangState.BROKEN, gang.broken)
        quiet_seconds = now - max(rank.progressed for rank in members)
        doing = [f"rank {rank.status.rank} {rank.status.doing}" for rank in members if rank.status and rank.status.key]
        return GangStatus(GangState.ALIVE, "", max(0.0, quiet_seconds), "; ".join(doing))
