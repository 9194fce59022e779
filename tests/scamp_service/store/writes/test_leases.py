"""Only one of many gets a lease, and writes of a deposed leader change nothing."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from scamp_service.errors import Deposed
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Lease
from scamp_service.store.recorded_cluster import RecordedCluster
from scamp_service.store.store import Store
from tests.scamp_service.store.trials import SPEC


def test_a_lease_is_taken_from_what_was_seen_of_it_and_by_one_alone(store: Store) -> None:
    assert store.lease("c") is None
    first = store.take_lease("c", "a", None, now=1.0)
    assert first == store.lease("c") == Lease("a", term=1, renewals=0)
    assert store.take_lease("c", "b", None, now=1.0) is None
    renewed = store.renew_lease("c", first, now=2.0)
    assert renewed == store.lease("c") == Lease("a", term=1, renewals=1)
    assert store.take_lease("c", "b", first, now=3.0) is None, "it was renewed since it was seen"
    assert store.take_lease("c", "b", renewed, now=3.0) == Lease("b", term=2, renewals=0)
    assert store.renew_lease("c", renewed, now=4.0) is None, "it has lost it"
    assert store.take_lease("other", "a", None, now=5.0)


def test_a_released_lease_has_no_holder_but_keeps_its_epoch(store: Store) -> None:
    first = store.take_lease("c", "a", None, now=1.0)
    assert first is not None
    store.release_lease("c", replace(first, holder="b"))
    assert store.lease("c") == first
    assert store.lease_age("c") == pytest.approx(time.time() - 1.0, abs=60.0)
    store.release_lease("c", first)
    assert store.lease("c") == Lease("", term=1, renewals=0)
    assert store.lease_age("c") is None
    assert store.take_lease("c", "b", store.lease("c"), now=2.0) == Lease("b", term=2, renewals=0)


def test_of_many_who_want_a_lease_one_gets_it(store: Store) -> None:
    for _ in range(4):
        seen = store.lease("c")
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n, seen=seen: store.take_lease("c", str(n), seen, now=1.0), range(16)))
        assert [lease for lease in won if lease] == [store.lease("c")]


def test_every_write_of_a_deposed_leader_is_refused_and_changes_nothing(store: Store) -> None:
    first = store.take_lease("c", "a", None, now=1.0)
    assert first is not None
    leader = store.fenced("c", first)
    study = leader.create_study(SPEC, now=1.0)
    assert leader.create_trials(study.id, [(0, {})], now=1.0) == 1
    assert store.take_lease("c", "b", first, now=2.0)
    before = store.last_event_id()
    for write in (
        lambda: leader.create_study(SPEC, now=3.0),
        lambda: leader.create_trials(study.id, [(1, {})], now=3.0),
        lambda: leader.move_study(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=3.0),
        lambda: leader.move_trial(1, TrialState.WAITING, 0, TrialState.CANCELLED, now=3.0),
        lambda: leader.record_cluster(RecordedCluster("ready", ""), now=3.0),
        lambda: leader.removals.remove_trial(1, limit=1),
    ):
        with pytest.raises(Deposed):
            write()
    assert store.last_event_id() == before
    assert store.create_trials(study.id, [(1, {})], now=3.0) == 1, "the store itself is not fenced"
