"""Measured failures and peaks teach a family what its next attempts need, and not more than that."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators import learning
from estimators.learning import (
    NOISE_BYTES,
    PATIENCE_TRIALS,
    Ending,
    Learned,
    PastAttempt,
    evaluation_need,
    upper_bound,
)
from estimators.model import MIB, EvaluationExtra, Layout

KIND = {"virtual"}
SINGLE, PAIR = Layout(), Layout(dp_shard=2)
NOTHING = Learned()


def learn(past: Iterable[PastAttempt], device_kinds: Collection[str]) -> Learned:
    """The bytes learned for one layout from its runs."""
    learned_by_layout = learning.learn(past, device_kinds)
    assert set(learned_by_layout) <= {SINGLE}
    return learned_by_layout.get(SINGLE, NOTHING)


def run(trial: int, ending: Ending = Ending.FINISHED, **changes: object) -> PastAttempt:
    """A run with 20 MiB traced and measured, and a margin of 6 MiB."""
    usual = PastAttempt(trial, SINGLE, ("virtual",), 20 * MIB, 0, 26 * MIB, 20 * MIB, ending)
    return replace(usual, **changes)  # type: ignore[arg-type]


def failed(trial: int, need_mib: int = 24) -> PastAttempt:
    """A run from which ``need_mib`` are learned: a quarter of the trace is added to the lower bound."""
    return run(trial, Ending.OUT_OF_MEMORY, measured_bytes=(20 + need_mib - 5) * MIB)


# The three attempts of one trial of examples/digits.yaml with spike_mib 24, spike_step 6, as ranks of Ray ran them
FIRST = PastAttempt(5, SINGLE, ("virtual",), 22996868, 0, 28 * MIB, 29483008, Ending.OUT_OF_MEMORY)
SECOND = PastAttempt(5, SINGLE, ("virtual",), 22996868, 12235357, 40 * MIB, 42090496, Ending.OUT_OF_MEMORY)
THIRD = PastAttempt(5, SINGLE, ("virtual",), 22996868, 24842845, 53 * MIB, 22997380, Ending.OTHER)


def test_a_measured_failure_teaches_its_family_what_its_own_next_attempt_gets() -> None:
    assert learn([FIRST], KIND).extra_bytes == SECOND.extra_bytes
    assert learn([FIRST, SECOND], KIND).extra_bytes == THIRD.extra_bytes
    learned = learn([FIRST, SECOND, THIRD], KIND)
    assert learned == Learned(SINGLE, THIRD.extra_bytes, num_trials=1, num_out_of_memory=1)
    assert str(learned) == "23.7 MiB learned from 1 trial of this family with layout single, 1 of them out of memory"


def test_measured_trials_that_were_predicted_leave_the_constant_margin() -> None:
    """Predicted and measured bytes of five honest trials of the demo: the trace is right to 512 bytes."""
    pairs = [(22996868, 22997380), (67442480, 67442992), (66957216, 66957728), (1744420, 1744932), (84346656, 84347168)]
    past = [run(i, Ending.OTHER, traced_bytes=a, measured_bytes=b) for i, (a, b) in enumerate(pairs)]
    assert learn(past, KIND) == Learned(num_trials=5)


def test_nothing_is_learned_of_nothing() -> None:
    assert learn([], KIND) == learn([run(1)], {"H200"}) == learn([run(1)], ()) == NOTHING
    unknown = run(1, Ending.OTHER, measured_bytes=0)
    assert learn([unknown], KIND) == NOTHING


def test_tensors_that_the_trace_missed_are_added_whatever_came_of_the_trial() -> None:
    for ending in (Ending.FINISHED, Ending.OTHER):
        learned = learn([run(1, ending, measured_bytes=23 * MIB)], KIND)
        assert learned == Learned(SINGLE, 3 * MIB, num_trials=1)


# Another trial of that kind: healed, it went on from a checkpoint, so that the step it measured was the spiking one
def test_one_measured_exception_is_reserved_for_and_not_predicted() -> None:
    rare = PastAttempt(2, SINGLE, ("virtual",), 9961472, 18979225, 34 * MIB, 35127808, Ending.FINISHED)
    usual = [run(number, extra_bytes=rare.measured_bytes - rare.traced_bytes) for number in (3, 4, 5)]
    for count in range(4):
        learned = learn([rare, *usual[:count]], KIND)
        assert (learned.extra_bytes, learned.bias_bytes) == (rare.measured_bytes - rare.traced_bytes, 0)


def test_what_half_of_three_trials_have_measured_is_predicted() -> None:
    past = [run(number, measured_bytes=(20 + more) * MIB) for number, more in enumerate((5, 3, 9))]
    assert [learn(past[:count], KIND).bias_bytes for count in (1, 2, 3)] == [0, 0, 5 * MIB]
    assert learn(past, KIND).extra_bytes == 9 * MIB


def test_fewer_tensors_than_traced_in_one_early_step_lower_nothing() -> None:
    assert learn([run(n, measured_bytes=12 * MIB) for n in range(50)], KIND).extra_bytes == 0


def test_tensors_within_the_noise_change_no_reservation() -> None:
    assert learn([run(1, measured_bytes=20 * MIB + NOISE_BYTES)], KIND).extra_bytes == 0
    assert learn([run(1, measured_bytes=20 * MIB + NOISE_BYTES + 1)], KIND).extra_bytes == NOISE_BYTES + 1


def test_what_was_held_at_a_failure_is_no_exact_measurement() -> None:
    past = [failed(number) for number in range(3)]
    assert learn(past, KIND) == Learned(SINGLE, 24 * MIB, 0, num_trials=3, num_out_of_memory=3)


def test_one_failure_teaches_at_once_and_many_that_finish_take_it_for_an_accident() -> None:
    past = [failed(0)]
    for number in range(1, 19):
        asked_mib = 24 if number <= PATIENCE_TRIALS else 12
        assert learn(past, KIND).extra_bytes == asked_mib * MIB, f"{number - 1} finished within the margin"
        past.append(run(number))
    assert learn(past, KIND).extra_bytes == 0
    assert learn([*past, failed(99)], KIND).extra_bytes == 24 * MIB, "2 of 20 are too many"


def finished(count: int, extra_mib: int, first: int = 100) -> list[PastAttempt]:
    return [run(number, extra_bytes=extra_mib * MIB) for number in range(first, first + count)]


def test_what_a_failure_asks_for_is_halved_whenever_enough_trials_have_finished() -> None:
    asked_mibs = [
        learn([failed(0), *finished(count, 24)], KIND).extra_bytes / MIB for count in range(4 * PATIENCE_TRIALS)
    ]
    assert [asked_mibs[count] for count in range(0, 4 * PATIENCE_TRIALS, PATIENCE_TRIALS)] == [24, 12, 6, 3]
    assert asked_mibs[PATIENCE_TRIALS - 1] == 24 and sorted(asked_mibs, reverse=True) == asked_mibs
    assert "halved 2 × as others finished" in str(learn([failed(0), *finished(2 * PATIENCE_TRIALS, 24)], KIND))


def test_trials_that_were_only_evaluated_do_not_show_that_training_fits() -> None:
    evaluated = [replace(past_run, measured_bytes=0) for past_run in finished(2 * PATIENCE_TRIALS, 24)]
    assert learn([failed(0), *evaluated], KIND) == learn([failed(0)], KIND)


def test_a_halved_correction_that_fails_is_restored_and_halved_later_the_next_time() -> None:
    past = [failed(0), *finished(PATIENCE_TRIALS, 24)]
    assert learn(past, KIND).extra_bytes == 12 * MIB
    past.append(failed(1))
    assert learn(past, KIND).extra_bytes == 24 * MIB
    past += finished(PATIENCE_TRIALS - 1, 24, first=200)
    assert learn(past, KIND).extra_bytes == 24 * MIB
    assert learn([*past, run(300, extra_bytes=24 * MIB)], KIND).extra_bytes == 12 * MIB


def test_finishing_with_less_shows_that_less_is_enough() -> None:
    with_less = [failed(0), failed(1), *finished(28, 10)]
    assert learn(with_less, KIND).extra_bytes == 10 * MIB, "ten MiB were enough for 28 of 30"


def test_a_failure_that_measured_tensors_explain_counts_as_these() -> None:
    """The quarter of the trace that the next attempt got was a guess: its measurement is exact."""
    measured = run(0, measured_bytes=29 * MIB, extra_bytes=24 * MIB)
    assert learn([failed(0, 15), measured], KIND).extra_bytes == 9 * MIB
    assert learn([failed(0), measured], KIND).extra_bytes == 24 * MIB, "39 MiB were held: 29 and a margin are less"
    within = replace(failed(0, 15), extra_bytes=10 * MIB, reserved_bytes=36 * MIB)
    assert learn([within, measured], KIND).extra_bytes == 21 * MIB, "there was room for 30 MiB of tensors"


def test_what_was_reserved_is_not_what_was_needed() -> None:
    raised = finished(15, 40)
    assert learn([failed(0), *raised], KIND).extra_bytes == 24 * MIB
    assert learn(raised, KIND).extra_bytes == 0, "the failure is among the newest trials no more"


def test_a_layout_learns_from_its_own_runs_only() -> None:
    past = [
        replace(failed(0), layout=PAIR),
        run(1),
        replace(run(2, measured_bytes=23 * MIB), layout=Layout(recompute=True)),
    ]
    learned_by_layout = learning.learn(past, KIND)
    assert {layout: learned.extra_bytes // MIB for layout, learned in learned_by_layout.items()} == {
        PAIR: 24,
        SINGLE: 0,
        Layout(recompute=True): 3,
    }
    assert "trial of this family with layout fsdp2, 1 of them out of memory" in str(learned_by_layout[PAIR])


def test_stopping_early_does_not_show_that_the_memory_was_enough() -> None:
    stopped = [run(number, Ending.OTHER) for number in range(1, 90)]
    assert learn([failed(0), *stopped], KIND).extra_bytes == 24 * MIB


def test_the_kind_of_device_that_asks_for_most_decides_and_a_mixed_gang_tells_of_both() -> None:
    past = [replace(failed(1, 12), device_kinds=("a",)), replace(failed(2, 30), device_kinds=("b",))]
    assert learn(past, {"a"}).extra_bytes == 12 * MIB
    assert learn(past, {"a", "b"}).extra_bytes == learn(past, {"b"}).extra_bytes == 30 * MIB
    assert learn([replace(failed(1), device_kinds=("a", "b"))], {"b"}).extra_bytes == 24 * MIB


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (8, 8), (9, 9), (18, 18), (19, 18), (99, 90), (100, 91)])
def test_the_bound_is_the_rank_of_conformal_prediction(count: int, rank: int) -> None:
    assert upper_bound(range(1, count + 1)) == rank


def test_the_bound_covers_nine_of_ten_whatever_the_distribution() -> None:
    """Over 4,000 draws of 30 and one more the share covered has a standard error of half a percent."""
    rng = random.Random(0)
    draws = {
        "exponential": lambda: int(rng.expovariate(1e-6)),
        "rare and large": lambda: 10**9 * (rng.random() < 0.3) + rng.randrange(1000),
    }
    for name, draw in draws.items():
        covered = sum(draw() <= upper_bound([draw() for _ in range(30)]) for _ in range(4000)) / 4000
        assert 0.89 < covered < 0.95, f"{name}: {covered}"


MIBS = st.integers(0, 60)
RUNS = st.builds(
    lambda trial, ending, traced, extra, measured: PastAttempt(
        trial, SINGLE, ("virtual",), traced * MIB, extra * MIB, (traced + extra + 5) * MIB, measured * MIB, ending
    ),
    st.integers(0, 12),
    st.sampled_from([Ending.FINISHED, Ending.OUT_OF_MEMORY, Ending.OTHER]),
    MIBS,
    MIBS,
    MIBS,
)
PASTS = st.lists(RUNS, max_size=40)


def needs(past: list[PastAttempt]) -> list[int]:
    """Bytes that each trial needed beyond its trace, besides its margin of 5 MiB, exactly or at least."""
    seen: dict[int, int] = {}
    for past_run in past:
        is_failure = past_run.ending is Ending.OUT_OF_MEMORY
        floor = (
            max(past_run.measured_bytes, past_run.reserved_bytes) - 5 * MIB if is_failure else past_run.measured_bytes
        )
        seen[past_run.trial_id] = max(seen.get(past_run.trial_id, 0), floor - past_run.traced_bytes)
    return list(seen.values())


@given(PASTS)
def test_few_trials_are_covered_all_and_many_but_for_a_tenth(past: list[PastAttempt]) -> None:
    learned = learn(past, KIND)
    beyond = [need for need in needs(past) if need > max(learned.extra_bytes, NOISE_BYTES)]
    assert len(beyond) <= (learned.num_trials + 1) // 10 * 2, "each of the two bounds may leave a tenth out"
    if learned.num_trials < 9:
        assert beyond == []


@given(PASTS, st.randoms(use_true_random=False))
def test_the_order_of_the_past_does_not_matter(past: list[PastAttempt], rng: random.Random) -> None:
    shuffled = list(past)
    rng.shuffle(shuffled)
    assert learn(shuffled, KIND) == learn(past, KIND)


@given(PASTS)
def test_nothing_is_ever_taken_off_the_margin(past: list[PastAttempt]) -> None:
    learned = learn(past, KIND)
    assert 0 <= learned.bias_bytes <= learned.extra_bytes


@given(PASTS, MIBS)
def test_failures_that_ask_for_more_never_lower_the_bound(past: list[PastAttempt], more: int) -> None:
    needed_mib = (
        max((need_of(past_run) for past_run in past if past_run.ending is Ending.OUT_OF_MEMORY), default=0) // MIB + 1
    )
    assert learn([*past, failed(99, needed_mib + more)], KIND).extra_bytes >= learn(past, KIND).extra_bytes


@given(RUNS)
def test_the_next_attempt_gets_more_than_the_one_that_failed(past_attempt: PastAttempt) -> None:
    assert past_attempt.traced_bytes + need_of(past_attempt) >= past_attempt.reserved_bytes
    assert learn([replace(past_attempt, ending=Ending.OUT_OF_MEMORY)], KIND).extra_bytes == need_of(past_attempt)


def need_of(attempt: PastAttempt) -> int:
    return attempt.asked_bytes


def evaluating(trial: int, batch: int, held_mib: int) -> PastAttempt:
    """An evaluation of 20 MiB that ran out of memory."""
    ending = Ending.EVALUATION_OUT_OF_MEMORY
    measured = {"measured_bytes": held_mib * MIB, "evaluation_bytes": 20 * MIB, "evaluation_batch": batch}
    return run(trial, ending, **measured)


def test_an_evaluation_that_failed_says_nothing_about_steps() -> None:
    failures = [evaluating(1, 8, 47), evaluating(2, 8, 31)]
    assert learn(failures, KIND) == NOTHING


def test_what_an_evaluation_lacked_grows_with_its_micro_batch_until_a_smaller_one_fails_too() -> None:
    first, other, smaller = evaluating(1, 8, 47), evaluating(2, 16, 47), evaluating(1, 2, 40)
    assert evaluation_need([run(1), failed(2)]) == EvaluationExtra()
    assert evaluation_need([first, first, other]) == EvaluationExtra(bytes_per_sample=(27 + 5) * MIB // 8)
    assert evaluation_need([first, other, smaller]) == EvaluationExtra(32 * MIB // 16, fixed_bytes=32 * MIB)
