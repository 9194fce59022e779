"""Trials that pause at a rung, continue once they are among the best there, and end when nothing else is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scamp_service.control.decide.effects import Begin, Effect, MoveTrial, Propose, Repeat
from scamp_service.control.stopping.rung import Rung
from scamp_service.control.stopping.successive_halving import SuccessiveHalving
from scamp_service.lifecycle import Origin, Outcome, StudyState, TrialState, WaitsFor
from scamp_service.model import Trial
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of, only_move, study
from tests.scamp_service.control.stopping.rungs import rung_of
from tests.values import attempt, trial

PROMOTES = SuccessiveHalving((10, 30), 3, promote=True)


def rules(**changes: Any) -> Any:
    return {1: study(stopping=PROMOTES, **changes)}


def paused(values: Sequence[float], step: int = 10, first: int = 0) -> list[Trial]:
    return [
        trial(id=number, number=number, state=TrialState.PAUSED, step=step, value=value, judged_step=step // 3)
        for number, value in enumerate(values, first)
    ]


def rungs(*trials: Trial) -> dict[int, dict[int, Rung]]:
    """Reports of the trials at the steps where they are."""
    reported = {step: rung_of(study().objectives.leading) for step in PROMOTES.rungs}
    for row in trials:
        assert row.value is not None
        reported[row.step].report(row.number, (row.value,))
    return {1: reported}


def moves(all_effects: list[Effect]) -> dict[int, TrialState]:
    return {effect.trial.number: effect.to for effect in all_effects if isinstance(effect, MoveTrial)}


def test_an_attempt_trains_to_the_next_rung_and_then_its_trial_is_paused() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0)
    (begun,) = [e for e in effects_of(trials=[queued], studies=rules()) if isinstance(e, Begin)]
    assert begun.order.until == 10
    running = trial(step=10, value=0.5)
    state = {"studies": rules(), "rungs": rungs(running)}
    assert effects_of(trials=[running], attempts=[attempt()], gangs={"1/1": ALIVE}, **state) == []
    decided = effects_of(trials=[running], attempts=[attempt(outcome=Outcome.DONE)], **state)
    assert moves(decided) == {0: TrialState.PAUSED}
    assert only_move(decided).waits_for is WaitsFor.COMPARISON
    again = trial(state=TrialState.QUEUED, step=30, judged_step=30, value=0.5)
    (begun,) = [e for e in effects_of(trials=[again], studies=rules()) if isinstance(e, Begin)]
    assert begun.order.until is None


def test_the_best_third_continues_and_the_others_wait_as_long_as_there_are_others() -> None:
    trials = paused([0.1, 0.5, 0.3, 0.2, 0.4, 0.6])
    running = trial(id=9, number=9)
    state: dict[str, Any] = {"attempts": [attempt(trial_id=9)], "gangs": {"9/1": ALIVE}}
    decided = effects_of(trials=[*trials, running], studies=rules(), rungs=rungs(*trials), **state)
    assert moves(decided) == {5: TrialState.QUEUED, 1: TrialState.QUEUED}
    (first, _) = [e for e in decided if isinstance(e, MoveTrial)]
    assert first.trial.number == 5 and first.changes["judged_step"] == 10


def test_one_that_waits_says_how_it_compares_once_it_has_been_compared() -> None:
    trials = paused([0.1, 0.5])
    trials[0] = replace(trials[0], waits_for=WaitsFor.COMPARISON)
    trials[1] = replace(trials[1], waits_for=WaitsFor.PROMOTION, reason="until it is compared with the others there")
    running = trial(id=9, number=9)
    state: dict[str, Any] = {"attempts": [attempt(trial_id=9)], "gangs": {"9/1": ALIVE}}
    (said,) = effects_of(trials=[*trials, running], studies=rules(), rungs=rungs(*trials), **state)
    assert isinstance(said, MoveTrial)
    assert said.trial.number == 0
    assert "number 2 of 2" in said.reason
    assert (said.to, said.waits_for) == (TrialState.PAUSED, WaitsFor.PROMOTION)


def test_those_that_never_continue_are_pruned_when_nothing_else_is_left() -> None:
    trials = paused([0.1, 0.5])
    decided = effects_of(trials=trials, studies=rules(), rungs=rungs(*trials))
    assert moves(decided) == {0: TrialState.PRUNED, 1: TrialState.QUEUED}
    last = paused([0.1])
    assert moves(effects_of(trials=last, studies=rules(), rungs=rungs(*last))) == {0: TrialState.QUEUED}


def test_whoever_has_trained_longest_continues_first_and_takes_the_place_of_new_candidates() -> None:
    low, high = paused([0.1 * n for n in range(15)]), paused([0.9, 0.8, 0.7], step=30, first=15)
    reported = rungs(*low, *high)
    for row in high:
        reported[1][10].report(row.number, (0.0,))
    wanting = rules(trials=30, num_trials=18)
    decided = effects_of(trials=[*low, *high], studies=wanting, rungs=reported)
    assert list(moves(decided)) == [15, 14, 13, 12]
    assert not [effect for effect in decided if isinstance(effect, Propose)]


def test_paused_trials_of_a_study_that_was_stopped_are_cancelled() -> None:
    decided = effects_of(trials=paused([0.1]), studies=rules(state=StudyState.STOPPING))
    assert moves(decided) == {0: TrialState.CANCELLED}


def test_a_trial_that_has_trained_to_its_end_waits_for_its_repeats() -> None:
    repeating = {1: study(repeats=3, steps=30)}
    ended = trial(step=30, value=0.5)
    (effect,) = effects_of(trials=[ended], attempts=[attempt(outcome=Outcome.DONE)], studies=repeating)
    assert isinstance(effect, Repeat) and effect.count == 2
    waiting = trial(state=TrialState.PAUSED, waits_for=WaitsFor.REPEATS, repeats=((0.5,), (0.7,)), value=0.6)
    repeat = trial(id=2, number=1, parent_id=1, parent_number=0, origin=Origin.REPEAT, step=30, value=0.7)
    trained = attempt(trial_id=2, outcome=Outcome.DONE)
    assert moves(effects_of(trials=[waiting, repeat], attempts=[trained], studies=repeating)) == {
        1: TrialState.COMPLETED
    }
    last = only_move(effects_of(trials=[waiting], studies=repeating))
    assert (last.to, last.reason) == (TrialState.COMPLETED, "mean of 2 trainings of 3")
    stopped = {1: study(repeats=3, state=StudyState.STOPPING)}
    assert moves(effects_of(trials=[waiting], studies=stopped)) == {0: TrialState.COMPLETED}


@pytest.mark.parametrize("origin", [Origin.REPEAT, Origin.ENQUEUED])
def test_repeats_and_candidates_of_a_user_are_not_judged(origin: Origin) -> None:
    repeat = trial(origin=origin, step=10, value=0.0, parent_id=9, parent_number=9)
    others = paused([0.5, 0.6, 0.7], first=1)
    state = {"studies": rules(repeats=2), "rungs": rungs(repeat, *others)}
    (_, *moved) = effects_of(trials=[repeat, *others], attempts=[attempt()], gangs={"1/1": ALIVE}, **state)
    assert 0 not in moves(moved)
