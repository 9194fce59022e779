"""Samplers that are slow, hang or fail: the loop continues, and so do other studies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from scamp_service.control.contained import ContainedErrors
from scamp_service.control.controller import Controller, TimeAndTokens
from scamp_service.control.proposing import HUNG_SECONDS, SLOW_SECONDS
from scamp_service.lifecycle import StudyState
from scamp_service.model import Json
from scamp_service.search.proposals import SAMPLERS, Search
from scamp_service.search.proposer import ProposalRequest, Proposer
from scamp_service.search.running.threads import ThreadProposer
from scamp_service.study.spec import StudySpec
from tests.quick_store import empty_store
from tests.simulation.faults import no_faults
from tests.simulation.services import SimulatedExecutor, SimulatedProposer, SimulatedSizer
from tests.simulation.simulation import Simulation
from tests.waiting import PATIENCE_SECONDS, until


class Sleeper:
    """A sampler that sleeps until it is woken."""

    reads_history: ClassVar = True
    needs_own_process: ClassVar = False
    shows_most: ClassVar = None
    asleep: ClassVar = threading.Event()
    woken: ClassVar = threading.Event()

    def __init__(self, spec: StudySpec) -> None:
        """Nothing to keep."""

    def suggest(self, number: int, completed: Any, active: Any, attempt: int = 0) -> Any:
        self.asleep.set()
        assert self.woken.wait(PATIENCE_SECONDS)
        return {"mib": 10, "ranks": 1}


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Sleeper]]:
    Sleeper.asleep, Sleeper.woken = threading.Event(), threading.Event()
    monkeypatch.setitem(SAMPLERS, "tpe", Sleeper)
    yield Sleeper
    Sleeper.woken.set()


class Hung(SimulatedProposer):
    """The sampler of study 1 never answers."""

    def requests(self) -> Mapping[int, ProposalRequest]:
        return {
            study: replace(request, answer=None) if study == 1 else request
            for study, request in super().requests().items()
        }


class TwoStudies(Simulation):
    """Study 1 has TPE, and study 2 samples at random."""

    def num_later_studies(self) -> int:
        return 0

    def spec(self, number: int) -> Json:
        sampler = "random" if number else "tpe"
        return {**super().spec(number), "search": {"sampler": sampler}, "stopping": {"rule": "none"}}


class Run:
    """One controller in virtual time, without faults."""

    def __init__(self, proposer: Callable[[TwoStudies], Proposer], studies: type[TwoStudies] = TwoStudies) -> None:
        self.store, self.errors = empty_store(), ContainedErrors()
        self.simulation = studies(self.store, 3, no_faults())
        self.store.studies.create(self.simulation.spec(1), now=0.0)
        self.proposer, self.clock = proposer(self.simulation), self.simulation.clock
        self.controller = self.new_controller()

    def new_controller(self) -> Controller:
        executor = SimulatedExecutor(self.simulation.world, 1)
        sizer, clock = SimulatedSizer(self.clock, self.simulation.rng), self.clock
        return Controller(
            self.store, executor, sizer, self.proposer, time_and_tokens=TimeAndTokens(clock, clock), errors=self.errors
        )

    def cycle(self) -> None:
        self.controller.tick()
        self.simulation.world.advance(self.clock.now + 0.7)

    def numbers(self, study: int) -> list[int]:
        return [trial.number for trial in self.store.trials.page(study)]

    def says(self) -> list[tuple[int, str, int]]:
        return [(error.study_id, error.error, error.times) for error in self.errors.recent]


def hung(simulation: TwoStudies) -> Proposer:
    return Hung(simulation.clock, simulation.rng)


def test_the_loop_continues_while_a_sampler_sleeps(sleeper: type[Sleeper]) -> None:
    run = Run(lambda simulation: ThreadProposer())
    run.cycle()
    assert sleeper.asleep.wait(PATIENCE_SECONDS)

    def numbers(study: int) -> list[int]:
        run.controller.tick()
        return run.numbers(study)

    until(lambda: numbers(2), "trials of the other study")
    assert run.numbers(1) == [], "every tick ended while the sampler slept"
    sleeper.woken.set()
    until(lambda: numbers(1), "trials of the sampler that slept")
    run.controller.tick()
    assert run.numbers(1) == list(range(len(run.numbers(1)))) != []


def test_a_proposal_that_died_with_its_controller_is_made_again() -> None:
    run = Run(lambda simulation: SimulatedProposer(simulation.clock, simulation.rng))
    run.controller.tick()
    assert run.numbers(1) == []
    run.proposer = SimulatedProposer(run.clock, run.simulation.rng)
    run.controller = run.new_controller()
    run.controller.tick()
    run.controller.tick()
    trials = run.store.trials.page(1)
    spec = StudySpec.model_validate(run.store.studies.get(1).spec)
    assert [trial.params for trial in trials] == Search(spec).propose([], 0, len(trials)) != []


@pytest.mark.full
def test_a_sampler_that_hangs_is_shown_then_ends_its_study_alone() -> None:
    run = Run(hung)
    while run.clock.now < 1_000.0 + SLOW_SECONDS + 5.0:
        run.cycle()
    words = "TimeoutError: the sampler has not answered for 30 s; other studies continue"
    assert run.says() == [(1, words, 1)]
    while run.clock.now < 1_000.0 + HUNG_SECONDS + 5.0:
        run.cycle()
    study = run.store.studies.get(1)
    assert study.state is StudyState.FAILED
    assert study.reason == "its sampler was asked for trial 0 and has not answered for 10 minutes"
    assert run.says() == [(1, words, 1)]
    assert run.store.studies.get(2).state is StudyState.COMPLETED


def test_a_sampler_that_fails_now_and_then_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False] * 100)

    def propose(self: Search, *args: Any) -> Any:
        if next(answers):
            raise ValueError("not now")
        return usual(self, *args)

    usual = Search.propose
    monkeypatch.setattr(Search, "propose", propose)
    run = Run(lambda simulation: SimulatedProposer(simulation.clock, simulation.rng))
    while any(run.store.studies.get(study).state is StudyState.RUNNING for study in (1, 2)):
        assert run.clock.now < 10_000.0
        run.cycle()
    for study in (1, 2):
        assert run.store.studies.get(study).state is StudyState.COMPLETED
        assert run.numbers(study) == list(range(len(run.numbers(study)))) != []
    assert {error for _, error, _ in run.says()} == {"ValueError: not now"}


class Impossible(TwoStudies):
    """Study 1 has a constraint that no candidate satisfies."""

    def spec(self, number: int) -> Json:
        return {**super().spec(number), "constraints": ["mib < 0"]} if number == 0 else super().spec(number)


def test_a_constraint_that_rejects_everything_ends_the_study_with_one_reason() -> None:
    run = Run(lambda simulation: SimulatedProposer(simulation.clock, simulation.rng), Impossible)
    for _ in range(10):
        run.cycle()
    study = run.store.studies.get(1)
    assert study.state is StudyState.FAILED
    assert run.numbers(1) == []
    assert run.numbers(2)
    assert study.reason.startswith("the constraints reject every candidate: of some ")
    assert study.reason.endswith("most break 'mib < 0'")
