"""The loop of a controller process handles errors. The tests turn the clocks."""

from __future__ import annotations

import logging

import pytest

from scamp_service.errors import Refused, Unavailable
from scamp_service.processes.cycles import Cycles


class LeaderElection:
    """A part in the election, with the error of its next cycles."""

    def __init__(self) -> None:
        self.leads = False
        self.error: Exception | None = None
        self.num_cycles = 0

    def tick(self) -> None:
        self.num_cycles += 1
        if self.error:
            raise self.error


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.election = LeaderElection()
        self.cycles = Cycles(self.election, clock=lambda: self.now)  # type: ignore[arg-type]

    def live(self, seconds: float) -> int:
        """The number of cycles in this many seconds of a loop that turns ten times in each."""
        before = self.election.num_cycles
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.cycles.run()
        return self.election.num_cycles - before


@pytest.fixture
def world() -> World:
    return World()


def test_an_error_in_the_first_cycle_of_a_term_is_survived(world: World) -> None:
    world.election.leads, world.election.error = True, RuntimeError("PostgreSQL restarts in this second")
    world.live(1)
    world.election.error = None
    assert world.live(10) > 50


@pytest.mark.parametrize("error", [Unavailable("no database"), RuntimeError("a bug of ours")])
def test_a_process_that_never_led_ends_with_its_error(world: World, error: Exception) -> None:
    world.live(1)
    world.election.error = error
    with pytest.raises(type(error)):
        world.live(1)


def test_a_process_that_has_led_survives_errors_while_another_leads(world: World) -> None:
    world.election.leads = True
    world.live(1)
    world.election.leads, world.election.error = False, Unavailable("no database")
    world.live(60)


def test_a_refusal_ends_the_process(world: World) -> None:
    world.election.leads = True
    world.live(1)
    world.election.error = Refused("the token is wrong")
    with pytest.raises(Refused):
        world.live(1)


def test_pauses_between_failed_cycles_grow_to_seconds_and_end_with_the_first_success(world: World) -> None:
    world.election.leads = True
    assert world.live(10) == pytest.approx(100, abs=1)
    world.election.error = RuntimeError("a bug of ours")
    assert 5 <= world.live(10) <= 8
    assert 18 <= world.live(100) <= 21
    world.election.error = None
    world.live(5)
    assert world.live(10) == pytest.approx(100, abs=1)


@pytest.mark.full
def test_an_error_that_stays_the_same_is_logged_once_a_minute_with_how_often_it_happened(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.election.leads, world.election.error = True, RuntimeError("a bug of ours")
    with caplog.at_level(logging.WARNING):
        num_cycles = world.live(3600)
    assert 59 <= len(caplog.records) <= 61
    counted = [int(word) for record in caplog.records for word in record.getMessage().split() if word.isdigit()]
    assert num_cycles - 12 <= 1 + sum(counted) <= num_cycles, "each is counted once, but for those of the last minute"
    assert all(record.exc_info for record in caplog.records), "where it happened is logged"


def test_another_error_is_logged_at_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.election.leads, world.election.error = True, Unavailable("no database")
    with caplog.at_level(logging.WARNING):
        world.live(20)
        world.election.error = RuntimeError("a bug of ours")
        world.live(20)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "no database",
        "the controller failed in a cycle",
    ]
