"""The real controller, decisions, ledger and store on a cluster in virtual time, through every fault there is."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scamp_service.control import controller, failing
from scamp_service.control.contained import ContainedErrors
from scamp_service.control.decide import decide, finish
from scamp_service.control.decide.effects import Effect
from scamp_service.control.decide.snapshot import Snapshot
from scamp_service.control.executor import GangStatus
from scamp_service.errors import Conflict, Unavailable
from scamp_service.lifecycle import (
    LIVE_TRIALS,
    STUDY_PAUSED,
    AttemptState,
    Origin,
    Outcome,
    StudyState,
    TrialState,
    WaitsFor,
)
from scamp_service.model import Attempt, Json, Lease, Metric, Report, Trial, TrialChanges
from scamp_service.store import schema
from scamp_service.store.parts.external import NewTrial
from scamp_service.store.parts.reports import Reports
from scamp_service.store.store import Store
from tests.quick_store import empty_store
from tests.seeds import first_seed
from tests.simulation import services, simulation, world
from tests.simulation.candidates import SLOW
from tests.simulation.faults import Faults, no_faults
from tests.simulation.services import SimulatedExecutor, SimulatedProposer, SimulatedSizer
from tests.simulation.simulation import Simulation
from tests.simulation.world import SimulatedGang, World
from tests.workloads.resumed import attempt as trained
from workloads.training.checkpoints.name import CheckpointName
from workloads.training.checkpoints.retention import outdated

pytestmark = pytest.mark.full


@pytest.fixture
def plain_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random candidates, one objective, no pauses or copies: seeds of a test keep their meaning as kinds are added."""
    monkeypatch.setattr(simulation, "STOPPINGS", simulation.STOPPINGS[:2])
    monkeypatch.setattr(simulation, "OBJECTIVES", {})
    monkeypatch.setattr(simulation, "EVOLUTION", "random")


NUM_SEEDS, NUM_SOAK_SEEDS = 30, 100_000
SEEDS_AT_ONCE, SOAK_SEEDS_AT_ONCE = 15, 1_000


def check(seeds: range) -> None:
    crashes = pauses = takeovers = 0
    for seed in seeds:
        simulation = Simulation(empty_store(), seed)
        simulation.run()
        crashes += simulation.num_crashes
        pauses += simulation.num_pauses
        takeovers += simulation.world.term
    assert min(crashes, pauses, takeovers) > len(seeds), "the faults must happen, or this proves nothing"


@pytest.mark.sample
@pytest.mark.parametrize("first", range(0, NUM_SEEDS, SEEDS_AT_ONCE))
def test_no_trial_is_lost_or_counted_twice_under_faults(first: int) -> None:
    check(range(first, first + SEEDS_AT_ONCE))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(NUM_SEEDS, NUM_SEEDS + NUM_SOAK_SEEDS, SOAK_SEEDS_AT_ONCE))
def test_no_trial_is_lost_or_counted_twice_with_many_seeds(first: int) -> None:
    check(range(first, first + SOAK_SEEDS_AT_ONCE))


def test_simulations_on_the_quick_store_are_those_on_the_usual_one() -> None:
    for seed in (0, 1, 2, 4):
        usual, quick = Store("sqlite://"), empty_store()
        on_usual, on_quick = Simulation(usual, seed), Simulation(quick, seed)
        on_usual.run()
        on_quick.run()
        assert contents(usual) == contents(quick)
        assert on_usual.rng.getstate() == on_quick.rng.getstate()
        usual.close()


def contents(store: Store) -> dict[str, list[Any]]:
    """All rows, by table."""
    with store._database.read() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key)).all()]
            for table in schema.metadata.sorted_tables
        }


class Unstopped(Simulation):
    """Which of two trials is first at a rung depends on moments, and no trial of this one is stopped there."""

    def spec(self, number: int) -> Json:
        return {**super().spec(number), "stopping": {"rule": "none"}}


@pytest.mark.usefixtures("plain_studies")
@pytest.mark.parametrize("seed", [4, 5, 6])
def test_time_is_skipped_only_while_nothing_can_happen(seed: int) -> None:
    """Without faults, a world whose clock skips does what the same world with a steady clock does, in fewer cycles."""
    ends = {}
    for skips in (False, True):
        store = empty_store()
        simulation = Unstopped(store, seed, no_faults())
        simulation.skips = skips
        simulation.run()
        ends[skips] = [(trial.state, trial.params, trial.step, trial.num_oom) for trial in store.trials.page(1)]
    assert ends[True] == ends[False]


