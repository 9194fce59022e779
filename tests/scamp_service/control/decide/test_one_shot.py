"""One-shot search: the supernet, then candidates that are only evaluated, then the best of them alone, in this order
through crashes of the controller at any write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scamp_service.control.decide.effects import Begin, CreateTrials, MoveTrial, Propose
from scamp_service.control.stopping.several import NO_RULES
from scamp_service.lifecycle import Origin, Outcome, StudyState, TrialState
from scamp_service.model import Refusals, Trial
from scamp_service.search.proposer import Proposal, ProposalRequest
from scamp_service.study.one_shot import OneShot
from scamp_service.study.predicted import PredictedBounds
from tests.quick_store import empty_store
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of, only_move, study
from tests.simulation.simulation import OneShotSimulation
from tests.values import attempt, sized, trial
from workloads.training.checkpoints.name import CheckpointName, Donor

SUPERNET = trial(params={"supernet": True}, step=400, value=0.5)
SCORED = trial(params={"width": 8}, parent_id=9, parent_number=0, parent_step=400, value=0.75)


def rules(**changes: Any) -> Any:
    one_shot = OneShot(candidates=6, best=2, steps=400)
    return {1: study(one_shot=one_shot, inherits=True, stopping=NO_RULES, trials=20, **changes)}


def done(ended: Trial) -> MoveTrial:
    decided = effects_of(
        trials=[ended], attempts=[attempt(outcome=Outcome.DONE)], studies=rules(), gangs={"1/1": ALIVE}
    )
    return only_move(decided)


def test_only_what_trains_alone_is_completed() -> None:
    supernet, scored, alone = done(SUPERNET), done(SCORED), done(replace(SCORED, parent_id=None))
    assert supernet.to is scored.to is TrialState.PRUNED and alone.to is TrialState.COMPLETED
    assert supernet.reason.startswith("trained all 400 steps as the supernet")
    assert scored.reason == "not trained: scores 0.75 with weights of the supernet, trial 0"
    assert done(replace(SUPERNET, origin=Origin.ENQUEUED)).to is TrialState.COMPLETED


def test_the_supernet_trains_its_own_steps_and_candidates_none() -> None:
    waiting = [replace(row, id=i, state=TrialState.QUEUED, attempt=0) for i, row in enumerate((SUPERNET, SCORED), 1)]
    donor = Donor(CheckpointName(9, 400), {"supernet": True})
    decided = effects_of(trials=waiting, studies=rules(), donors={2: donor})
    orders = [e.order for e in decided if isinstance(e, Begin)]
    assert [(order.steps, order.donor) for order in orders] == [(400, None), (0, donor)]


@pytest.mark.parametrize(("num_trials", "count"), [(1, 4), (5, 2), (7, 2)])
def test_nothing_is_proposed_that_depends_on_trials_that_have_not_ended(num_trials: int, count: int) -> None:
    studies = rules(num_trials=num_trials)
    assert effects_of(trials=[], studies=studies) == [Propose(1, num_trials, count)]
    waits = num_trials != 5
    decided = effects_of(trials=[trial()], attempts=[attempt()], gangs={"1/1": ALIVE}, studies=studies)
    assert [isinstance(e, Propose) for e in decided] == [True] * (not waits)
    new = Refusals(1, (), once_fit=False, newest_at=0.0)
    assert bool(effects_of(trials=[], studies=studies, refusals={new: 1.0})) is not waits, "devices may be joining"
    assert effects_of(trials=[], studies=studies, refusals={new: 60.0})
    answer = ProposalRequest(num_trials, answer=Proposal([{"x": 1}], parents=[0]))
    created = CreateTrials(1, num_trials, [{"x": 1}], parents=[0])
    assert effects_of(trials=[], studies=studies, requests={1: answer}) == [created]


def test_bounds_on_what_is_predicted_hold_for_candidates_and_not_for_the_supernet() -> None:
    waiting = {"state": TrialState.WAITING, "attempt": 0, "value": None, "step": 0}
    studies, answer = rules(predicted=PredictedBounds.model_validate({"peak_mib": {"max": 1}})), sized()
    moves = [
        only_move(effects_of(trials=[replace(row, **waiting)], studies=studies, sized={1: answer})).to  # type: ignore[arg-type]
        for row in (SUPERNET, SCORED)
    ]
    assert moves == [TrialState.QUEUED, TrialState.INFEASIBLE]


@pytest.mark.full
@pytest.mark.sample
@pytest.mark.parametrize("seed", range(6))
def test_the_best_candidates_are_trained_alone_whatever_is_killed_on_the_way(seed: int) -> None:
    simulation = OneShotSimulation(empty_store(), seed)
    simulation.run()
    for ended in simulation.store.studies.page():
        trials = simulation.store.trials.page(ended.id)
        supernet, *scored = (row for row in trials if row.state is TrialState.PRUNED)
        assert ended.state is StudyState.COMPLETED
        assert supernet.step == 12
        assert supernet.number == 0
        assert [(row.step, row.parent_number) for row in scored] == [(0, 0)] * 5
        ranked = [row.params for row in sorted(scored, key=lambda row: (-(row.value or 0.0), row.number))]
        different = [params for index, params in enumerate(ranked) if params not in ranked[:index]]
        alone = [row for row in trials if row.state is TrialState.COMPLETED]
        assert [row.params for row in alone] == different[:2] and not any(row.parent for row in alone)
