"""Step times are corrected by trusted trials of the same kind, and the correction converges."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.axes import Spread
from estimators.learned_seconds import LEAST_TRIALS, SlowDown, factor_for, learn_slow_downs, way_kind
from estimators.learning import Ending, PastAttempt
from estimators.model import Layout

PAIR, HALVES, FOUR = Layout(dp_shard=2), Layout(tp=2), Layout(dp_shard=4)


def run(trial: int, ratio: float, layout: Layout = PAIR, **changes: object) -> PastAttempt:
    """One that was predicted to take 2 seconds, and took ``ratio`` times as many."""
    usual = PastAttempt(trial, layout, ("virtual",), 0, 0, 0, 9, Ending.FINISHED)
    usual_run = replace(usual, predicted_step_seconds=2.0, measured_step_seconds=2.0 * ratio)
    return replace(usual_run, **changes)  # type: ignore[arg-type]


def factor(past: list[PastAttempt], kind: str = "FSDP") -> float | None:
    slow_down = learn_slow_downs(past, "virtual").get(kind)
    return slow_down.factor if slow_down else None


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        (Spread(), "one rank"),
        (Spread(recompute=True), "one rank"),
        (Spread(co_shard=2), "one rank"),
        (Spread(dp_shard=4), "FSDP"),
        (Spread(dp_shard=2, dp_replicate=2), "FSDP"),
        (Spread(dp_replicate=2, zero1=True), "ZeRO-1"),
        (Spread(dp_shard=2, tp=2), "tensor parallel"),
        (Spread(dp_shard=2, pp=2), "pipeline"),
        (Spread(dp_shard=2, spatial=2), "space"),
    ],
    ids=str,
)
def test_a_way_is_of_the_kind_that_its_error_depends_on(way: Spread, kind: str) -> None:
    assert way_kind(way) == kind


def test_three_trials_are_trusted_and_two_are_not() -> None:
    past = [run(number, 1.5) for number in range(LEAST_TRIALS)]
    assert learn_slow_downs(past, "virtual") == {"FSDP": SlowDown(1.5, 3)}
    assert learn_slow_downs(past[1:], "virtual") == {}
    assert learn_slow_downs([*past[1:], replace(past[1], layout=FOUR)], "virtual") == {}, "attempts of two trials"


def test_nothing_is_learned_from_what_was_not_timed_or_not_predicted() -> None:
    past = [run(number, 1.5) for number in range(LEAST_TRIALS)]
    for missing in ({"measured_step_seconds": None}, {"predicted_step_seconds": None}):
        assert factor([replace(past[0], **missing), *past[1:]]) is None  # type: ignore[arg-type]


def test_device_kinds_are_kept_apart() -> None:
    past = [run(number, 1.5, device_kinds=("H200",)) for number in range(9)]
    mixed = [run(number, 9.0, device_kinds=("H200", "L4")) for number in range(10, 19)]
    assert learn_slow_downs([*past, *mixed], "L4") == {}
    assert learn_slow_downs([*past, *mixed], "H200") == {"FSDP": SlowDown(1.5, 9)}


def test_the_last_attempt_of_a_trial_counts_for_it() -> None:
    assert factor([run(1, 9.0), run(1, 2.0), run(2, 2.0), run(3, 2.0), run(2, 2.0)]) == 2.0


@pytest.mark.full
@given(
    st.floats(0.2, 20.0),
    st.lists(st.floats(-0.05, 0.05), min_size=20, max_size=60),
    st.lists(st.floats(0.01, 100.0), max_size=9),
)
def test_learning_from_its_own_corrections_converges_to_the_true_factor(
    true: float, noise: list[float], wild: list[float]
) -> None:
    """Each trial is predicted with what was learned from the ones before it; a few ran beside something wild."""
    past: list[PastAttempt] = []
    for number, off in enumerate(noise):
        learned_factor = factor(past) or 1.0
        past.append(run(number, 1.0, predicted_step_seconds=2.0 * learned_factor, step_factor=learned_factor,
                        measured_step_seconds=2.0 * true * (1 + off)))  # fmt: skip
    assert factor(past) == pytest.approx(true * (1 + median(noise)))
    past += [run(100 + number, ratio) for number, ratio in enumerate(wild)]
    learned = factor(past)
    assert learned is not None and 0.94 * true <= learned <= 1.06 * true


def test_a_gang_that_fills_its_host_and_one_beside_others_learn_the_same_factor() -> None:
    """On two cores ranks of a gang of four were expected to take twice as long, those of a pair only beside others."""
    alone = [run(number, 1.0, FOUR) for number in range(3)]
    beside = [run(number, 2.0, PAIR) for number in range(3, 6)]
    shared = learn_slow_downs([*alone, *beside], "virtual", lambda num_ranks: max(1.0, num_ranks / 2))
    assert shared == {"FSDP": SlowDown(2.0, 6)}


def test_a_kind_that_never_ran_counts_as_the_slowest_known_one() -> None:
    learned = {"FSDP": SlowDown(1.2, 3), "pipeline": SlowDown(1.8, 4)}
    assert factor_for(PAIR, learned) == 1.2
    assert factor_for(HALVES, learned) == 1.8
    assert factor_for(HALVES, {}) == 1.0