def test_a_gang_starts_on_the_device_on_which_the_executor_has_an_idle_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedExecutor, "ready", lambda executor: {"n0/3": frozenset({None})})
    store = empty_store()
    Simulation(store, 3, no_faults()).run()
    assert [attempt.devices for attempt in store.attempts.of_study(1) if len(attempt.devices) == 1] == [("n0/3",)]


def test_without_the_fencing_token_the_simulation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant takes reports for whatever attempt the trial is in now, whoever sends them."""
    add, end, store = Reports.add, Reports.end, empty_store()

    def unfenced_add(reports: Reports, report: Report, *, now: float) -> bool:
        newest = store.attempts.of_trial(report.trial_id)[-1]
        return add(reports, replace(report, attempt=newest.attempt, token=newest.token), now=now)

    def unfenced_end(reports: Reports, trial_id: int, attempt: int, token: str, *args: Any, **kwargs: Any) -> bool:
        newest = store.attempts.of_trial(trial_id)[-1]
        return end(reports, trial_id, newest.attempt, newest.token, *args, **kwargs)

    monkeypatch.setattr(Reports, "add", unfenced_add)
    monkeypatch.setattr(Reports, "end", unfenced_end)
    faults = Faults(late_report=0.5, kill_rank=0.1)
    assert any(fails(lambda store, seed: Simulation(store, seed, faults), seed) for seed in range(40))


class UnfencedWrites(Simulation):
    """The mutant: a controller that was replaced continues to write."""

    def fence(self, lease: Lease) -> Store:
        return self.store


@pytest.mark.soak  # a hundred simulations
@pytest.mark.usefixtures("plain_studies")
def test_without_the_epoch_the_simulation_fails() -> None:
    faults = Faults(pause=0.2)
    assert any(fails(lambda store, seed: UnfencedWrites(store, seed, faults), seed) for seed in range(120))


def fails(make: Callable[[Any, int], Simulation], seed: int) -> bool:
    """Whether the simulation with this seed finds a fault."""
    try:
        make(empty_store(), seed).run()
    except AssertionError:
        return True
    return False


def test_a_full_disk_a_lost_sink_and_a_cluster_that_changes_lose_nothing() -> None:
    faults = Faults(fill_disk=0.1, lose_sink=0.4, join_late=1.0, shrink=0.5, kill_rank=0.1)
    num_faults = 0
    for seed in range(100, 103):
        run = Simulation(empty_store(), seed, faults)
        run.run()
        num_faults += run.world.num_faults
    assert num_faults > 3, "the faults must happen, or this proves nothing"


def test_when_only_the_newest_two_checkpoints_are_kept_the_simulation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(lose_sink=0.5, kill_rank=0.2)
    monkeypatch.setattr(world, "outdated", lambda written, newest, needed: outdated(written, newest, ()))
    assert any(fails(lambda store, seed: Simulation(store, seed, faults), seed) for seed in range(40))


def test_when_a_verdict_is_final_the_simulation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "offers_more", lambda offer, before: False)
    faults = Faults(join_late=1.0, lose_node=0.0)
    assert any(fails(lambda store, seed: Simulation(store, seed, faults), seed) for seed in range(40))


class OnFourDevices(Simulation):
    """One study, whose trials need four devices each; there are four or eight."""

    def num_later_studies(self) -> int:
        return 0

    def spec(self, number: int) -> Json:
        return alike(super().spec(number), {"mib": 30, "ranks": 4}, trials=24)


def alike(usual: Json, params: Json, trials: int) -> Json:
    """The spec with trials that all have these parameters and train to the end."""
    space = {"space": {"lr": {"low": 0.1, "high": 0.9}}, "fixed": params}
    plain = {"objective": simulation.SCORE, "objectives": [], "stopping": {"rule": "none"}}
    search = {**usual["search"], "sampler": "random"}
    return {**usual, **space, **plain, "search": search, "budget": {**usual["budget"], "trials": trials}}


@pytest.mark.soak  # a search for the seed that shows it
def test_when_the_devices_of_a_plan_are_not_waited_for_the_simulation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_failed(seed: int) -> bool:
        return fails(lambda store, seed: OnFourDevices(store, seed, Faults(shrink=1.0, jump_clock=0.0)), seed)

    with monkeypatch.context() as mutant:
        mutant.setattr(finish, "RETURN_SECONDS", finish.JOIN_SECONDS)
        seed = first_seed(has_failed)
    assert not has_failed(seed)


class AnswersWhileItIsRead(SimulatedExecutor):
    """Its ranks begin to answer between the first question about gangs and the next one about silent devices."""

    def gangs(self) -> Mapping[str, GangStatus]:
        living = super().gangs()
        self.heard.clear()
        return living


def test_a_rank_that_answers_while_the_snapshot_is_read_is_not_taken_for_gone() -> None:
    simulation = Simulation(empty_store(), 3, no_faults())
    world, store = simulation.world, simulation.store
    while not world.gangs_by_key:
        simulation.cycle()
    executor = AnswersWhileItIsRead(world, world.term)
    executor.heard = dict.fromkeys(world.gangs_by_key, world.clock.now + 1.0)
    sizer, proposer = SimulatedSizer(simulation.clock, simulation.rng), SimulatedProposer(simulation.clock, world.rng)
    time_and_tokens = controller.TimeAndTokens(world.wall_clock)
    snapshot = controller.Controller(store, executor, sizer, proposer, time_and_tokens=time_and_tokens).find()
    held = [attempt for attempt in snapshot.attempts if attempt.key in world.gangs_by_key]
    assert held and all(snapshot.may_hold_memory(attempt) for attempt in held)
    assert snapshot.closed >= {device for attempt in held for device in attempt.devices}


class Urgent(Simulation):
    """A second study, of another project, has a higher priority than the one that runs, and needs four devices."""

    def num_later_studies(self) -> int:
        return 1

    def spec(self, number: int) -> Json:
        params = {"mib": 85, "ranks": 4 if number else 1}
        usual = alike(super().spec(number), params, trials=3 if number else 12)
        return {**usual, "priority": 10 * number, "project": f"project-{number}"}


def test_trials_that_are_preempted_under_faults_lose_nothing() -> None:
    def preempts(seed: int) -> bool:
        simulation = Urgent(empty_store(), seed)
        simulation.run()
        preempted = [
            attempt for attempt in simulation.store.attempts.of_study(1) if "needs its devices" in attempt.detail
        ]
        assert all(attempt.outcome is Outcome.STOPPED and attempt.checkpoint_step >= 0 for attempt in preempted)
        return bool(preempted)

    first_seed(preempts)


class Paused(Simulation):
    """Its user pauses a study now and then, and resumes it a little later."""

    def spec(self, number: int) -> Json:
        usual = super().spec(number)
        return {**usual, "budget": {**usual["budget"], "steps": 40, "report_every": 4}}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.user = random.Random(self.seed)

    def cycle(self) -> None:
        training = [attempt for attempt in self.store.attempts.open() if attempt.state is AttemptState.RUNNING]
        if training and self.user.random() < 0.1:
            self.pause(self.store.trials.get(training[0].trial_id).study_id, paused=True)
        super().cycle()

    def pause(self, study_id: int, *, paused: bool) -> None:
        if self.store.studies.get(study_id).state is StudyState.RUNNING:
            self.store.requests.pause(study_id, paused=paused, now=self.clock.now)
            if paused:
                self.world.after(self.user.uniform(0.0, 10.0), lambda: self.pause(study_id, paused=False))


def test_trials_of_paused_studies_keep_what_they_have_trained_between_reports_under_faults() -> None:
    withdrawn: list[Attempt] = []
    for seed in range(1, 6):
        simulation = Paused(empty_store(), seed)
        simulation.run()
        for study in simulation.store.studies.page():
            attempts = simulation.store.attempts.of_study(study.id)
            withdrawn += [attempt for attempt in attempts if attempt.detail == STUDY_PAUSED]
    assert all(attempt.outcome is Outcome.STOPPED for attempt in withdrawn)
    assert sum(attempt.checkpoint_step >= 0 and attempt.checkpoint_step % 4 > 0 for attempt in withdrawn) > 2


class NeverWider(Simulation):
    """Trials that are never moved to idle devices, because they can use one alone."""

    def spec(self, number: int) -> Json:
        usual = super().spec(number)
        return {**usual, "space": {**usual["space"], "most_ranks": {"choice": [1]}}}


@pytest.mark.sample
@pytest.mark.usefixtures("plain_studies")
def test_without_faults_every_feasible_trial_finishes_in_its_first_attempt() -> None:
    def heals(seed: int) -> bool:
        store = empty_store()
        NeverWider(store, seed, no_faults()).run()
        trials = [trial for study in store.studies.page() for trial in store.trials.page(study.id)]
        completed = [trial for trial in trials if trial.state is TrialState.COMPLETED]
        assert all(trial.attempt == trial.num_oom + 1 for trial in completed)
        return {trial.num_oom for trial in completed} >= {0, 1}

    first_seed(heals)


@pytest.mark.sample
def test_a_stored_study_that_cannot_be_read_fails_alone() -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    spec = {**store.studies.page()[0].spec, "space": {"mib": {"from": 1}}}
    unreadable = store.studies.create(spec, now=0.0)
    store.trials.create(unreadable.id, [(0, {"mib": 10})], now=0.0)
    simulation.cycle()
    simulation.cycle()
    assert store.studies.get(unreadable.id).state is StudyState.FAILED
    assert "submit it again" in store.studies.get(unreadable.id).reason
    assert [trial.state for trial in store.trials.page(unreadable.id)] == [TrialState.CANCELLED]
    assert store.trials.page(1), "the other study goes on"


def test_an_effect_that_fails_is_remembered_with_its_study_and_stops_that_study_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_search(spec: Any) -> Any:
        raise ValueError("no such sampler")

    store = Store("sqlite://")
    simulation = Simulation(store, 3, no_faults())
    executor: Any = SimulatedExecutor(simulation.world, 1)
    errors = ContainedErrors()
    seconds = count(0.0, failing.SECONDS_BEFORE_FAILED / failing.ERRORS_BEFORE_FAILED)
    now = controller.TimeAndTokens(lambda: 7.0, lambda: next(seconds))
    process = simulation.controllers[0]
    leader = controller.Controller(store, executor, process.sizer, process.proposer, time_and_tokens=now, errors=errors)
    monkeypatch.setattr(services, "Search", no_search)
    while store.studies.page()[0].state is StudyState.RUNNING:
        leader.tick()
    for study, error in zip(store.studies.page(), sorted(errors.recent, key=lambda error: error.study_id), strict=True):
        assert error.study_id == study.id and error.times >= failing.ERRORS_BEFORE_FAILED
        assert error.doing.startswith("propose ") and error.error == "ValueError: no such sampler"
        assert (error.first_at, error.last_at) == (7.0, 7.0)
        assert study.state is StudyState.STOPPING and "no such sampler" in study.reason


@pytest.mark.usefixtures("plain_studies")
def test_a_study_about_which_nothing_can_be_decided_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    other = store.studies.create(simulation.spec(1), now=simulation.clock.now).id
    culprit = store.studies.page()[0].id
    while not store.attempts.open():
        simulation.cycle()
    monkeypatch.setattr(controller, "decide", lambda snapshot: decide_without(culprit, snapshot))
    leader, _ = one_controller(store, simulation)
    for _ in range(failing.ERRORS_BEFORE_FAILED):
        fail_once(leader)
        assert {attempt.outcome for attempt in store.attempts.open()} == {None}, "its ranks go on"
    assert store.studies.get(culprit).state is StudyState.RUNNING, "all this took no time: the fault may pass"
    simulation.clock.now += failing.SECONDS_BEFORE_FAILED + 0.001  # more than the rounding of the clock
    fail_once(leader)
    study = store.studies.get(culprit)
    assert study.state is StudyState.FAILED
    assert study.reason == (
        "the controller failed on it 31 times in a row within 120 s; see its log: ZeroDivisionError: a bug of ours"
    )
    assert {trial.state for trial in store.trials.page(culprit)} == {TrialState.CANCELLED}
    monkeypatch.undo()
    while not simulation.has_ended:
        simulation.cycle()
    assert store.studies.get(other).state is StudyState.COMPLETED


def test_a_few_errors_far_apart_end_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that was frozen, or that pauses after errors, has tried less often than it seems."""
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    culprit = store.studies.page()[0].id
    monkeypatch.setattr(controller, "decide", lambda snapshot: decide_without(culprit, snapshot))
    leader, _ = one_controller(store, simulation)
    for _ in range(failing.ERRORS_BEFORE_FAILED - 1):
        fail_once(leader)
        simulation.clock.now += failing.SECONDS_BEFORE_FAILED
    assert store.studies.get(culprit).state is StudyState.RUNNING


