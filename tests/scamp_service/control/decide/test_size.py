"""Waiting trials are sized with what their own attempts and their family have shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.learning import Ending, Learned, PastAttempt
from estimators.model import MIB, Layout, Plan
from estimators.traits import Traits
from placement.model import Cluster, Offer
from scamp_service.control.decide.effects import Begin, Effect, MoveTrial, Size
from scamp_service.control.decide.rules.faults import MAX_FAULTS
from scamp_service.control.executor import Unsized
from scamp_service.lifecycle import NO_PLAN_YET, TrialState, WaitsFor
from scamp_service.model import Trial
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from scamp_service.study.predicted import Bound, PredictedBounds
from tests.scamp_service.control.decide.snapshots import FAILED, effects_of, only_move, study
from tests.values import changed, sized, trial


def test_a_trial_that_ran_out_of_memory_is_sized_with_what_its_own_runs_show() -> None:
    """Not with what its last plan added: that may have been learned from others, for another layout."""
    failed = trial(state=TrialState.WAITING, num_oom=1, predicted_bytes=45 * MIB, extra_bytes=25 * MIB)
    (size,) = effects_of(trials=[failed], failures={1: [FAILED]})
    assert isinstance(size, Size)
    assert size.demand.own_attempts == (FAILED,)
    assert not size.demand.learned


def learning(*past: PastAttempt, **row: Any) -> tuple[list[Effect], str]:
    """The decision about one trial whose family has this past, and the family."""
    candidate = trial(id=9, attempt=0, **row)
    family = study().family(candidate)
    return effects_of(trials=[candidate], past={family: past}), family


RAISED = 30 * MIB - 20 * MIB + 5 * MIB


def test_a_candidate_is_sized_with_what_its_family_has_learned() -> None:
    decided, _ = learning(FAILED, state=TrialState.WAITING, plan=None)
    learned = {Layout(): Learned(Layout(), RAISED, num_trials=1, num_out_of_memory=1, studies=(7,))}
    assert [effect.demand.learned for effect in decided if isinstance(effect, Size)] == [learned]
    others, _ = learning(replace(FAILED, device_kinds=("H200",)), state=TrialState.WAITING, plan=None)
    assert [effect.demand.learned for effect in others if isinstance(effect, Size)] == [{}]


def test_a_family_whose_curve_depends_on_the_division_of_a_batch_is_not_divided_again() -> None:
    words = "the gradient of a changes by 9 %"
    divided = replace(FAILED, ending=Ending.DEPENDS_ON_DIVISION, why=words)
    decided, _ = learning(FAILED, divided, FAILED, state=TrialState.WAITING, plan=None)
    traits = [effect.demand.traits for effect in decided if isinstance(effect, Size)]
    assert traits == [Traits(couples_samples=words, evaluates_whole=words)]


def test_a_candidate_is_sized_with_the_past_of_its_family_and_runs_with_the_seconds_of_its_plan() -> None:
    decided, _ = learning(FAILED, state=TrialState.WAITING, plan=None)
    assert [effect.demand.past for effect in decided if isinstance(effect, Size)] == [(FAILED,)]
    queued = trial(state=TrialState.QUEUED, attempt=0)
    assert queued.sized is not None
    timed = replace(queued, sized=changed(queued.sized, step_seconds=0.6, step_factor=1.5))
    (begin,) = (effect for effect in effects_of(trials=[timed]) if isinstance(effect, Begin))
    assert (begin.attempt.choice.step_seconds, begin.attempt.choice.step_factor) == (0.6, 1.5)


def test_one_that_waits_for_devices_is_planned_again_once_when_its_family_learns() -> None:
    decided, _ = learning(FAILED, state=TrialState.QUEUED)
    move = only_move(decided)
    assert (
        move.to is TrialState.WAITING
        and "15.0 MiB learned from 1 trial of this family with layout single, 1 of them out of memory (study 7)"
        in move.reason
    )
    decided, _ = learning(FAILED, state=TrialState.QUEUED, plan=Plan(4, dp_shard=2))
    assert [type(effect) for effect in decided] == [Begin], "another layout has learned it"
    for numbers in ({"learned_bytes": RAISED}, {"extra_bytes": RAISED}, {"learned_bytes": RAISED - MIB + 1}):
        decided, _ = learning(FAILED, state=TrialState.QUEUED, **numbers)
        assert [type(effect) for effect in decided] == [Begin], "it was planned with it, or with hardly less"


def test_a_plan_keeps_what_was_learned_and_its_family() -> None:
    answer = sized(Plan(4), 45, 35 * MIB, RAISED, MIB, learned_bytes=RAISED + 1)
    candidate = trial(id=9, attempt=0, state=TrialState.WAITING, plan=None)
    move = only_move(effects_of(trials=[candidate], sized={9: answer}))
    assert move.sized == answer and move.changes["family"] == study().family(candidate)


def test_a_sized_candidate_is_queued_and_one_without_a_plan_is_infeasible() -> None:
    waiting = [trial(id=i, state=TrialState.WAITING, attempt=0, plan=None) for i in (1, 2, 3)]
    results = {1: sized(Plan(4), 5, MIB), 2: Unsized("needs 200 MiB", True)}
    decided = effects_of(trials=waiting, sized=results)
    assert [e.to for e in decided if isinstance(e, MoveTrial)] == [TrialState.QUEUED, TrialState.INFEASIBLE]
    assert [e.trial.id for e in decided if isinstance(e, Size)] == [3]


def test_a_candidate_that_breaks_a_bound_on_what_is_predicted_is_not_trained() -> None:
    bounded = {1: study(predicted=PredictedBounds(reserved_mib=Bound(max=4)))}
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    move = only_move(effects_of(trials=[waiting], sized={1: sized(Plan(4), 5, MIB)}, studies=bounded))
    assert move.to is TrialState.INFEASIBLE and move.sized is not None
    assert move.reason == "not trained: its predicted reserved_mib is 5, and the study wants at most 4"
    assert move.changes["offer"] is None, "otherwise one that fitted nowhere before would be planned again for ever"
    healing = trial(state=TrialState.WAITING, attempt=1, num_oom=1)
    again = only_move(effects_of(trials=[healing], sized={1: sized(Plan(4), 5, MIB)}, studies=bounded))
    assert again.to is TrialState.QUEUED


def test_wider_plans_that_break_a_bound_are_no_choices() -> None:
    bounded = {1: study(predicted=PredictedBounds(ranks=Bound(max=2)))}
    sized_trial = sized(Plan(4), 5, MIB)
    choices = [
        sized_trial.choice,
        *(replace(sized_trial.choice, plan=Plan(4, dp_shard=ranks)) for ranks in (2, 4)),
    ]
    answer = replace(sized_trial, choices=tuple(choices))
    move = only_move(effects_of(trials=[trial(state=TrialState.WAITING)], sized={1: answer}, studies=bounded))
    assert move.sized is not None and [choice.plan.world_size for choice in move.sized.choices] == [1, 2]


def test_a_predicted_objective_that_is_not_known_fails_the_trial_with_what_to_do() -> None:
    seconds = Objectives(
        (Objective(metric="predicted.step_seconds", direction="minimize"), Objective(metric="accuracy"))
    )
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    state: Any = {"trials": [waiting], "studies": {1: study(objectives=seconds)}}
    move = only_move(effects_of(**state, sized={1: sized(Plan(4), 5, MIB)}))
    assert move.to is TrialState.FAILED and "predicted.step_seconds is not known" in move.reason
    assert "scamp calibrate" in move.reason
    timed = changed(sized(Plan(4), 5, MIB), step_seconds=0.5)
    assert only_move(effects_of(**state, sized={1: timed})).to is TrialState.QUEUED


def test_nothing_is_sized_or_placed_while_the_cluster_starts() -> None:
    trials = [trial(state=TrialState.WAITING, attempt=0), trial(id=2, state=TrialState.QUEUED, attempt=0)]
    assert effects_of(trials=trials, cluster=Cluster()) == []


def test_a_trial_whose_sizing_waits_for_others_says_for_which() -> None:
    new: dict[str, Any] = {
        "state": TrialState.WAITING,
        "attempt": 0,
        "plan": None,
        "reason": NO_PLAN_YET,
        "waits_for": WaitsFor.PLAN,
    }
    studies = {1: study(num_trials=1), 2: study(id=2, num_trials=1)}
    trials = [trial(**new), trial(**new, id=2, number=1), trial(**new, id=3, study_id=2, number=4)]

    def moves(trials: list[Trial], held_up: dict[int, tuple[int, ...]]) -> dict[int, str]:
        decided = effects_of(trials=trials, studies=studies, held_up=held_up)
        assert sum(isinstance(effect, Size) for effect in decided) == len(trials)
        return {move.trial.id: move.reason for move in decided if isinstance(move, MoveTrial)}

    assert moves(trials, {}) == {}
    others = "trial 1 and trial 4 of study 2 and one that has ended"
    words = f"waits for its plan, behind the traces of {others}, which take long"
    assert moves(trials, {1: (2, 3, 9)}) == {1: words}
    waits = [trial(**{**new, "reason": words}), *trials[1:]]
    assert moves(waits, {1: (2, 3, 9)}) == {}
    assert moves(waits, {}) == {1: NO_PLAN_YET}
    healed = trial(**{**new, "waits_for": WaitsFor.NEW_PLAN})
    assert moves([healed, *trials[1:]], {1: (2,)}) == {}, "why it needs a new plan is said, whatever the words are"


def test_a_verdict_names_the_devices_that_it_holds_for() -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    move = only_move(
        effects_of(trials=[waiting], sized={1: Unsized("needs 200 MiB", True, "s", (("virtual", 96, 2),))})
    )
    assert move.to is TrialState.INFEASIBLE and move.changes["offer"] == (("virtual", 96, 2),)
    assert move.reason == "needs 200 MiB" and move.changes["once_fit"] is False


@pytest.mark.parametrize(
    ("offer", "missing"),
    [
        ((("virtual", 96, 1),), "its plan needs 2 × 90 MiB, and the cluster now has 1 such device"),
        ((("virtual", 89, 4),), "its plan needs 2 × 90 MiB, and the cluster now has 0 such devices"),
        ((("A10", 90, 1), ("virtual", 96, 1)), ""),
        (None, ""),
    ],
)
def test_a_verdict_says_whether_the_cluster_has_lost_the_devices_of_its_plan(offer: Offer | None, missing: str) -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=Plan(2, dp_shard=2), reserved_mib=90)
    move = only_move(effects_of(trials=[waiting], sized={1: Unsized("no plan fits", True, "s", offer)}))
    assert move.changes["once_fit"] == bool(missing) and move.reason.startswith(missing)
    assert move.reason.endswith("no plan fits") and ("waits an hour" in move.reason) == bool(missing)


def test_a_candidate_that_cannot_be_traced_because_of_the_host_is_sized_later() -> None:
    waiting = trial(state=TrialState.WAITING, attempt=0, plan=None)
    full = Unsized("No space left on device three times", infeasible=False, may_pass=True)
    move = only_move(effects_of(trials=[waiting], sized={1: full}, now=100.0))
    assert move.to is TrialState.WAITING
    assert move.changes["retry_at"] == 105.0
    assert move.changes["num_faults"] == 1
    assert move.reason == "waits 5 s after: No space left on device three times"
    again = replace(waiting, num_faults=1, retry_at=105.0)
    assert effects_of(trials=[again], now=104.0) == []
    assert [type(effect) for effect in effects_of(trials=[again], now=105.0)] == [Size]
    assert [type(effect) for effect in effects_of(trials=[again], now=-1e6)] == [Size], "a clock was set back"
    last = only_move(effects_of(trials=[replace(waiting, num_faults=MAX_FAULTS)], sized={1: full}))
    assert last.to is TrialState.FAILED and "mend the host" in last.reason


def test_a_batch_that_was_chosen_stays_with_its_reason_when_a_trial_is_planned_again() -> None:
    """Also where other devices or more memory would allow another batch by then."""
    params = {"batch": "largest", "largest_batch": 64, "lr": 0.1}
    new = trial(state=TrialState.WAITING, plan=None, params=params)
    (size,) = effects_of(trials=[new])
    assert isinstance(size, Size) and size.demand.candidate.params == params
    chosen = replace(sized(plan=Plan(24)), batch_reason="batch 24: it fits")
    move = only_move(effects_of(trials=[new], sized={1: chosen}))
    assert move.reason == "fits; batch 24: it fits"
    (size,) = effects_of(trials=[replace(new, sized=move.sized, num_oom=1)])
    assert isinstance(size, Size) and size.demand.candidate.params == {"batch": 24, "lr": 0.1}
    again = only_move(effects_of(trials=[replace(new, sized=move.sized)], sized={1: sized(plan=Plan(12, 2))}))
    assert again.sized is not None and again.sized.why == again.reason == "fits; batch 24: it fits"


def test_the_ranks_of_a_trial_get_the_batch_that_was_chosen() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=Plan(24), params={"batch": "largest"})
    (begin,) = (effect for effect in effects_of(trials=[queued]) if isinstance(effect, Begin))
    assert begin.order.candidate.params == {"batch": 24} and begin.order.plan.batch == 24


GROWS = {"batch": 32, "base_batch": 32, "scale_lr": "adascale"}


def test_the_plan_after_an_out_of_memory_says_that_it_is_kept_and_that_the_batch_does_not_change() -> None:
    for num_oom, largest, reason in (
        (0, 64, "fits"),
        (1, None, "fits"),
        (
            1,
            64,
            "fits; it keeps this plan and its batch: it ran out of memory, and what it needs is "
            "known for this plan alone",
        ),
    ):
        waiting = trial(
            state=TrialState.WAITING, num_oom=num_oom, plan=None, params={**GROWS, "largest_batch": largest}
        )
        move = only_move(effects_of(trials=[waiting], sized={1: sized()}))
        assert move.sized is not None and move.sized.reason == move.reason == reason
