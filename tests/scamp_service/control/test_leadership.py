"""One controller leads; the tests turn the clocks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from scamp_service.control.leadership import FAILED_BEGINNINGS, LeaderElection, Leadership, own_name, process_is_gone
from scamp_service.errors import Deposed
from scamp_service.lifecycle import CONTROLLER_LEASE
from scamp_service.model import Lease
from scamp_service.store.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store("sqlite://")
    yield store
    store.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def candidate(store: Store, name: str, clock: Clock, *, gone: str = "") -> Leadership:
    return Leadership(
        store.leases, 10.0, holder=name, clock=clock, wall_clock=store.now, is_gone=lambda holder: holder == gone
    )


def test_a_standby_takes_the_lease_when_it_has_seen_no_renewal_for_long_enough(store: Store) -> None:
    clock = Clock()
    leader, standby = candidate(store, "a", clock), candidate(store, "b", clock)
    assert leader.keep() == Lease("a", 1, 0)
    assert standby.keep() is None
    for clock.now in range(102, 140, 2):
        leader.renew()
        assert standby.keep() is None
    clock.now = 147
    assert standby.keep() is None
    clock.now = 148.1
    assert standby.keep() == Lease("b", 2, 0)
    assert leader.keep() is None, "the first one sees that it was replaced"


def test_clocks_are_never_compared(store: Store) -> None:
    early, late = Clock(), Clock()
    late.now = 1e9
    leader, standby = candidate(store, "a", early), candidate(store, "b", late)
    assert leader.keep()
    assert not standby.keep()
    late.now += 9
    early.now = 102
    leader.renew()
    assert not standby.keep()
    late.now += 9
    assert not standby.keep()


def test_a_standby_does_not_wait_for_a_holder_that_is_gone_or_has_resigned(store: Store) -> None:
    clock = Clock()
    first = candidate(store, "a", clock)
    assert first.keep()
    second = candidate(store, "b", clock, gone="a")
    assert second.keep() == Lease("b", 2, 0)
    second.resign()
    assert candidate(store, "c", clock).keep() == Lease("c", 3, 0)


def test_a_leader_is_certain_only_as_long_as_nobody_can_have_waited_for_it(store: Store) -> None:
    clock = Clock()
    leader = candidate(store, "a", clock)
    assert not leader.is_certain()
    leader.keep()
    clock.now += 9.9
    assert leader.is_certain()
    clock.now += 0.1
    assert not leader.is_certain()
    leader.keep()
    assert leader.is_certain()


def test_renewing_never_takes_a_lease(store: Store) -> None:
    clock = Clock()
    candidate(store, "a", clock).renew()
    assert store.leases.get(CONTROLLER_LEASE) is None


@pytest.mark.full
def test_the_name_of_a_process_says_whether_it_is_gone() -> None:
    assert not process_is_gone(own_name())
    code = "from scamp_service.control.leadership import own_name; print(own_name())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert process_is_gone(other)
    host, kernel, _, started, end = other.split(" ")
    assert process_is_gone(f"{host} {kernel} {os.getpid()} {started} {end}"), "its id belongs to another process now"
    assert not process_is_gone(f"{host} elsewhere {os.getpid()} {started} {end}"), "nobody can see it from here"
    assert not process_is_gone("") and not process_is_gone("a name of another kind")


@dataclass
class Told:
    """A leader that notes what happens to it."""

    term: int
    calls: list[str] = field(default_factory=list)
    deposed: bool = False

    def tick(self) -> None:
        if self.deposed:
            raise Deposed("another")
        self.calls.append("tick")

    def close(self) -> None:
        self.calls.append("close")

    def end(self) -> None:
        self.calls.append("end")


def test_each_term_begins_anew_and_is_let_go_when_another_takes_over(store: Store) -> None:
    clock, leaders = Clock(), list[Told]()

    def begin(lease: Lease) -> Told:
        leaders.append(Told(lease.term))
        return leaders[-1]

    election = LeaderElection(candidate(store, "a", clock), begin)
    election.tick()
    election.tick()
    assert [(leader.term, leader.calls) for leader in leaders] == [(1, ["tick", "tick"])]
    assert election.leads
    seen = store.leases.get(CONTROLLER_LEASE)
    other = store.leases.take(CONTROLLER_LEASE, "b", seen, now=1.0)
    assert other is not None
    clock.now += 2
    election.tick()
    assert leaders[0].calls == ["tick", "tick", "close"]
    assert not election.leads
    store.leases.release(CONTROLLER_LEASE, other)
    election.tick()
    assert leaders[1].term == 3 and leaders[1].calls == ["tick"]
    election.end()
    assert leaders[1].calls == ["tick", "end"]


def test_a_leader_that_is_told_of_another_leader_is_let_go_at_once(store: Store) -> None:
    leader = Told(1)
    election = LeaderElection(candidate(store, "a", Clock()), lambda lease: leader)
    election.tick()
    leader.deposed = True
    election.tick()
    assert leader.calls == ["tick", "close"]
    assert not election.leads


def test_a_controller_that_cannot_begin_lets_another_one_lead(store: Store) -> None:
    clock, works = Clock(), False

    def begin(lease: Lease) -> Told:
        if not works:
            raise RuntimeError("Ray's GCS does not answer")
        return Told(lease.term)

    election = LeaderElection(candidate(store, "a", clock), begin)
    for _ in range(FAILED_BEGINNINGS - 1):
        with pytest.raises(RuntimeError):
            election.tick()
        assert store.leases.get(CONTROLLER_LEASE) == Lease("a", 1, 0), "it tries again"
    with pytest.raises(RuntimeError):
        election.tick()
    election.tick()
    assert store.leases.get(CONTROLLER_LEASE) == Lease("", 1, 0) and not election.leads, "it is another one's turn"
    works, clock.now = True, clock.now + 10.0
    election.tick()
    assert store.leases.get(CONTROLLER_LEASE) == Lease("a", 2, 0) and election.leads, "there is no other"
    clock.now += 2
    election.close()
    works = False
    with pytest.raises(RuntimeError):
        election.tick()
    assert candidate(store, "b", clock).keep() is None, "beginnings that failed before one that did not do not count"
