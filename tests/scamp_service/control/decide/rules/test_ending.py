"""Studies that reach a limit of their budget: what runs counts with what it has reached, and the rest is cancelled."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from scamp_service.control.decide.effects import CreateTrials, FinishStudy, MoveTrial, NoteRegret
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Json, Study, Trial
from scamp_service.search.proposer import Proposal, ProposalRequest
from tests.quick_store import empty_store
from tests.scamp_service.control.decide.snapshots import ALIVE, effects_of, study
from tests.simulation.faults import no_faults
from tests.simulation.simulation import PEAK, SCORE, Simulation
from tests.values import attempt, trial

WHY = "the study has used up its 60 s (budget.seconds)"


def test_a_study_at_its_limit_proposes_nothing_and_ends_its_trials_with_what_they_have() -> None:
    at_limit = study(used_up=WHY, num_trials=6)
    assert effects_of(trials=[trial()], attempts=[attempt()], gangs={"1/1": ALIVE}, studies={1: at_limit})[-1] == (
        FinishStudy(1, StudyState.STOPPING, WHY, StudyState.COMPLETED)
    )
    trials = [
        trial(step=40, value=0.5),
        trial(id=2, number=1),
        trial(id=3, number=2, state=TrialState.PAUSED, step=10, value=0.4),
        trial(id=4, number=3, state=TrialState.QUEUED, attempt=0),
        trial(id=5, number=4, state=TrialState.WAITING, step=20, value=0.6, num_oom=1),
    ]
    state: Any = {
        "attempts": [attempt(), attempt(trial_id=2)],
        "gangs": {"1/1": ALIVE, "2/1": ALIVE},
        "studies": {1: study(reason=WHY, ends_as=StudyState.COMPLETED, state=StudyState.STOPPING)},
    }
    moves = {e.trial.number: (e.to, e.reason) for e in effects_of(trials=trials, **state) if isinstance(e, MoveTrial)}
    assert moves == {
        0: (TrialState.COMPLETED, f"ended after step 40 of 100: {WHY}"),
        1: (TrialState.CANCELLED, WHY),
        2: (TrialState.PRUNED, f"ended after step 10 of 100: {WHY}"),
        3: (TrialState.CANCELLED, WHY),
        4: (TrialState.COMPLETED, f"ended after step 20 of 100: {WHY}"),
    }
    assert effects_of(trials=[], studies=state["studies"]) == [FinishStudy(1, StudyState.COMPLETED, WHY)]


class Limited(Simulation):
    """A simulation whose studies have another limit than their trials; several objectives with several targets."""

    limit: ClassVar[Json] = {}

    def spec(self, number: int) -> Json:
        spec = super().spec(number)
        objectives = [SCORE, PEAK] if isinstance(self.limit.get("target"), dict) else []
        fields = {"objective": SCORE, "objectives": objectives, "stopping": {"rule": "none"}}
        return {**spec, **fields, "budget": {**spec["budget"], "trials": 1000, **self.limit}}


def test_a_bound_on_the_regret_is_stored_before_more_trials_and_ends_the_study_once_it_is_small() -> None:
    store = empty_store()
    simulation = type("Simulated", (Limited,), {"limit": {"terminator": {"regret": 0.5}}})(store, 12, no_faults())
    requests = {1: ProposalRequest(0, answer=Proposal([{"lr": 0.1}], regret=0.75))}
    state: Any = {"trials": [], "studies": {1: study(num_trials=0)}, "requests": requests}
    assert effects_of(**state) == [NoteRegret(1, 0.75)]
    state["studies"] = {1: study(num_trials=0, regret_bound=0.75)}
    assert [type(effect) for effect in effects_of(**state)] == [CreateTrials]
    while not simulation.has_ended:
        simulation.cycle()
        if simulation.clock.now > 100:
            for study_row in store.studies.page():
                store.studies.note_regret(study_row.id, 0.4, now=simulation.clock.now)
        assert simulation.clock.now < 20_000
    for ended in store.studies.page():
        assert ended.state is StudyState.COMPLETED and ended.regret_bound == 0.4
        assert ended.reason == "no candidate is likely to be better by more than 0.4 (budget.terminator)"


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"seconds": 60}, "its 60 s"),
        ({"device_hours": 0.05}, "its 0.05 device-hours"),
        ({"target": 0}, "has reached the target of 0, with "),
    ],
)
def test_every_limit_ends_a_study_of_endless_trials(limit: Json, words: str) -> None:
    for ended, trials in ended_by(limit, 12):
        assert ended.state is StudyState.COMPLETED and words in ended.reason
        states = {row.state for row in trials}
        assert TrialState.COMPLETED in states
        assert states <= {TrialState.COMPLETED, TrialState.CANCELLED, TrialState.INFEASIBLE}


def test_a_trial_that_reaches_all_targets_counts_and_is_the_reason_also_where_it_runs_out_of_memory_then() -> None:
    limit, num_out_of_memory = {"target": {"score": 4, "predicted.peak_mib": 40}}, 0
    for seed in range(100):  # a trial runs out of memory after half of its steps, where it also reaches this score
        for ended, trials in ended_by(limit, seed):
            assert ended.state is StudyState.COMPLETED
            assert " has reached all targets, with (score " in ended.reason
            (number,) = (int(word) for word in ended.reason.split()[1:2])
            assert trials[number].state is TrialState.COMPLETED
            num_out_of_memory += trials[number].num_oom
        if num_out_of_memory:
            return
    raise AssertionError("no trial ran out of memory once it had reached the targets: the test shows nothing")


def ended_by(limit: Json, seed: int) -> list[tuple[Study, list[Trial]]]:
    """The studies of a simulation without faults under this limit, with their trials."""
    store = empty_store()
    simulation = type("Simulated", (Limited,), {"limit": limit})(store, seed, no_faults())
    while not simulation.has_ended:
        simulation.cycle()
        assert simulation.clock.now < 20_000
    return [(ended, store.trials.page(ended.id)) for ended in store.studies.page()]
