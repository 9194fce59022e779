"""A gang that the database does not know is stopped."""

from __future__ import annotations

from scamp_service.control.decide.effects import StopGang
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of


def test_a_gang_that_the_database_does_not_know_is_stopped() -> None:
    assert effects_of(trials=[], studies={}, gangs={"7/1": ALIVE}) == [
        StopGang("7/1", "this gang belongs to no open attempt")
    ]
