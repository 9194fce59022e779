"""A gang that the database does not know is stopped."""

from __future__ import annotations

from scamp_service.control.decide import effects as d
from tests.scamp_service.control.decide.snapshots import ALIVE, effects


def test_a_gang_that_the_database_does_not_know_is_stopped() -> None:
    assert effects(trials=[], studies={}, gangs={"7/1": ALIVE}) == [
        d.StopGang("7/1", "this gang belongs to no open attempt")
    ]
