"""Chooses among idle ranks: which may take an attempt, and which are kept for later ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scamp_service.cluster.driver.states.rank_record import RankPhase, RankRecord
from scamp_service.control.executor import SPARE_SECONDS

SPARE_RANKS = 2


def suitable(idle: Iterable[RankRecord], code: str | None) -> list[RankRecord]:
    """Ranks that may run this archive of user code (None: a built-in workload), the best one first.

    A rank that has run an archive may run that one again, and nothing else. It is the best one, as it has imported what
    the archive needs; of the others, those that are ready.
    """
    may = [rank for rank in idle if rank.code in (None, code) and rank.phase in (RankPhase.STARTING, RankPhase.READY)]
    return sorted(may, key=lambda rank: (rank.code != code, rank.phase is not RankPhase.READY))


def superfluous(idle: Sequence[RankRecord], now: float) -> list[RankRecord]:
    """Ranks of one device that have been idle for ``SPARE_SECONDS`` and need not be kept.

    These are the clean ones beyond ``SPARE_RANKS``, and all that have run user code.
    """
    clean = [rank for rank in idle if rank.code is None]
    used = [rank for rank in idle if rank.code is not None]
    return [r for r in (*clean[SPARE_RANKS:], *used) if r.phase is RankPhase.READY and now - r.since > SPARE_SECONDS]
