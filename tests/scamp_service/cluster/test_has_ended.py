"""When the process of a rank on another host counts as ended."""

from __future__ import annotations

from typing import Any

import pytest

from scamp_service.cluster.rank import RankStatus
from scamp_service.cluster.ray_executor import GONE_SECONDS, ORPHANED_SECONDS, Phase, RankHandle, has_ended
from scamp_service.host import Process

LEASE_SECONDS = 60.0


def remote(**known: Any) -> RankHandle:
    """A rank on another host that was found dead at second 100 and last answered at second 90."""
    status = RankStatus(Process("another kernel", 1, "1"), "1/1", 0, 4, True)
    given: dict[str, Any] = {"status": status, "since": 100.0, "heard": 90.0, "dead": True}
    return RankHandle("rank/n/0", "n/0", None, Phase.ENDING, **given | known)


def ended(rank: RankHandle, now: float, *, is_node_alive: bool) -> bool:
    return has_ended(rank, is_node_alive, LEASE_SECONDS, now)


def test_a_rank_on_another_host_has_ended_once_a_task_there_says_so() -> None:
    assert ended(remote(is_gone=True, dead=False), 100.1, is_node_alive=True)
    assert not ended(remote(dead=False), 1e6, is_node_alive=True)


@pytest.mark.parametrize("is_node_alive", [True, False])
def test_without_that_answer_it_must_have_had_the_time_to_end_itself(is_node_alive: bool) -> None:
    """Also when Ray calls the node alive: it may be cut off already."""
    assert not ended(remote(), 90.0 + LEASE_SECONDS + ORPHANED_SECONDS, is_node_alive=is_node_alive)
    assert ended(remote(), 90.1 + LEASE_SECONDS + ORPHANED_SECONDS, is_node_alive=is_node_alive)
    assert not ended(remote(dead=False), 1e6, is_node_alive=is_node_alive)


def test_of_a_rank_that_never_answered_the_word_of_ray_counts_after_a_while() -> None:
    assert not ended(remote(status=None), 100.0 + GONE_SECONDS, is_node_alive=True)
    assert ended(remote(status=None), 100.1 + GONE_SECONDS, is_node_alive=True)
