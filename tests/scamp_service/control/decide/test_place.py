"""Queued trials get devices that are free and open, and memory that winds down is not given away."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimators.model import MIB, Plan
from placement.model import Cluster, Device
from placement.packing.device_time import DeviceTime
from placement.packing.fixed import min_degree
from placement.packing.projects import Project
from placement.packing.turns import PASSES_BEFORE_RESERVATION
from scamp_service.control.decide.effects import Begin, MoveTrial, Propose, withdraw
from scamp_service.control.decide.place import IS_PAUSED, PASSES_BEFORE_DRAINING, WAITS_FOR_FRONT
from scamp_service.control.decide.snapshot import Packing
from scamp_service.lifecycle import IDLE_PAUSED, TRIAL_PAUSED, AttemptState, TrialState, WaitsFor
from scamp_service.model import Trial
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from tests.scamp_service.control.decide.snapshots import ALIVE, CLUSTER, effects_of, only_move, study
from tests.values import attempt, changed, sized, trial
from workloads.training.checkpoints.name import CheckpointName, Donor


def test_an_attempt_knows_the_kinds_of_its_devices() -> None:
    mixed = Cluster((Device("a", "n", 0, "L4", 96), Device("b", "n", 1, "H200", 96), Device("c", "n", 2, "T4", 8)))
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=2), reserved_mib=20)
    begin = next(effect for effect in effects_of(trials=[queued], cluster=mixed) if isinstance(effect, Begin))
    assert begin.attempt.device_kinds == ("H200", "L4")


def of_kinds(**changes: Any) -> Trial:
    """A queued trial with a plan on one L4, and one on two T4."""
    queued = trial(state=TrialState.QUEUED, attempt=0, sized=sized(Plan(2), 40), **changes)
    assert queued.sized is not None
    large, small = (replace(sized(plan, mib).choice, kind=kind) for plan, mib, kind in TWO_PLANS)
    return replace(queued, sized=replace(queued.sized, choice=large, choices=(large, small)))


TWO_PLANS = ((Plan(2), 40, "L4"), (Plan(1, dp_shard=2), 24, "T4"))
T4S = Cluster(tuple(Device(f"t{n}", "n", n, "T4", 48) for n in range(2)))


def test_an_attempt_has_the_plan_for_the_kind_of_its_devices() -> None:
    begin = next(effect for effect in effects_of(trials=[of_kinds()], cluster=T4S) if isinstance(effect, Begin))
    assert begin.attempt.choice.kind == "T4" and begin.attempt.plan == TWO_PLANS[1][0]
    assert begin.attempt.devices == ("t0", "t1")


def test_a_trial_whose_study_is_bound_to_a_kind_starts_there_or_is_planned_again_without_it() -> None:
    mixed, rules = Cluster((*T4S.devices, Device("l", "m", 0, "L4", 96))), {1: study(kinds=frozenset({"T4"}))}
    begin = next(effect for effect in effects_of(trials=[of_kinds()], cluster=mixed, studies=rules))
    assert isinstance(begin, Begin) and begin.attempt.devices == ("t0", "t1")
    lost = of_kinds(num_lost=1)  # its plan is then for devices of any kind
    (waits,) = effects_of(trials=[lost], cluster=mixed, studies=rules, closed=frozenset({"t0", "t1"}))
    assert isinstance(waits, MoveTrial) and waits.reason.endswith("; its study may use T4 alone")
    begin = next(effect for effect in effects_of(trials=[lost], cluster=mixed, studies=rules))
    assert isinstance(begin, Begin) and begin.attempt.devices == ("t0",)
    without = Cluster(mixed.devices[2:])
    again = only_move(effects_of(trials=[of_kinds()], cluster=without, studies=rules))
    assert again.to is TrialState.WAITING
    assert again.reason.endswith("its plan needs 1 × 40 MiB, and the cluster now has 0 such devices of T4")


@pytest.mark.parametrize(
    ("changes", "packing"),
    [
        pytest.param({"num_oom": 1}, {}, id="out of memory"),
        pytest.param({"num_lost": 1}, {}, id="lost"),
        pytest.param({}, {"packing": Packing(policy=min_degree)}, id="a policy that knows no kinds"),
    ],
)
def test_the_first_plan_is_for_any_kind_where_it_is_the_only_one(
    changes: dict[str, Any], packing: dict[str, Any]
) -> None:
    effects = effects_of(trials=[of_kinds(**changes)], cluster=T4S, **packing)
    begin = next(effect for effect in effects if isinstance(effect, Begin))
    assert begin.attempt.choice.kind == "" and begin.attempt.plan == TWO_PLANS[0][0]


def test_nothing_is_placed_on_a_closed_device() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, sized=sized(Plan(1), 10))
    cluster = Cluster((Device("a", "n", 0, "virtual", 96), Device("b", "n", 1, "virtual", 96)))
    (begun,) = effects_of(trials=[queued], attempts=[], gangs={}, cluster=cluster, closed=frozenset("a"))
    assert isinstance(begun, Begin) and begun.attempt.devices == ("b",)
    (waits,) = effects_of(trials=[queued], attempts=[], gangs={}, cluster=cluster, closed=frozenset("ab"))
    assert isinstance(waits, MoveTrial) and waits.to is TrialState.QUEUED


def test_of_equal_devices_a_trial_gets_the_one_where_a_rank_has_run_its_code() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, sized=sized(Plan(1), 10))
    ready = {"n/1": frozenset({None, "other"}), "n/2": frozenset({"mine"})}
    begun = {
        code: next(
            effect.attempt
            for effect in effects_of(trials=[queued], studies={1: study(code=code)}, ready=ready)
            if isinstance(effect, Begin)
        )
        for code in ("mine", "new")
    }
    assert {code: attempt.devices for code, attempt in begun.items()} == {"mine": ("n/2",), "new": ("n/1",)}
    assert "and of equal ones those where a rank is ready, on node n" in begun["mine"].placement_reason


PEAK, RANKS = (Objective(metric=f"predicted.{name}", direction="minimize") for name in ("peak_mib", "ranks"))


@pytest.mark.parametrize(
    "front",
    [
        pytest.param({}, id="no front"),
        pytest.param({0: (20.0, 1.0)}, id="equal"),
        pytest.param({3: (30.0, 1.0)}, id="worse"),
    ],
)
def test_what_no_other_trial_dominates_is_launched(front: dict[int, tuple[float, float]]) -> None:
    rules = {1: study(objectives=Objectives((PEAK, RANKS)))}
    queued = trial(state=TrialState.QUEUED, attempt=0, predicted_bytes=20 * MIB)
    (effect,) = effects_of(trials=[queued], studies=rules, fronts={1: front})
    assert isinstance(effect, Begin)


def test_what_another_trial_dominates_for_certain_is_never_launched() -> None:
    rules = {1: study(objectives=Objectives((PEAK, RANKS)))}
    queued = trial(state=TrialState.QUEUED, attempt=0, predicted_bytes=20 * MIB)
    move = only_move(effects_of(trials=[queued], studies=rules, fronts={1: {3: (19.0, 1.0)}}))
    assert (move.to, move.reason) == (
        TrialState.PRUNED,
        "not trained: trial 3 has (predicted.peak_mib 19, predicted.ranks 1), and this one has no better value in any "
        "objective: (predicted.peak_mib 20, predicted.ranks 1)",
    )
    begun = trial(state=TrialState.QUEUED, attempt=1, predicted_bytes=20 * MIB)
    (again,) = effects_of(trials=[begun], studies=rules, fronts={1: {3: (19.0, 1.0)}})
    assert isinstance(again, Begin), "one that has trained continues"


def test_where_all_objectives_are_predicted_nothing_is_launched_before_every_candidate_is_known() -> None:
    peak = Objectives((Objective(metric="predicted.peak_mib", direction="minimize"),))
    queued, waiting = (
        trial(id=number, number=number, state=state, attempt=0, predicted_bytes=20 * MIB)
        for number, state in ((1, TrialState.QUEUED), (2, TrialState.WAITING))
    )
    full = study(objectives=peak, launches_front=True, num_trials=10)
    more = replace(full, progress=replace(full.progress, num_trials=9))
    for rules, trials in ((more, [queued]), (full, [queued, waiting])):
        moves = [effect for effect in effects_of(trials=trials, studies={1: rules}) if isinstance(effect, MoveTrial)]
        assert [(move.trial.id, move.waits_for) for move in moves] == [(1, WaitsFor.PREDICTIONS)]
    said = replace(queued, reason=WAITS_FOR_FRONT, waits_for=WaitsFor.PREDICTIONS)
    assert not [
        effect for effect in effects_of(trials=[said, waiting], studies={1: full}) if isinstance(effect, MoveTrial)
    ]
    begun = trial(state=TrialState.QUEUED, attempt=1, predicted_bytes=20 * MIB)
    for rules, row in ((full, queued), (more, begun)):
        assert any(isinstance(effect, Begin) for effect in effects_of(trials=[row], studies={1: rules}))
    held = [trial(id=number, number=number, state=TrialState.QUEUED, attempt=0) for number in range(9)]
    assert Propose(1, 9, 1) in effects_of(trials=held, studies={1: more}), "those that wait take no room"


def test_memory_of_attempts_that_wind_down_is_not_given_away() -> None:
    every = tuple(device.id for device in CLUSTER.devices)
    winding_down = attempt(trial_id=9, state=AttemptState.STOPPING, devices=every, reserved_mib=80)
    queued = trial(state=TrialState.QUEUED, attempt=0)
    decided = effects_of(trials=[queued], attempts=[winding_down], gangs={"9/1": ALIVE})
    assert not [effect for effect in decided if isinstance(effect, Begin)]
    assert "MiB" in only_move(decided).reason


def test_a_trial_waits_until_its_former_attempt_has_ended() -> None:
    queued = trial(state=TrialState.QUEUED, num_lost=1)
    decided = effects_of(trials=[queued], attempts=[attempt(state=AttemptState.STOPPING)], gangs={"1/1": ALIVE})
    assert not [effect for effect in decided if isinstance(effect, Begin)]


def test_two_studies_take_turns_and_a_limit_on_concurrency_holds() -> None:
    studies = {1: study(), 2: study(id=2)}
    trials = [
        trial(id=i, number=i, study_id=1 if i < 9 else 2, state=TrialState.QUEUED, attempt=0, reserved_mib=90)
        for i in range(1, 13)
    ]
    begun = [e.order.study_id for e in effects_of(trials=trials, studies=studies) if isinstance(e, Begin)]
    assert sorted(begun) == [1, 1, 2, 2]
    studies[2] = study(id=2, max_concurrent=1)
    decided = effects_of(trials=trials, studies=studies)
    assert sorted(e.order.study_id for e in decided if isinstance(e, Begin)) == [1, 1, 1, 2]
    waits = {e.trial.study_id: e for e in decided if isinstance(e, MoveTrial)}
    assert waits[2].reason == "waits for the end of another trial of its study: at most 1 run at once (max_concurrent)"
    assert (waits[2].waits_for, waits[1].waits_for) == (WaitsFor.MAX_CONCURRENT, WaitsFor.DEVICES)


def test_a_child_begins_with_weights_of_its_parent_until_it_has_a_checkpoint_and_the_parent_keeps_them() -> None:
    at_20 = CheckpointName(1, 20)
    donor = Donor(at_20, {"width": 8})
    parent = trial(state=TrialState.QUEUED, best_step=30)
    child = trial(id=2, number=1, state=TrialState.QUEUED, attempt=0, parent_id=1, parent_number=0, parent_step=20)
    state: dict[str, Any] = {"studies": {1: study(inherits=True)}, "donors": {2: donor}}
    decided = effects_of(trials=[parent, child], checkpoints={1: CheckpointName(1, 50)}, **state)
    resumed, begun = (effect.order for effect in decided if isinstance(effect, Begin))
    assert resumed.keep == {at_20, CheckpointName(1, 50), CheckpointName(1, 30)} and resumed.donor is None
    assert begun.donor == donor
    assert begun.resume is None
    assert begun.keep == frozenset()
    (begin,) = effects_of(trials=[replace(child, attempt=1)], checkpoints={2: CheckpointName(2, 10)}, **state)
    assert isinstance(begin, Begin)
    assert begin.order.donor is None
    assert begin.order.resume == CheckpointName(2, 10)


def test_a_resumed_order_starts_at_the_last_committed_checkpoint() -> None:
    queued = trial(state=TrialState.QUEUED, num_lost=1)
    begin = next(e for e in effects_of(trials=[queued], checkpoints={1: CheckpointName(1, 30)}) if isinstance(e, Begin))
    assert begin.order.resume == CheckpointName(1, 30)
    assert begin.order.attempt == 2
    assert begin.attempt.placement_reason


def test_each_trial_that_goes_before_is_counted_until_devices_are_kept() -> None:
    holder = attempt(trial_id=50, reserved_mib=90)
    large = trial(id=2, state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=4), reserved_mib=96)
    small = trial(id=60, state=TrialState.QUEUED, attempt=0, reserved_mib=10)
    running: dict[str, Any] = {"attempts": [holder], "gangs": {"50/1": ALIVE}}

    def decided(passes: int) -> tuple[list[int], Any]:
        effects_of_pass = effects_of(trials=[replace(large, passed_over=passes), small], **running)
        (kept,) = [e.changes["passed_over"] for e in effects_of_pass if isinstance(e, MoveTrial) and e.trial.id == 2]
        return [e.order.trial_id for e in effects_of_pass if isinstance(e, Begin)], kept

    assert decided(0) == ([60], 1)
    assert decided(PASSES_BEFORE_RESERVATION - 1) == ([60], PASSES_BEFORE_RESERVATION)
    assert decided(PASSES_BEFORE_RESERVATION) == ([], PASSES_BEFORE_RESERVATION)


def test_a_trial_of_lower_priority_waits_for_as_many_passes_more_until_it_goes_first() -> None:
    large = trial(id=2, study_id=1, state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=4), reserved_mib=96)
    small = trial(id=60, study_id=2, state=TrialState.QUEUED, attempt=0, reserved_mib=10)
    studies = {1: study(priority=-10), 2: study(id=2, priority=30)}

    def begun(passes: int, *others: Trial) -> list[int]:
        decided = effects_of(trials=[replace(large, passed_over=passes), *others], studies=studies)
        return [effect.order.trial_id for effect in decided if isinstance(effect, Begin)]

    assert begun(PASSES_BEFORE_RESERVATION + 39, small) == [60]
    assert begun(PASSES_BEFORE_RESERVATION + 40, small) == [2]
    assert begun(0) == [2], "nobody comes before it"
    waits = replace(large, passed_over=PASSES_BEFORE_RESERVATION)
    moves = [e for e in effects_of(trials=[waits, small], studies=studies) if isinstance(e, MoveTrial)]
    assert {move.trial.id: move.changes["passed_over"] for move in moves}[2] == PASSES_BEFORE_RESERVATION + 1


def test_trials_start_on_kept_devices_if_they_would_end_before_by_the_step_times_of_others_up_to_a_limit() -> None:
    seconds = {50: 20.0, 51: 1.0, 52: 1.0}
    running = [
        trial(id=key, reserved_mib=40, measured_step_seconds=step_seconds) for key, step_seconds in seconds.items()
    ]
    attempts = [
        attempt(trial_id=key, reserved_mib=40, measured_step_seconds=step_seconds)
        for key, step_seconds in seconds.items()
    ]
    large = trial(id=2, state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=4), reserved_mib=96)
    small = trial(id=60, state=TrialState.QUEUED, attempt=0, reserved_mib=10)

    def started(passes: int, small: Trial = small) -> list[int]:
        trials = [*running, replace(large, passed_over=passes), small]
        decided = effects_of(trials=trials, attempts=attempts, gangs=dict.fromkeys(("50/1", "51/1", "52/1"), ALIVE))
        return [effect.order.trial_id for effect in decided if isinstance(effect, Begin)]

    assert started(PASSES_BEFORE_RESERVATION) == [60], "100 steps of 1 s, while the slowest has as many of 20 s to go"
    assert started(PASSES_BEFORE_DRAINING) == [], "the wait of the large one is bounded"
    slow = replace(small, sized=changed(sized(Plan(8), 10), step_seconds=30.0))
    assert started(PASSES_BEFORE_RESERVATION, slow) == [], "its own prediction comes first"


def test_a_trial_that_was_stopped_says_why_as_long_as_it_waits() -> None:
    stopped = "will run again from its last checkpoint: trial 3 of study 2, of priority 5, needs its devices"
    plan = {"plan": Plan(4, dp_shard=4), "reserved_mib": 90}
    queued = trial(id=2, state=TrialState.QUEUED, attempt=1, reason=stopped, requeued_because=stopped, **plan)
    running: dict[str, Any] = {"attempts": [attempt(trial_id=50, reserved_mib=90)], "gangs": {"50/1": ALIVE}}
    move = next(e for e in effects_of(trials=[queued], **running) if isinstance(e, MoveTrial))
    assert move.reason.startswith(f"{stopped}. Now: needs 90 MiB on 4 devices at once; waits")
    waits = replace(queued, reason=move.reason, waits_for=WaitsFor.DEVICES)
    assert not [e for e in effects_of(trials=[waits], **running) if isinstance(e, MoveTrial)], "it stays the same"


def test_a_queued_trial_is_planned_again_when_its_plan_needs_more_devices_than_there_are() -> None:
    queued = trial(state=TrialState.QUEUED, attempt=0, plan=Plan(2, dp_shard=4), reserved_mib=96)
    three = Cluster(CLUSTER.devices[:3])
    move = only_move(effects_of(trials=[queued], cluster=three))
    assert move.to is TrialState.WAITING
    assert move.reason.endswith("its plan needs 4 × 96 MiB, and the cluster now has 3 such devices")
    small = Cluster((*three.devices, replace(CLUSTER.devices[3], capacity_mib=95)))
    assert only_move(effects_of(trials=[queued], cluster=small)).to is TrialState.WAITING
    assert [type(effect) for effect in effects_of(trials=[queued])] == [Begin]
    assert effects_of(trials=[queued], cluster=Cluster()) == [], "the cluster is starting"


def test_a_quota_of_the_project_keeps_trials_waiting_with_the_reason() -> None:
    rules = {1: study(project="vision"), 2: replace(study(project="text"), id=2)}
    queued = [
        trial(id=number, number=number, study_id=of, state=TrialState.QUEUED, attempt=0, plan=Plan(4, dp_shard=ranks))
        for number, of, ranks in ((11, 1, 1), (12, 1, 1), (13, 1, 4), (14, 2, 1))
    ]
    decided = effects_of(trials=queued, studies=rules, projects={"vision": Project(devices=1)})
    assert [effect.attempt.trial_id for effect in decided if isinstance(effect, Begin)] == [14, 11]
    moves = {effect.trial.id: effect for effect in decided if isinstance(effect, MoveTrial)}
    assert moves[12].to is TrialState.QUEUED and "'vision': 1 device at once" in moves[12].reason
    assert moves[12].waits_for is WaitsFor.QUOTA
    assert moves[13].to is TrialState.INFEASIBLE and "may never use more than 1" in moves[13].reason


def test_what_runs_counts_in_the_mib_hours_of_its_project() -> None:
    queued = trial(id=12, number=12, state=TrialState.QUEUED, attempt=0)
    runs = attempt(reserved_mib=90, devices=("d0", "d1"))
    state: dict[str, Any] = {"attempts": [runs], "gangs": {"1/1": ALIVE}, "now": runs.created_at + 10}
    left = 100 * 3600 - 2 * 90 * 10

    def begins(mib_seconds: float) -> bool:
        quotas = {"default": Project(mib_hours=100)}
        decided = effects_of(
            trials=[trial(), queued], projects=quotas, held={"default": DeviceTime(0.0, mib_seconds)}, **state
        )
        return any(isinstance(effect, Begin) for effect in decided)

    assert begins(0.0) and begins(left - 1)
    assert not begins(left)


def test_a_trial_that_a_user_has_paused_stops_and_waits_and_leaves_its_room_to_others() -> None:
    running = trial(paused=True)
    (stop,) = effects_of(trials=[running], attempts=[attempt()], gangs={attempt().key: ALIVE})
    assert stop == withdraw(attempt(), TRIAL_PAUSED)
    queued = trial(state=TrialState.QUEUED, attempt=0, sized=sized(Plan(1), 10), paused=True)
    move = only_move(effects_of(trials=[queued]))
    assert (move.waits_for, move.reason) == (WaitsFor.RESUME, IS_PAUSED)
    again = replace(queued, attempt=1, requeued_because=f"will run again: {TRIAL_PAUSED}")
    reason = only_move(effects_of(trials=[again])).reason
    assert reason == "will run again: a user paused the trial. Now: waits until somebody resumes it", "said once"
    idle = replace(queued, attempt=1, requeued_because=f"will run again: nothing was done, {IDLE_PAUSED}")
    reason = only_move(effects_of(trials=[idle])).reason
    assert reason == "will run again: nothing was done, so the trial was paused. Now: waits until somebody resumes it"
    paused = [replace(queued, id=n, number=n) for n in range(1, 20)]
    (proposal,) = (e for e in effects_of(trials=paused, studies={1: study(num_trials=5)}) if isinstance(e, Propose))
    assert proposal.count == 4


def test_a_trial_of_higher_priority_starts_in_place_of_older_ones_of_its_own_study() -> None:
    small = Cluster((Device("a", "n", 0, "virtual", 96),))
    queued = [
        trial(id=n, number=n, study_id=1 + n % 2, state=TrialState.QUEUED, attempt=0, sized=sized(Plan(1), 96))
        for n in range(1, 7)
    ]
    queued[4] = replace(queued[4], priority=1)
    studies = {1: study(), 2: study(id=2)}

    def begun(trials: list[Trial]) -> int:
        return next(
            e.attempt.trial_id
            for e in effects_of(trials=trials, studies=studies, cluster=small)
            if isinstance(e, Begin)
        )

    assert begun(queued) == 5, "it takes the place of trial 1, of the same study"
    assert begun(queued[1:]) == 2, "trial 2, of the other study, is older than all of its study"
