"""A projection that followed the changes is the one that a new controller reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from estimators.learning import WINDOW_TRIALS
from scamp_service.control import projection as module
from scamp_service.control.projection import Projection
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import TRIAL_MOVES, AttemptState, Outcome, TrialState
from scamp_service.model import NO_CHANGES, Metric, Report, TrialChanges
from scamp_service.store.store import Store
from scamp_service.study.objectives import Objectives
from tests.values import new_attempt, sized

M = {"metric": "m", "direction": "maximize"}
SPEC = {"name": "s", "objective": M, "objectives": [M, {"metric": "predicted.peak_mib", "direction": "minimize"}]}
OBJECTIVES = Objectives.of_spec(SPEC)
S = TrialState
RUNGS = (2, 4)

steps = st.lists(
    st.tuples(
        st.sampled_from(["create", "move", "begin", "report", "report", "measure", "outcome", "end", "look", "look"]),
        st.integers(0, 5),
        st.randoms(use_true_random=False),
    ),
    min_size=10,
    max_size=50,
)


class Course:
    """Random changes of a new study, of which two trials have begun."""

    def __init__(self, store: Store) -> None:
        self.store, self.study, self.seq = store, store.studies.create(SPEC, now=0.0).id, 0
        store.trials.create(self.study, [(number, {}) for number in range(3)], now=1.0)
        for trial in store.trials.page(self.study, limit=2):
            assert store.trials.move(
                trial.id, S.WAITING, 0, S.QUEUED, now=1.0, changes=TrialChanges(family="a"), sized=sized()
            )
            assert store.attempts.begin(new_attempt(trial.id))

    def step(self, name: str, number: int, source: Any) -> None:
        trials = self.store.trials.page(self.study)
        if name == "create":
            self.store.trials.create(self.study, [(len(trials), {"x": number})], now=1.0)
            return
        trial = trials[number % len(trials)]
        key = (trial.id, trial.attempt, "t")
        match name:
            case "move" if moves := sorted(TRIAL_MOVES[trial.state] - {S.RUNNING, S.PAUSED}):
                to = source.choice(moves)
                changes = TrialChanges(family=source.choice("ab")) if to is S.QUEUED else NO_CHANGES
                plan, move = sized() if to is S.QUEUED else None, (trial.id, trial.state, trial.attempt, to)
                assert self.store.trials.move(*move, now=1.0, changes=changes, sized=plan)
            case "begin" if trial.state is S.QUEUED:
                self.store.attempts.begin(new_attempt(trial.id, trial.attempt + 1))
            case "report" if trial.attempt:
                self.seq += 1
                values = {"m": source.choice([0.5, 1.5, float("nan"), float("inf")])}
                row = Metric(*key[:2], self.seq, source.choice([1, *RUNGS]), values, 1.0)
                self.store.reports.add(Report(*key, metrics=[row], objectives=OBJECTIVES.names), now=1.0)
            case "measure" if trial.attempt:
                self.store.reports.add(
                    Report(*key, measured_bytes=source.randrange(99), step_seconds=0.5, timed_steps=3), now=1.0
                )
            case "outcome" if trial.attempt:
                self.store.reports.end(*key, source.choice(list(Outcome)), "", now=1.0)
            case "end" if trial.attempt:
                self.store.attempts.move(*key[:2], [AttemptState.STARTING], AttemptState.ENDED, now=1.0)


class Followed:
    """A projection, and the newest version that it gave of each trial."""

    def __init__(self, store: Store, study: int) -> None:
        self.store, self.study, self.projection = store, study, Projection(store)
        self.trials: dict[int, Any] = {}

    def look(self) -> dict[str, Any]:
        """All that it knows of the study, as values that can be compared."""
        live = self.projection.follow(self.store.attempts.open())
        content: dict[str, Any] = {"live": [trial for trial in live if trial.study_id == self.study]}
        self.trials |= {trial.id: trial for trial in self.projection.changed_trials(self.study)}
        runs = self.projection.family_runs(["a", "b"])
        rung_values = self.projection.rungs(self.study, OBJECTIVES, RUNGS)
        numbers = [trial.number for trial in self.trials.values()]
        rungs = {step: sorted((n, rung[n]) for n in numbers if n in rung) for step, rung in rung_values.items()}
        finite = {step: sum(all(map(math.isfinite, point)) for _, point in values) for step, values in rungs.items()}
        assert finite == {step: len(rung.best(100)) for step, rung in rung_values.items()}
        return {**content, "trials": sorted(self.trials.items()), "runs": repr(runs), "rungs": rungs}


@pytest.mark.sample
@pytest.mark.full
@settings(
    max_examples=25,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(walk=steps)
def test_what_was_followed_is_what_a_new_controller_reads(store: Store, walk: list[Any]) -> None:
    course = Course(store)
    followed = Followed(store, course.study)
    for name, number, source in [*walk, ("look", 0, None)]:
        if name == "look":
            assert repr(followed.look()) == repr(Followed(store, course.study).look())
        else:
            course.step(name, number, source)
    trials = [trial for trial in store.trials.live() if trial.study_id == course.study]
    assert repr(followed.look()["live"]) == repr(trials)
    runs = followed.projection.family_runs(["a", "b"])
    assert repr(runs) == repr({family: store.attempts.family_runs(family, WINDOW_TRIALS) for family in "ab"})


def test_more_events_than_a_page_are_all_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_AT_ONCE", 3)
    store = Store("sqlite://")
    study = store.studies.create(SPEC, now=0.0).id
    projection = Projection(store)
    assert list(projection.follow([])) == []
    store.trials.create(study, [(number, {}) for number in range(8)], now=1.0)
    assert [trial.number for trial in projection.follow([])] == list(range(8))


def test_what_could_not_be_read_is_read_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("sqlite://")
    study = store.studies.create(SPEC, now=0.0).id
    projection = Projection(store)
    projection.follow([])
    store.trials.create(study, [(0, {})], now=1.0)

    def away(*_: Any) -> Any:
        raise Unavailable("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(store.trials, "with_ids", away)
        with pytest.raises(Unavailable):
            projection.follow([])
    assert [trial.number for trial in projection.follow([])] == [0]


def test_an_idle_cycle_reads_no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store("sqlite://")
    study = store.studies.create(SPEC, now=0.0).id
    store.trials.create(study, [(number, {}) for number in range(5)], now=1.0)
    projection = Projection(store)
    projection.follow([])
    queries: list[Any] = []

    def no_trials(ids: Any) -> list[Any]:
        queries.append(list(ids))
        return []

    monkeypatch.setattr(store.trials, "with_ids", no_trials)
    monkeypatch.setattr(store.trials, "live", lambda: pytest.fail("it has read them"))
    assert len(projection.follow([])) == 5
    assert queries == [[]]
