"""Errors that are contained are kept, counted and passed to the next controller."""

from __future__ import annotations

from scamp_service.control.contained import MOST, MOST_CHARACTERS, ContainedErrors


def test_only_the_last_errors_are_kept_and_one_that_comes_again_is_the_newest() -> None:
    errors = ContainedErrors()
    for number in range(MOST + 3):
        errors.add(f"do {number}", ValueError("x" * 2 * MOST_CHARACTERS), 1, now=float(number))
    errors.add("do 5", ValueError("x" * 2 * MOST_CHARACTERS), 1, now=99.0)
    kept = errors.recent
    assert [error.doing for error in kept] == ["do 3", "do 4", *(f"do {n}" for n in range(6, MOST + 3)), "do 5"]
    assert (kept[-1].first_at, kept[-1].last_at, kept[-1].times) == (5.0, 99.0, 2)
    assert {len(error.error) for error in kept} == {MOST_CHARACTERS}


def test_the_same_words_about_another_study_are_another_error() -> None:
    errors = ContainedErrors()
    for study_id in (1, 2):
        errors.add("propose 4 candidates", ValueError("no"), study_id, now=1.0)
    assert [(error.study_id, error.times) for error in errors.recent] == [(1, 1), (2, 1)]


def test_the_next_controller_knows_the_errors_of_the_one_before() -> None:
    first = ContainedErrors()
    first.add("start attempt 1/1", OSError("no"), 1, now=1.0)
    second = ContainedErrors(first.recent)
    second.add("start attempt 1/1", OSError("no"), 1, now=2.0)
    assert [error.times for error in second.recent] == [2]
