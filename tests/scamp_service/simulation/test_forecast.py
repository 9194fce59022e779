"""A forecast starts waiting trials as devices become free, within the limits of their studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from estimators.devices.catalogue import gpu
from estimators.model import Plan
from placement.model import Cluster, Device
from placement.packing.policy import Blocked
from placement.packing.turns import PASSES_BEFORE_RESERVATION
from scamp_service.lifecycle import TrialState, WaitsFor
from scamp_service.model import TrialChanges
from scamp_service.simulation.forecast import forecast, load_of, recorded_cluster
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedDevice
from scamp_service.store.store import Store
from scamp_service.study.spec import StudySpec
from tests.quick_store import empty_store
from tests.values import changed, new_attempt, sized

STEP_SECONDS = 2.0


def a_study(store: Store, trials: int, kinds: Sequence[str] = (), **budget: Any) -> int:
    spec = StudySpec.model_validate(
        {
            "name": "a study",
            "workload": "vit_digits",
            "objective": {"metric": "accuracy", "direction": "maximize"},
            "space": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "stopping": {"rule": "none"},
            "kinds": [*kinds],
            "budget": {"trials": trials, "steps": 10, **budget},
        }
    )
    return store.studies.create(spec.to_json(), now=0.0).id


def queued(store: Store, study: int, numbers: range, ranks: int = 1, mib: int = 24) -> list[int]:
    """Trials of the study with plans that take 20 s each."""
    store.trials.create(study, [(number, {"lr": 1e-3}) for number in numbers], now=0.0)
    ids = [store.trials.numbered(study, number).id for number in numbers]
    plan = changed(sized(Plan(8 // ranks, 1, dp_shard=ranks), mib), step_seconds=STEP_SECONDS)
    for trial_id in ids:
        assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, now=0.0, sized=plan)
    return ids


def untimed(store: Store, study: int, numbers: range, ranks: int = 1, mib: int = 24, passed_over: int = 0) -> list[int]:
    """Trials of the study with plans whose seconds nobody knows."""
    ids = queued(store, study, numbers, ranks, mib)
    plan = changed(sized(Plan(8 // ranks, 1, dp_shard=ranks), mib), step_seconds=None)
    for trial_id in ids:
        move = (trial_id, TrialState.QUEUED, 0, TrialState.QUEUED)
        changes = TrialChanges(passed_over=passed_over)
        assert store.trials.move(*move, now=0.0, sized=plan, changes=changes, waits_for=WaitsFor.DEVICES)
    return ids


def begin(store: Store, trial_id: int, *devices: str, step_seconds: float | None = STEP_SECONDS) -> None:
    plan = Plan(8 // len(devices), 1, dp_shard=len(devices))
    attempt = new_attempt(trial_id, devices=devices, plan=plan)
    assert store.attempts.begin(changed(attempt, step_seconds=step_seconds))


def devices(num: int, kind: str = "V100-16") -> Cluster:
    return Cluster(tuple(Device(f"n/{index}", "n", index, kind, 30) for index in range(num)))


def test_waiting_trials_start_as_those_before_them_end() -> None:
    store = empty_store()
    study = a_study(store, trials=5)
    first, second, wide = *queued(store, study, range(2)), *queued(store, study, range(2, 3), ranks=2)
    (huge,) = queued(store, study, range(3, 4), mib=40)
    begin(store, first, "n/0")
    load = load_of(store, now=5.0)
    assert (load.num_unknown, load.num_more, dict(load.waits)) == (0, 0, {})
    outlook = forecast(load, devices(1))
    assert outlook.starts[second] == 20.0  # the first has 20 s to go
    assert outlook.lacking[second].blocked is Blocked.BUSY
    assert {number: outlook.lacking[number].blocked for number in (wide, huge)} == {
        wide: Blocked.TOO_LARGE,
        huge: Blocked.TOO_LARGE,
    }
    assert outlook.num_never == 2 and outlook.makespan_seconds == 60.0  # with the one that is yet to come
    assert outlook.device_hours == pytest.approx(60 / 3600)
    more = forecast(load, devices(4))
    assert more.starts[second] == 0.0 and second not in more.lacking
    assert more.makespan_seconds == 40.0 and more.num_never == 1


def test_faster_devices_take_less_time_and_the_limit_of_a_study_holds() -> None:
    store = empty_store()
    queued(store, a_study(store, trials=2, max_concurrent=1), range(2))
    load = load_of(store, now=0.0)
    kinds = {"V100-16": gpu("V100-16"), "A100-40": gpu("A100-40")}
    ratio = kinds["A100-40"].rates["matmul"].per_flop / kinds["V100-16"].rates["matmul"].per_flop
    assert ratio < 1
    slow = devices(1)
    assert forecast(load, slow, kinds=kinds).makespan_seconds == pytest.approx(40.0)
    both = Cluster((*slow.devices, Device("m/0", "m", 0, "A100-40", 30)))
    assert forecast(load, both, kinds=kinds).makespan_seconds <= 40.0
    fast = Cluster((both.devices[1],))
    assert forecast(load, fast, kinds=kinds).makespan_seconds == pytest.approx(40.0)  # planned for this kind


def test_a_study_that_is_bound_to_a_kind_waits_for_it_and_never_runs_without() -> None:
    store = empty_store()
    bound, free = a_study(store, 2, kinds=["T4"]), a_study(store, 2)
    slow, fast = queued(store, bound, range(2)), queued(store, free, range(2))
    t4, v100 = devices(1, "T4").devices[0], replace(devices(1).devices[0], id="v")
    outlook = forecast(load_of(store, now=0.0), Cluster((t4, v100)), max_gangs_per_device=1)
    assert [outlook.starts[trial_id] for trial_id in slow] == [0.0, 20.0] and outlook.num_never == 0
    none = forecast(load_of(store, now=0.0), Cluster((v100,)), max_gangs_per_device=1)
    assert none.num_never == 2 and set(none.starts) == {*fast}
    assert {none.lacking[trial_id].blocked for trial_id in slow} == {Blocked.TOO_LARGE}


def test_trials_without_plans_count_like_those_of_their_study_or_are_left_out() -> None:
    store = empty_store()
    planned, unknown = a_study(store, trials=3), a_study(store, trials=4)
    queued(store, planned, range(1))
    store.trials.create(planned, [(1, {"lr": 1e-3})], now=0.0)
    store.trials.create(unknown, [(0, {"lr": 1e-3})], now=0.0)
    load = load_of(store, now=0.0)
    assert len(load.jobs) == 3 and load.num_unknown == 3  # to come; and one waits for its plan
    assert sorted(load.waits.values()) == ["plan", "plan"]


def test_a_trial_that_its_project_holds_back_waits_for_the_quota_and_not_for_devices() -> None:
    store = empty_store()
    held, _ = queued(store, a_study(store, trials=2), range(2))
    move = (held, TrialState.QUEUED, 0, TrialState.QUEUED)
    assert store.trials.move(*move, now=1.0, reason="its project uses 4 devices", waits_for=WaitsFor.QUOTA)
    assert dict(load_of(store, now=2.0).waits) == {held: "quota"}


def test_closed_devices_do_not_count() -> None:
    store = empty_store()
    recorded = (
        RecordedDevice(Device(f"n/{index}", "n", index, "virtual", 96), closed)
        for index, closed in enumerate(("", "a rank does not answer"))
    )
    store.cluster.record(RecordedCluster("ready", "", tuple(recorded)), now=0.0)
    assert recorded_cluster(store).devices == (Device("n/0", "n", 0, "virtual", 96),)


def test_trials_of_unknown_duration_lack_what_the_policy_says() -> None:
    store = empty_store()
    study = a_study(store, trials=4)
    first, wide, small, huge = (
        *untimed(store, study, range(1)),
        *untimed(store, study, range(1, 2), ranks=2, mib=30, passed_over=PASSES_BEFORE_RESERVATION),
        *untimed(store, study, range(2, 3), mib=5),
        *untimed(store, study, range(3, 4), mib=31),
    )
    begin(store, first, "n/0", step_seconds=None)
    outlook = forecast(load_of(store, now=5.0), devices(2))
    assert outlook.starts.keys().isdisjoint({wide, small, huge})
    assert {trial: wait.blocked for trial, wait in outlook.lacking.items()} == {
        wide: Blocked.OWN_RESERVATION,
        small: Blocked.RESERVED,
        huge: Blocked.TOO_LARGE,
    }


def test_a_trial_over_the_limit_of_its_study_waits_for_that() -> None:
    store = empty_store()
    held, _ = queued(store, a_study(store, trials=2, max_concurrent=1), range(2))
    move = (held, TrialState.QUEUED, 0, TrialState.QUEUED)
    assert store.trials.move(*move, now=1.0, reason="at most 1 run at once", waits_for=WaitsFor.MAX_CONCURRENT)
    assert dict(load_of(store, now=2.0).waits) == {held: "limit"}
