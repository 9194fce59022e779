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
    assert store.leases.get("c") is None
    first = store.leases.take("c", "a", None, now=1.0)
    assert first == store.leases.get("c") == Lease("a", term=1, renewals=0)
    assert store.leases.take("c", "b", None, now=1.0) is None
    renewed = store.leases.renew("c", first, now=2.0)
    assert renewed == store.leases.get("c") == Lease("a", term=1, renewals=1)
    assert store.leases.take("c", "b", first, now=3.0) is None, "it was renewed since it was seen"
    assert store.leases.take("c", "b", renewed, now=3.0) == Lease("b", term=2, renewals=0)
    assert store.leases.renew("c", renewed, now=4.0) is None, "it has lost it"
    assert store.leases.take("other", "a", None, now=5.0)


def test_a_released_lease_has_no_holder_but_keeps_its_epoch(store: Store) -> None:
    first = store.leases.take("c", "a", None, now=1.0)
    assert first is not None
    store.leases.release("c", replace(first, holder="b"))
    assert store.leases.get("c") == first
    assert store.leases.age("c") == pytest.approx(time.time() - 1.0, abs=60.0)
    store.leases.release("c", first)
    assert store.leases.get("c") == Lease("", term=1, renewals=0)
    assert store.leases.age("c") is None
    assert store.leases.take("c", "b", store.leases.get("c"), now=2.0) == Lease("b", term=2, renewals=0)


def test_of_many_who_want_a_lease_one_gets_it(store: Store) -> None:
    for _ in range(4):
        seen = store.leases.get("c")
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(lambda n, seen=seen: store.leases.take("c", str(n), seen, now=1.0), range(16)))
        assert [lease for lease in won if lease] == [store.leases.get("c")]


def test_every_write_of_a_deposed_leader_is_refused_and_changes_nothing(store: Store) -> None:
    first = store.leases.take("c", "a", None, now=1.0)
    assert first is not None
    leader = store.fenced("c", first)
    study = leader.studies.create(SPEC, now=1.0)
    assert leader.trials.create(study.id, [(0, {})], now=1.0) == 1
    assert store.leases.take("c", "b", first, now=2.0)
    before = store.events.last_id()
    for write in (
        lambda: leader.studies.create(SPEC, now=3.0),
        lambda: leader.trials.create(study.id, [(1, {})], now=3.0),
        lambda: leader.studies.move(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=3.0),
        lambda: leader.trials.move(1, TrialState.WAITING, 0, TrialState.CANCELLED, now=3.0),
        lambda: leader.cluster.record(RecordedCluster("ready", ""), now=3.0),
        lambda: leader.removals.remove_trial(1, limit=1),
    ):
        with pytest.raises(Deposed):
            write()
    assert store.events.last_id() == before
    assert store.trials.create(study.id, [(1, {})], now=3.0) == 1, "the store itself is not fenced"
