"""Checkpoints that anybody may need are kept, and others are outdated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.retention import KEEP, outdated

STEPS = st.sets(st.builds(CheckpointName, st.just(1), st.integers(1, 30)), max_size=12)
NEEDED = st.sets(st.builds(CheckpointName, st.integers(1, 2), st.integers(1, 30)), max_size=12)


def at(*steps: int) -> list[CheckpointName]:
    return [CheckpointName(1, step) for step in steps]


def test_all_but_the_last_two_are_outdated() -> None:
    assert outdated(at(10, 20, 30, 40), CheckpointName(1, 40), ()) == at(10, 20)


def test_what_others_need_is_kept_and_what_they_need_of_another_trial_is_not() -> None:
    needed = [*at(10), CheckpointName(2, 20)]
    assert outdated(at(10, 20, 30, 40), CheckpointName(1, 40), needed) == at(20)


@given(STEPS, st.integers(1, 30), NEEDED)
def test_what_is_needed_what_is_newest_and_what_comes_later_is_never_deleted(
    written: set[CheckpointName], newest: int, needed: set[CheckpointName]
) -> None:
    gone = set(outdated(written, CheckpointName(1, newest), needed))
    assert not gone & needed and all(name.step <= newest for name in gone)
    assert (
        sorted(name for name in written if name.step <= newest)[-KEEP:]
        == sorted(name for name in written - gone if name.step <= newest)[-KEEP:]
    )


@given(STEPS, NEEDED)
def test_no_more_than_two_and_those_needed_are_kept(written: set[CheckpointName], needed: set[CheckpointName]) -> None:
    kept = written - set(outdated(written, CheckpointName(1, 30), needed))
    assert len(kept) <= KEEP + len(needed)
