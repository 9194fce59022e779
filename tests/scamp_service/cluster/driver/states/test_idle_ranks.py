"""Which idle rank takes an attempt, and which ones are kept."""

from __future__ import annotations

from scamp_service.cluster.driver.states.idle_ranks import SPARE_RANKS, suitable, superfluous
from scamp_service.cluster.driver.states.rank_record import RankPhase, RankRecord
from scamp_service.control.executor import SPARE_SECONDS

NOW = 1000.0
LONG_AGO = NOW - SPARE_SECONDS - 1


def rank(name: str, code: str | None = None, phase: RankPhase = RankPhase.READY, since: float = NOW) -> RankRecord:
    return RankRecord(name, "a", phase, since=since, progressed=since, heard=since, code=code)


def test_an_attempt_takes_a_rank_of_its_own_archive_or_a_clean_one_and_never_that_of_another_archive() -> None:
    starting, clean = rank("starting", phase=RankPhase.STARTING), rank("clean")
    mine, theirs, ending = rank("mine", "mine"), rank("theirs", "theirs"), rank("ending", phase=RankPhase.ENDING)
    idle = [starting, ending, theirs, clean, mine, rank("found", phase=RankPhase.FOUND)]
    assert suitable(idle, "mine") == [mine, clean, starting]
    assert suitable(idle, None) == [clean, starting]
    assert suitable([theirs], "mine") == suitable([theirs], None) == []


def test_ranks_that_were_idle_for_long_are_kept_only_if_they_are_clean_and_few() -> None:
    clean = [rank(f"clean {n}", since=LONG_AGO) for n in range(SPARE_RANKS + 1)]
    used, recent = rank("used", "mine", since=LONG_AGO), rank("recent", "mine")
    assert superfluous([used, recent, *clean], NOW) == [clean[-1], used]
    assert superfluous([used, *clean[:SPARE_RANKS]], NOW - SPARE_SECONDS) == []
