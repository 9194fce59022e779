"""When the process of a rank counts as ended."""

from __future__ import annotations

from typing import Any

from scamp_service.cluster.driver.states.rank_record import (
    GONE_SECONDS,
    ORPHANED_SECONDS,
    RankPhase,
    RankRecord,
    has_ended,
)
from scamp_service.cluster.worker.answers import RankStatus
from scamp_service.host import Process

LEASE_SECONDS = 60.0


def remote(**fields: Any) -> RankRecord:
    """A rank on another host that was found dead at second 100 and last answered at second 90."""
    status = RankStatus(Process("another kernel", 1, "1"), "1/1", 0, 4, True)
    values: dict[str, Any] = {"status": status, "since": 100.0, "progressed": 90.0, "heard": 90.0, "dead": True}
    return RankRecord("rank/n/0", "n/0", RankPhase.ENDING, **values | fields)


def ended(rank: RankRecord, now: float, *, may_trust_ray: bool) -> bool:
    return has_ended(rank, may_trust_ray, LEASE_SECONDS, now)


def test_a_rank_on_another_host_has_ended_once_a_task_there_says_so() -> None:
    assert ended(remote(is_gone=True, dead=False), 100.1, may_trust_ray=True)
    assert not ended(remote(dead=False), 1e6, may_trust_ray=True)


def test_without_that_answer_it_must_have_had_the_time_to_end_itself() -> None:
    assert not ended(remote(), 90.0 + LEASE_SECONDS + ORPHANED_SECONDS, may_trust_ray=False)
    assert ended(remote(), 90.1 + LEASE_SECONDS + ORPHANED_SECONDS, may_trust_ray=False)
    assert not ended(remote(dead=False), 1e6, may_trust_ray=False)


def test_where_the_word_of_ray_is_enough_it_counts_after_a_while() -> None:
    for rank in (remote(), remote(status=None)):
        assert not ended(rank, 100.0 + GONE_SECONDS, may_trust_ray=True)
        assert ended(rank, 100.1 + GONE_SECONDS, may_trust_ray=True)
    assert not ended(remote(dead=False), 1e6, may_trust_ray=True)


def test_a_process_of_this_host_has_ended_only_when_it_was_seen_to_be_gone() -> None:
    assert not ended(remote(is_here=True), 1e6, may_trust_ray=True)
    assert ended(remote(is_here=True, is_gone=True), 100.1, may_trust_ray=False)
