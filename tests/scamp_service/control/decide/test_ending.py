"""Studies that reach a limit of their budget: what runs counts with what it has reached, and the rest is cancelled."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from scamp_service.control.decide import effects as d
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Json
from scamp_service.search.proposer import Proposal, ProposalRequest
from tests.quick_store import empty_store
from tests.scamp_service.control.decide.snapshots import ALIVE, effects, study
from tests.simulation.faults import no_faults
from tests.simulation.simulation import Simulation
from tests.values import attempt, trial

WHY = "the study has used up its 60 s (budget.seconds)"


def test_a_study_at_its_limit_proposes_nothing_and_ends_its_trials_with_what_they_have() -> None:
    at_limit = study(used_up=WHY, num_trials=6)
    assert effects(trials=[trial()], attempts=[attempt()], gangs={"1/1": ALIVE}, studies={1: at_limit})[-1] == (
        d.FinishStudy(1, StudyState.STOPPING, WHY)
    )
    trials = [
        trial(step=40, value=0.5),
        trial(id=2, number=1),
        trial(id=3, number=2, state=TrialState.PAUSED, step=10, value=0.4),
        trial(id=4, number=3, state=TrialState.QUEUED, attempt=0),
    ]
    known: Any = {
        "attempts": [attempt(), attempt(trial_id=2)],
        "gangs": {"1/1": ALIVE, "2/1": ALIVE},
        "studies": {1: study(used_up=WHY, state=StudyState.STOPPING)},
    }
    moves = {
        e.trial.number: (e.to, e.changes["reason"])
        for e in effects(trials=trials, **known)
        if isinstance(e, d.MoveTrial)
    }
    assert moves == {
        0: (TrialState.COMPLETED, f"ended after step 40 of 100: {WHY}"),
        1: (TrialState.CANCELLED, WHY),
        2: (TrialState.PRUNED, f"ended after step 10 of 100: {WHY}"),
        3: (TrialState.CANCELLED, WHY),
    }
    assert effects(trials=[], studies=known["studies"]) == [d.FinishStudy(1, StudyState.COMPLETED, WHY)]


class Limited(Simulation):
    """A simulation whose studies have another limit than their trials."""

    limit: ClassVar[Json] = {}

    def spec(self, number: int) -> Json:
        spec = super().spec(number)
        return {**spec, "stopping": {"rule": "none"}, "budget": {**spec["budget"], "trials": 1000, **self.limit}}


def test_a_bound_on_the_regret_is_stored_before_more_trials_and_ends_the_study_once_it_is_small() -> None:
    store = empty_store()
    simulation = type("Simulated", (Limited,), {"limit": {"terminator": {"regret": 0.5}}})(store, 12, no_faults())
    requests = {1: ProposalRequest(0, answer=Proposal([{"lr": 0.1}], regret=0.75))}
    known: Any = {"trials": [], "studies": {1: study(num_trials=0)}, "requests": requests}
    assert effects(**known) == [d.NoteRegret(1, 0.75)]
    known["studies"] = {1: study(num_trials=0, regret_bound=0.75)}
    assert [type(effect) for effect in effects(**known)] == [d.CreateTrials]
    while not simulation.has_ended:
        simulation.cycle()
        if simulation.clock.now > 100:
            for one in store.studies():
                store.note_regret(one.id, 0.4, now=simulation.clock.now)
        assert simulation.clock.now < 20_000
    for ended in store.studies():
        assert ended.state is StudyState.COMPLETED and ended.regret_bound == 0.4
        assert ended.reason == "no candidate is likely to be better by more than 0.4 (budget.terminator)"


@pytest.mark.parametrize(
    ("limit", "words", "seed"),
    [
        ({"seconds": 60}, "its 60 s", 12),
        ({"device_hours": 0.05}, "its 0.05 device-hours", 12),
        ({"target": 0}, "has reached the target of 0, with ", 12),
        ({"target": {"score": 4, "predicted.peak_mib": 40}}, "has reached all targets, with (score ", 59),
    ],
)
def test_every_limit_ends_a_study_of_endless_trials(limit: Json, words: str, seed: int) -> None:
    store = empty_store()
    simulation = type("Simulated", (Limited,), {"limit": limit})(store, seed, no_faults())
    while not simulation.has_ended:
        simulation.cycle()
        assert simulation.clock.now < 20_000
    for ended in store.studies():
        assert ended.state is StudyState.COMPLETED and words in ended.reason
        states = {one.state for one in store.trials(ended.id)}
        assert TrialState.COMPLETED in states
        assert states <= {TrialState.COMPLETED, TrialState.CANCELLED, TrialState.INFEASIBLE}
