from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workloads.training.retention import KEEP, outdated

STEPS = st.sets(st.integers(1, 30), max_size=12)


def test_all_but_the_last_two_are_outdated() -> None:
    assert outdated([10, 20, 30, 40], 40, ()) == [10, 20]


@given(STEPS, st.integers(1, 30), STEPS)
def test_what_is_needed_what_is_newest_and_what_comes_later_is_never_deleted(
    steps: set[int], newest: int, needed: set[int]
) -> None:
    gone = set(outdated(steps, newest, needed))
    assert not gone & needed and all(step <= newest for step in gone)
    assert (
        sorted(step for step in steps if step <= newest)[-KEEP:]
        == sorted(step for step in steps - gone if step <= newest)[-KEEP:]
    )


@given(st.sets(st.integers(1, 30)), STEPS)
def test_no_more_than_two_and_those_needed_are_kept(steps: set[int], needed: set[int]) -> None:
    kept = steps - set(outdated(steps, 30, needed))
    assert len(kept) <= KEEP + len(needed)
