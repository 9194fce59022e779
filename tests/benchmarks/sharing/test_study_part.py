"""The slots of a pack, counted."""

from __future__ import annotations

import math

import pytest

from benchmarks.sharing.study_part import MEMBERS, slots


def test_a_slot_is_idle_between_the_end_of_a_trial_and_the_next_one() -> None:
    first = [("1/1", 0.0, 10.0)] + [("1/1", 0.0, 30.0)] * (MEMBERS - 1)
    refills, idle = slots([*first, ("1/1", 14.0, 20.0), ("1/1", 20.0, 40.0)])
    assert refills == 2
    assert idle == pytest.approx(4 / (20 * MEMBERS))


def test_a_pack_that_is_never_full_has_no_idle_slots() -> None:
    assert slots([("1/1", 0.0, 10.0), ("1/1", 2.0, math.inf)]) == (0, 0.0)