def fail_once(leader: controller.Controller) -> None:
    with pytest.raises(ZeroDivisionError):
        leader.tick()


def decide_without(culprit: int, snapshot: Snapshot) -> list[Effect]:
    if culprit in snapshot.studies:
        raise ZeroDivisionError("a bug of ours")
    return decide(snapshot)


def test_an_error_that_no_study_causes_ends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    leader, _ = one_controller(store, simulation)
    monkeypatch.setattr(controller, "decide", lambda snapshot: 1 // 0)
    for _ in range(2 * failing.ERRORS_BEFORE_FAILED):
        fail_once(leader)
        simulation.clock.now += failing.SECONDS_BEFORE_FAILED
    assert {study.state for study in store.studies.page()} == {StudyState.RUNNING}


def test_the_age_of_a_verdict_survives_controllers_after_the_clock_was_set_back() -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    study = store.studies.page()[0]
    store.trials.create(study.id, [(0, {"mib": 10})], now=90_000.0)
    moved = (TrialState.WAITING, 0, TrialState.INFEASIBLE)
    assert store.trials.move(
        1, *moved, now=90_000.0, reason="needs 9 devices", changes=TrialChanges(offer=(("virtual", 96, 8),))
    )
    for seconds in (0.0, 37.0, 74.0):  # each controller crashes
        simulation.clock.now = 1_000.0 + seconds
        (age,) = one_controller(store, simulation)[0].find().refusals.values()
        assert age == seconds


def one_controller(store: Store, simulation: Simulation) -> tuple[controller.Controller, SimulatedSizer]:
    clock = simulation.clock
    sizer, proposer = SimulatedSizer(clock, simulation.rng), SimulatedProposer(clock, simulation.rng)
    executor = SimulatedExecutor(simulation.world, 1)
    time_and_tokens = controller.TimeAndTokens(clock, clock)
    return controller.Controller(store, executor, sizer, proposer, time_and_tokens=time_and_tokens), sizer


def test_proposals_that_could_not_be_stored_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid whose last two points are asked for with four others must not count as used up before they are stored."""
    store = Store("sqlite://")
    simulation = Simulation(store, 3, no_faults())
    grid = {"space": {"mib": {"choice": [10, 30]}, "ranks": {"choice": [1]}}, "search": {"sampler": "grid"}}
    study = store.studies.create({**store.studies.page()[0].spec, **grid, "stopping": {"rule": "none"}}, now=0.0)
    leader, _ = one_controller(store, simulation)
    leader.tick()
    with monkeypatch.context() as patch:
        patch.setattr(store.trials, "create", raise_unavailable)
        with pytest.raises(Unavailable):
            leader.tick()
    leader.tick()
    assert [trial.params["mib"] for trial in store.trials.page(study.id)] == [10, 30]


def raise_unavailable(*args: Any, **others: Any) -> Any:
    raise Unavailable("the database is away")


def test_a_plan_that_was_made_for_another_question_is_not_taken() -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    leader, sizer = one_controller(store, simulation)
    for _ in range(3):  # asks for candidates, stores them, asks for plans
        leader.tick()
    simulation.clock.now += 5.0
    assert sizer.results()
    assert leader.find().sized
    another, _ = one_controller(store, simulation)
    another._sizer = sizer  # a later controller of the same process has not asked
    assert not another.find().sized
    assert not sizer.results()


def test_a_controller_is_idle_once_no_study_lives_and_no_attempt_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    store = empty_store()
    simulation = Simulation(store, 3, no_faults())
    leader, _ = one_controller(store, simulation)
    leader.tick()
    assert not leader.is_idle, "a study is live"
    simulation.run()
    leader.tick()
    assert leader.is_idle
    with monkeypatch.context() as patch:
        patch.setattr(store.attempts, "open", raise_unavailable)
        with pytest.raises(Unavailable):
            leader.tick()
    assert not leader.is_idle, "nobody knows"


def test_ranks_that_are_killed_with_the_service_cost_their_trials_no_loss() -> None:
    store = empty_store()
    simulation = Simulation(store, 15, no_faults())
    world = simulation.world
    while not (num_killed := len(world.gangs_by_key)) or num_killed < len(store.attempts.open()):
        simulation.cycle()
    leader, _ = one_controller(store, simulation)
    leader.record_stops()
    assert {attempt.outcome for attempt in store.attempts.open()} == {Outcome.STOPPED}
    world.gangs_by_key.clear()
    simulation.run()
    trials = [trial for study in store.studies.page() for trial in store.trials.page(study.id)]
    attempts = [attempt for study in store.studies.page() for attempt in store.attempts.of_study(study.id)]
    assert sum(trial.num_lost for trial in trials) == 0
    assert sum("with the service" in attempt.detail for attempt in attempts) == num_killed


class TrainsNarrowOnly(Simulation):
    """Long trials of one rank that are moved to idle devices, where the model fails under every wider plan."""

    def num_later_studies(self) -> int:
        return 0

    def spec(self, number: int) -> Json:
        asha = {"rule": "asha", "min_steps": 2, "reduction_factor": 2}  # the others end early
        only = {"mib": 10, "ranks": 1, "spike": 0, "most_ranks": 4, "slow": SLOW, "breaks": 1}
        space = {"space": {"lr": {"low": 0.1, "high": 0.9}}, "fixed": only, "stopping": asha}
        usual = super().spec(number)
        return {**usual, **space, "budget": {**usual["budget"], "trials": 4}}


@pytest.mark.usefixtures("plain_studies")
def test_a_trial_that_fails_under_a_wider_plan_ends_under_the_one_before() -> None:
    def tries_wider(seed: int) -> bool:
        store = empty_store()
        TrainsNarrowOnly(store, seed, no_faults()).run()  # every trial completes, or this fails
        return any(attempt.outcome is Outcome.ERROR for attempt in store.attempts.of_study(1))

    first_seed(tries_wider)


def test_trials_of_users_and_of_other_programs_go_beside_those_of_the_sampler() -> None:
    store = Store("sqlite://")
    simulation = Simulation(store, 11, no_faults())
    study = store.studies.page()[0].id
    while not store.attempts.open():
        simulation.cycle()
    external = store.external.create_trials(study, [NewTrial(TrialState.RUNNING), NewTrial(TrialState.FAILED)], now=1.0)
    params = {**store.trials.page(study)[0].params, "mib": 10, "ranks": 1, "breaks": 0}
    enqueued = store.requests.enqueue(study, [params], "k", now=1.0)
    before = [store.trials.get(trial) for trial in external]
    while not simulation.has_ended:
        simulation.cycle()
    trials = store.trials.page(study)
    budget = store.studies.get(study).spec["budget"]["trials"]
    assert sum(trial.origin is Origin.SEARCH for trial in trials) == budget
    assert store.trials.numbered(study, enqueued[0]).state not in LIVE_TRIALS
    store.requests.extend(study, {"trials": budget + 2}, now=simulation.clock.now)
    while store.studies.get(study).state is StudyState.RUNNING:
        simulation.cycle()
    assert sum(trial.origin is Origin.SEARCH for trial in store.trials.page(study)) == budget + 2
    assert [store.trials.get(trial) for trial in external] == before, "nobody but their own program changes them"
    (last,) = store.requests.enqueue(study, [params], "another", now=simulation.clock.now)
    assert store.studies.get(study).state is StudyState.RUNNING
    while store.studies.get(study).state is StudyState.RUNNING:
        simulation.cycle()
    assert store.trials.numbered(study, last).state not in LIVE_TRIALS
    assert sum(trial.origin is Origin.SEARCH for trial in store.trials.page(study)) == budget + 2


class ShortOfTime(Simulation):
    """A simulation whose studies have few seconds."""

    def spec(self, number: int) -> Json:
        spec = super().spec(number)
        return {**spec, "budget": {**spec["budget"], "seconds": 4.0}}


@pytest.mark.usefixtures("plain_studies")
def test_every_trial_that_a_limit_has_cancelled_is_trained_once_the_limit_is_dropped() -> None:
    num_cancelled = 0
    for seed in range(3):
        store = empty_store()
        simulation = ShortOfTime(store, seed)
        while not simulation.has_ended:
            simulation.cycle()
        for study in store.studies.page():
            cancelled = [trial.number for trial in store.trials.page(study.id) if trial.state is TrialState.CANCELLED]
            store.requests.extend(study.id, {"seconds": None}, now=simulation.clock.now)
            assert all(store.trials.numbered(study.id, number).state is TrialState.WAITING for number in cancelled)
            num_cancelled += len(cancelled)
        simulation.run()  # no trial is CANCELLED at its end
    assert num_cancelled > 3


class InHours(Simulation):
    """A simulation whose study has some hours, by the clock and on its devices."""

    def spec(self, number: int) -> Json:
        spec = super().spec(number)
        return {**spec, "budget": {**spec["budget"], "seconds": 7200.0, "device_hours": 4.0}}


@pytest.mark.parametrize("jump", [86_400.0, -86_400.0])
def test_a_clock_that_is_wrong_for_ten_seconds_ends_no_study(jump: float) -> None:
    store = empty_store()
    simulation = InHours(store, 3, no_faults())
    while not simulation.world.gangs_by_key:
        simulation.cycle()
    simulation.world.jumped = jump
    until = simulation.clock.now + 10.0
    while simulation.clock.now < until:
        simulation.cycle()
    simulation.world.jumped = 0.0
    simulation.run()
    (study,) = store.studies.page()
    assert (study.state, study.reason) == (StudyState.COMPLETED, "")
    assert 0.0 < store.counts.device_seconds(study.id, now=simulation.clock.now) < 14_400.0
    assert study.ran_seconds == pytest.approx((study.finished_at or 0.0) - study.created_at, abs=15.0)


class ChanceErrors(Simulation):
    """Studies whose code fails now and then, with a number of allowed failures."""

    max_failures = 1000

    def spec(self, number: int) -> Json:
        usual = super().spec(number)
        return {**usual, "budget": {**usual["budget"], "max_failures": self.max_failures}}


def test_trials_whose_code_fails_now_and_then_end_once_each_under_faults() -> None:
    num_errors = 0
    for seed in range(4):
        store = empty_store()
        ChanceErrors(store, seed, Faults(raise_error=0.2)).run()
        num_errors += sum(attempt.outcome is Outcome.ERROR for attempt in store.attempts.of_study(1))
    assert num_errors > 4, "the errors must happen, or this proves nothing"


def test_trials_that_resume_differently_begin_anew_each_time_and_end_once_each_under_faults() -> None:
    num_found = 0
    for seed in range(6):
        store = empty_store()
        Simulation(store, seed, Faults(resume_otherwise=0.5)).run()
        num_found += sum(attempt.outcome is Outcome.RESUMES_DIFFERENTLY for attempt in store.attempts.of_study(1))
    assert num_found > 3, "it must happen, or this proves nothing"


class RealWorld(World):
    """Ranks that train for real, a program whose closure counts its calls."""

    folder: Path

    def _train(self, gang: SimulatedGang) -> None:
        order, last = gang.order, gang.order.until or gang.order.steps
        root, begin = f"trial-{order.trial_id}", order.resume.step if order.resume else 0
        answer = trained(self.folder, "Generated", begin, last, root=root)
        if "ResumesDifferently" in answer["error"]:
            self.finish(gang, Outcome.RESUMES_DIFFERENTLY, answer["error"])
            return
        for gang.seq, (step, values) in enumerate(answer["reports"], 1):
            self.disk[order.trial_id].add(CheckpointName(order.trial_id, step))
            score = {"score": values["loss"]}
            row = Metric(order.trial_id, order.attempt, gang.seq, step, score, self.clock.now)
            self.report(gang, step, [row])
        self.finish(gang, Outcome.DONE, "")


class Promoting(Simulation):
    """Trials are paused at steps 2 and 4, and some continue."""

    def num_later_studies(self) -> int:
        return 0

    def spec(self, number: int) -> Json:
        return {
            "name": "paused",
            "workload": "vit_digits",
            "objective": {"metric": "score", "direction": "minimize"},
            "space": {"slow": {"choice": [1, 2]}},
            "fixed": {"mib": 30, "ranks": 1},
            "search": {"sampler": "random", "seed": 1},
            "stopping": {"rule": "asha", "min_steps": 2, "reduction_factor": 2, "promote": True},
            "budget": {"trials": 2, "steps": 8, "report_every": 2},
        }

    def check_trial(self, trial: Trial) -> None:
        assert trial.state in (TrialState.COMPLETED, TrialState.PRUNED), trial


def test_a_promoted_trial_that_resumes_differently_ends_with_the_curve_of_one_that_nobody_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "World", RealWorld)
    monkeypatch.setattr(RealWorld, "folder", tmp_path, raising=False)
    store = empty_store()
    Promoting(store, 1, no_faults()).run()
    straight = trained(tmp_path, "Generated", 0, 8, root="straight")["reports"]
    completed = [trial for trial in store.trials.page(1) if trial.state is TrialState.COMPLETED]
    assert completed
    for trial in completed:
        first, second, *others = [attempt.outcome for attempt in store.attempts.of_trial(trial.id)]
        assert (first, second) == (Outcome.DONE, Outcome.RESUMES_DIFFERENTLY), "it is found once the trial is promoted"
        assert others and set(others) == {Outcome.DONE} and not trial.resumes
        curve = [(metric.step, metric.values["score"]) for metric in store.reports.metrics(trial.id)]
        assert curve == [(step, values["loss"]) for step, values in straight]


class FirstErrors(ChanceErrors):
    max_failures = 0

    def num_later_studies(self) -> int:
        return 0


def test_trials_that_have_failed_end_once_each_after_a_user_has_retried_them() -> None:
    num_failed = 0
    for seed in range(4):
        store = empty_store()
        simulation = FirstErrors(store, seed, Faults(raise_error=0.2, jump_clock=0.0))
        while not simulation.has_ended:
            simulation.cycle()
        simulation.faults.raise_error = 0.0
        retried = store.requests.retry(1, now=simulation.clock.now)
        num_failed += len(retried)
        simulation.run()
        assert not retried or store.studies.get(1).state is StudyState.COMPLETED
    assert num_failed > 4, "the trials must fail, or this proves nothing"


@pytest.mark.usefixtures("plain_studies")
def test_no_trial_of_a_paused_study_runs_and_none_is_lost_under_faults() -> None:
    num_waiting = 0
    for seed in range(4):
        store = empty_store()
        simulation = Simulation(store, seed)
        while not simulation.has_ended and not any(trial.state is TrialState.RUNNING for trial in store.trials.page(1)):
            simulation.cycle()
        store.requests.pause(1, paused=True, now=simulation.clock.now)
        for _ in range(60):
            simulation.cycle()
        waiting = [trial for trial in store.trials.page(1) if trial.state is TrialState.QUEUED]
        assert not [trial for trial in store.trials.page(1) if trial.state is TrialState.RUNNING]
        assert {trial.waits_for for trial in waiting} <= {WaitsFor.RESUME, WaitsFor.RETRY}
        num_waiting += len(waiting)
        store.requests.pause(1, paused=False, now=simulation.clock.now)
        simulation.run()
    assert num_waiting > 4, "trials must wait, or this proves nothing"


@pytest.mark.usefixtures("plain_studies")
def test_trials_that_are_deleted_while_others_run_are_not_tried_again_and_are_no_loss_for_the_sampler() -> None:
    num_deleted = 0
    for seed in range(4):
        store = empty_store()
        simulation, deleted = Simulation(store, seed), set[int]()
        while not simulation.has_ended:
            simulation.cycle()
            for ended in store.trials.page(1, states=[TrialState.COMPLETED, TrialState.PRUNED]):
                with suppress(Conflict):  # its ranks wind down
                    store.trials.delete(1, ended.number, now=simulation.clock.now)
                    deleted.add(ended.number)
        every = store.trials.every(1, with_deleted=True)
        assert {trial.number for trial in every if trial.state is TrialState.DELETED} == deleted
        proposed = [trial for trial in every if trial.origin is Origin.SEARCH]
        assert len(proposed) == store.studies.get(1).spec["budget"]["trials"], "none takes the place of a deleted one"
        num_deleted += len(deleted)
    assert num_deleted > 4
