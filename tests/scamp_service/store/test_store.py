"""The contract of the study database, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.model import MIB, Plan, Prediction
from placement.model import Device
from placement.option import Option
from placement.pipelining.timeline import PassTime, PipelineStep, StageStep
from scamp_service.errors import Conflict, InvalidInput, NotFound
from scamp_service.lifecycle import AttemptState, Origin, Outcome, StudyState, TrialState, WaitsFor
from scamp_service.model import LogLine, RecordedPipeline, Refusals, Report, Trial, TrialChanges
from scamp_service.store.events import StudyChange
from scamp_service.store.parts.blobs import MAX_BLOB_BYTES
from scamp_service.store.parts.part import WritingPart
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedDevice
from scamp_service.store.store import Store
from scamp_service.store.summary import study_summary
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives
from tests.scamp_service.store.trials import PLAN, SPEC, begin, contents, metric, new_trial, queue, report, retry, run
from tests.values import changed, new_attempt, sized
from tests.waiting import PATIENCE_SECONDS
from workloads.training.checkpoints.name import CheckpointName

ROOT = Path(__file__).resolve().parents[3]


def test_a_study_is_read_back_as_it_was_given(store: Store) -> None:
    spec = {**SPEC, "space": {"z": 1, "a": {"choice": ["ß", None, True, 2**53, 1e-300]}}}
    code = store.blobs.put(b"zip")
    study = store.studies.create(spec, code=code, now=12.5)
    assert store.studies.get(study.id) == study
    assert (study.name, study.state, study.code, study.created_at) == ("digits", StudyState.RUNNING, code, 12.5)
    assert (study.spec, study.reason, study.finished_at) == (spec, "", None)
    assert list(study.spec["space"]) == ["z", "a"], "the order of keys is the user's"


def test_the_same_key_and_body_give_the_first_study(store: Store) -> None:
    first = store.studies.create(SPEC, idempotency_key="k", now=1.0)
    again = store.studies.create(dict(reversed(SPEC.items())), idempotency_key="k", now=2.0)
    assert again == first and store.studies.page() == [first]
    assert len(store.events.page()) == 1, "a repeated submission is not an event"


def test_a_key_used_for_another_body_is_a_conflict_and_changes_nothing(store: Store) -> None:
    store.studies.create(SPEC, idempotency_key="k", now=1.0)
    before = contents(store)
    for other in ({**SPEC, "name": "other"}, {**SPEC, "space": {}}):
        with pytest.raises(Conflict, match="study 1"):
            store.studies.create(other, idempotency_key="k", now=2.0)
    with pytest.raises(Conflict):
        store.studies.create(SPEC, code=store.blobs.put(b"x"), idempotency_key="k", now=2.0)
    assert contents(store) == before


def test_without_a_key_every_submission_is_a_study(store: Store) -> None:
    assert [store.studies.create(SPEC, now=1.0).name for _ in range(2)] == ["digits"] * 2
    assert len(store.studies.page()) == 2


def test_many_who_submit_with_one_key_get_one_study(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        studies = list(pool.map(lambda _: store.studies.create(SPEC, idempotency_key="k", now=1.0), range(16)))
    assert {study.id for study in studies} == {store.studies.page()[0].id} and len(store.studies.page()) == 1


def test_a_study_whose_files_were_never_uploaded_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="upload"):
        store.studies.create(SPEC, code="0" * 64, now=1.0)
    assert store.studies.page() == [] and store.events.page() == []


def test_studies_come_in_pages_of_either_order(store: Store) -> None:
    ids = [store.studies.create({**SPEC, "name": str(n)}, now=1.0).id for n in range(5)]
    assert store.studies.move(ids[1], [StudyState.RUNNING], StudyState.COMPLETED, now=2.0)
    assert [s.id for s in store.studies.page(limit=2)] == ids[:2]
    assert [s.id for s in store.studies.page(after=ids[1], limit=2)] == ids[2:4]
    assert [s.id for s in store.studies.page(live=True)] == [ids[0], *ids[2:]]
    assert [s.id for s in store.studies.page(newest_first=True, limit=2)] == ids[:2:-1]
    assert [s.id for s in store.studies.page(newest_first=True, after=ids[3])] == ids[2::-1]


def test_a_study_moves_once_and_keeps_its_reason(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0)
    live = [StudyState.RUNNING, StudyState.STOPPING]
    assert store.studies.move(study.id, [StudyState.RUNNING], StudyState.STOPPING, reason="by the user", now=2.0)
    assert not store.studies.move(study.id, [StudyState.RUNNING], StudyState.STOPPING, now=3.0)
    assert store.studies.get(study.id).finished_at is None
    assert store.studies.move(study.id, live, StudyState.STOPPED, reason="by the user", now=4.0)
    assert not store.studies.move(study.id, live, StudyState.FAILED, now=5.0)
    assert (store.studies.get(study.id).state, store.studies.get(study.id).finished_at) == (StudyState.STOPPED, 4.0)
    assert store.studies.get(study.id).reason == "by the user"
    with pytest.raises(AssertionError):
        store.studies.move(study.id, [StudyState.STOPPED], StudyState.RUNNING, now=6.0)


def test_a_study_never_reaches_a_state_by_a_move_that_does_not_exist(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0)
    live = [StudyState.RUNNING, StudyState.STOPPING]
    assert not store.studies.move(study.id, live, StudyState.STOPPED, now=2.0), "it has to be STOPPING first"
    assert store.studies.get(study.id).state is StudyState.RUNNING


def test_what_does_not_exist_is_not_found(store: Store) -> None:
    reads: list[Callable[[], object]] = [
        lambda: store.studies.get(7),
        lambda: store.trials.get(7),
        lambda: store.blobs.get("ab"),
    ]
    for read in reads:
        with pytest.raises(NotFound):
            read()
    assert not store.studies.move(7, [StudyState.RUNNING], StudyState.STOPPING, now=1.0)
    assert not store.trials.move(7, TrialState.WAITING, 0, TrialState.FAILED, now=1.0)
    assert [store.trials.page(7), store.attempts.of_trial(7), store.reports.metrics(7), store.reports.logs(7)] == [
        [],
        [],
        [],
        [],
    ]


def test_a_trial_number_exists_once(store: Store) -> None:
    study = store.studies.create(SPEC, now=1.0)
    assert store.trials.create(study.id, [(0, {"lr": 0.1}), (1, {"lr": 0.2})], now=2.0) == 2
    assert store.trials.create(study.id, [(1, {"lr": 9.0}), (2, {"lr": 0.3})], now=3.0) == 1
    assert [(t.number, t.params) for t in store.trials.page(study.id)] == [(i, {"lr": (i + 1) / 10}) for i in range(3)]
    assert [e.data["number"] for e in store.events.page() if e.kind == "trial"] == [0, 1, 2]
    assert store.trials.create(study.id, [], now=4.0) == 0


def test_a_new_trial_has_nothing_yet(store: Store) -> None:
    trial = store.trials.get(new_trial(store))
    assert trial == Trial(
        id=trial.id,
        study_id=1,
        number=0,
        state=TrialState.WAITING,
        attempt=0,
        params={"lr": 0.1},
        reason="waits for its plan: its memory and step time have not been predicted yet",
        structure="",
        sized=None,
        measured_bytes=0,
        measured_step_seconds=None,
        family="",
        num_lost=0,
        num_oom=0,
        passed_over=0,
        judged_step=0,
        step=0,
        value=None,
        created_at=2.0,
        started_at=None,
        finished_at=None,
        waits_for=WaitsFor.PLAN,
    )


def test_what_a_trial_waits_for_comes_with_each_reason_and_goes_when_it_runs(store: Store) -> None:
    trial_id, queued = new_trial(store), TrialState.QUEUED
    move = (trial_id, TrialState.WAITING, 0, queued)
    assert store.trials.move(*move, now=3.0, reason="fits", sized=sized(PLAN), waits_for=WaitsFor.QUOTA)
    assert store.trials.get(trial_id).waits_for is WaitsFor.QUOTA
    assert store.trials.move(trial_id, queued, 0, queued, now=4.0, reason="busy", waits_for=WaitsFor.DEVICES)
    assert store.trials.get(trial_id).waits_for is WaitsFor.DEVICES
    assert begin(store, trial_id) and store.trials.get(trial_id).waits_for is None
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, TrialState.FAILED, now=6.0, reason="broken")
    assert store.trials.get(trial_id).waits_for is None


def test_a_move_is_compared_with_state_and_attempt(store: Store) -> None:
    trial_id = new_trial(store)
    before = contents(store)
    assert not store.trials.move(trial_id, TrialState.QUEUED, 0, TrialState.WAITING, now=3.0)
    assert not store.trials.move(trial_id, TrialState.WAITING, 1, TrialState.QUEUED, now=3.0)
    assert contents(store) == before
    sized_trial = sized(PLAN, 2**21, 2**40, 2**39, 2**38, learned_bytes=2**37)
    assert store.trials.move(
        trial_id, TrialState.WAITING, 0, TrialState.QUEUED, now=3.0, sized=sized_trial, reason="fits"
    )
    trial = store.trials.get(trial_id)
    assert trial.state is TrialState.QUEUED and trial.finished_at is None
    assert (trial.sized, trial.structure, trial.reason) == (sized_trial, "s", "fits")


def test_changes_without_a_move_are_compared_as_well(store: Store) -> None:
    trial_id = new_trial(store)
    assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.WAITING, now=3.0, reason="no device is free")
    assert store.trials.get(trial_id).reason == "no device is free"
    assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.INFEASIBLE, now=9.0, reason="too large")
    trial = store.trials.get(trial_id)
    assert (trial.finished_at, trial.reason) == (9.0, "too large")
    assert store.trials.move(
        trial_id, TrialState.INFEASIBLE, 0, TrialState.INFEASIBLE, now=11.0, reason="far too large"
    )
    assert store.trials.get(trial_id).finished_at == 9.0


def test_a_trial_that_fitted_nowhere_is_found_by_its_devices_while_its_study_runs(store: Store) -> None:
    trial_id, other = new_trial(store), new_trial(store, number=1)
    two, four = (("virtual", 96, 2),), (("NVIDIA L4", 22000, 1), ("virtual", 96, 4))
    for now, refused, offer in ((5.0, trial_id, two), (6.0, other, four)):
        move = (TrialState.WAITING, 0, TrialState.INFEASIBLE)
        assert store.trials.move(refused, *move, now=now, reason="too large", changes=TrialChanges(offer=offer))
    assert sorted(store.trials.refusals(), key=str) == [Refusals(1, four, False, 6.0), Refusals(1, two, False, 5.0)]
    assert [row.id for row in store.trials.refused(1, four)] == [other]
    (only_refused,) = store.trials.refused(1, two)
    assert only_refused == store.trials.get(trial_id) and only_refused.offer == two
    assert store.trials.move(trial_id, TrialState.INFEASIBLE, 0, TrialState.WAITING, now=7.0)
    again = store.trials.get(trial_id)
    assert again.finished_at is None and again in store.trials.live()
    store.studies.move(1, [StudyState.RUNNING], StudyState.COMPLETED, now=8.0)
    assert store.trials.refusals() == []


def test_verdicts_that_may_pass_are_found_by_themselves(store: Store) -> None:
    four = (("virtual", 96, 4),)
    for number, once_fit in enumerate((False, True, True)):
        move = (new_trial(store, number=number), TrialState.WAITING, 0, TrialState.INFEASIBLE)
        assert store.trials.move(
            *move, now=number, reason="too large", changes=TrialChanges(offer=four, once_fit=once_fit)
        )
    assert sorted(store.trials.refusals(), key=str) == [Refusals(1, four, False, 0.0), Refusals(1, four, True, 2.0)]


def test_verdicts_of_a_clock_that_was_ahead_are_dated_anew(store: Store) -> None:
    (early, late), four = (new_trial(store), new_trial(store, number=1)), (("virtual", 96, 4),)
    for trial_id, now in ((early, 5.0), (late, 90_000.0)):
        move = (TrialState.WAITING, 0, TrialState.INFEASIBLE)
        assert store.trials.move(trial_id, *move, now=now, reason="too large", changes=TrialChanges(offer=four))
    store.trials.redate_refusals(now=100.0)
    assert [store.trials.get(trial_id).finished_at for trial_id in (early, late)] == [5.0, 100.0]


def test_a_trial_that_fits_on_no_devices_at_all_is_never_planned_again(store: Store) -> None:
    trial_id = new_trial(store)
    assert store.trials.move(
        trial_id, TrialState.WAITING, 0, TrialState.INFEASIBLE, now=3.0, reason="odd", changes=TrialChanges(offer=None)
    )
    assert store.trials.refusals() == [] and store.trials.get(trial_id).offer is None


def test_faults_and_the_time_of_the_next_attempt_are_kept(store: Store) -> None:
    trial_id = new_trial(store)
    assert store.trials.move(
        trial_id,
        TrialState.WAITING,
        0,
        TrialState.QUEUED,
        now=3.0,
        sized=sized(PLAN),
        changes=TrialChanges(num_faults=2, retry_at=13.5),
    )
    trial = store.trials.get(trial_id)
    assert (trial.num_faults, trial.retry_at) == (2, 13.5)


def test_the_mib_of_unlike_shares_are_kept_with_the_plan_and_the_attempt(store: Store) -> None:
    uneven = changed(sized(Plan(5, dp_shard=2, shares=(5, 3))), prediction=Prediction(24 * MIB, shares_mib=(24, 17)))
    trial_id = new_trial(store)
    assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, now=3.0, sized=uneven)
    assert store.trials.get(trial_id).prediction.shares_mib == (24, 17)
    begun = new_attempt(trial_id, plan=uneven.plan, devices=("n/0", "n/1"))
    assert store.attempts.begin(changed(begun, prediction=uneven.prediction))
    (held,) = store.attempts.open()
    assert held.mibs == (24, 17)
    assert store.trials.get(trial_id).prediction.shares_mib == (24, 17)


def test_a_trial_whose_samples_differ_in_size_is_counted_as_such(store: Store) -> None:
    trial_id = new_trial(store)
    uneven = replace(sized(PLAN), is_uneven=True)
    assert store.trials.move(trial_id, TrialState.WAITING, 0, TrialState.QUEUED, now=3.0, sized=uneven)
    kept = store.trials.get(trial_id)
    assert kept.sized is not None and kept.sized.is_uneven
    assert study_summary(store, kept.study_id, now=4.0).is_uneven


def test_the_plans_that_were_compared_are_those_of_the_newest_plan(store: Store) -> None:
    trial = new_trial(store)
    assert store.trials.options(trial) == []
    options = (Option(Plan(8), Prediction(97 * MIB), 96), Option(PLAN, Prediction(60 * MIB), 96))
    for compared in (options, options[1:]):
        sized_trial = replace(sized(), options=compared)
        assert store.trials.move(trial, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
        assert store.trials.options(trial) == list(compared)
        assert store.trials.move(trial, TrialState.QUEUED, 0, TrialState.WAITING, now=2.0)


def test_the_step_of_a_pipeline_is_kept_until_there_is_another_plan(store: Store) -> None:
    trial = new_trial(store)
    assert store.trials.pipeline(trial) is None
    stage = StageStep(PassTime(1.0, sending_seconds=0.5), PassTime(2.0), 0.25, 100, 10, 1)
    step = PipelineStep(Plan(1, 2, pp=2), (stage, stage), cores=2.0, factor=1.5)
    for pipeline in (RecordedPipeline(step, "s", communicates=True, offered_mib=96), None):
        sized_trial = replace(sized(), pipeline=pipeline)
        assert store.trials.move(trial, TrialState.WAITING, 0, TrialState.QUEUED, now=1.0, sized=sized_trial)
        assert store.trials.pipeline(trial) == pipeline
        assert store.trials.move(trial, TrialState.QUEUED, 0, TrialState.WAITING, now=2.0)


def test_passes_are_kept_while_a_trial_is_queued_and_no_longer(store: Store) -> None:
    trial_id = new_trial(store)
    queued, waiting = TrialState.QUEUED, TrialState.WAITING
    sized_trial = sized(PLAN)
    assert store.trials.move(trial_id, waiting, 0, queued, now=3.0, sized=sized_trial)
    assert store.trials.move(trial_id, queued, 0, queued, now=3.0, changes=TrialChanges(passed_over=3))
    assert store.trials.move(trial_id, queued, 0, queued, now=4.0, reason="another one went before")
    assert store.trials.get(trial_id).passed_over == 3
    assert store.trials.move(trial_id, queued, 0, waiting, now=5.0)
    assert store.trials.get(trial_id).passed_over == 0
    assert store.trials.move(trial_id, waiting, 0, queued, now=6.0, sized=sized_trial)
    assert store.trials.move(trial_id, queued, 0, queued, now=6.0, changes=TrialChanges(passed_over=1))
    assert begin(store, trial_id)
    assert store.trials.get(trial_id).passed_over == 0


def test_a_move_that_does_not_exist_is_a_bug(store: Store) -> None:
    trial_id = new_trial(store)
    with pytest.raises(AssertionError):
        store.trials.move(trial_id, TrialState.COMPLETED, 0, TrialState.RUNNING, now=3.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1 + 0.2, 5e-324])
def test_any_float_is_a_value(store: Store, value: float) -> None:
    trial_id = run(store)
    assert report(store, metric(trial_id, 1, 10, value))
    stored_value = store.trials.get(trial_id).value
    curve = store.reports.metrics(trial_id)[0].values["acc"]
    assert repr(stored_value) == repr(curve) == repr(value)
    events = [event.data for event in store.events.page()]
    json.dumps(events, allow_nan=False)
    assert events[-1]["values"] == {"acc": value if math.isfinite(value) else None, "loss": 1.0}
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, TrialState.FAILED, now=9.0)
    json.dumps([event.data for event in store.events.page()], allow_nan=False)


def test_trials_come_in_pages_and_by_state(store: Store) -> None:
    ids = [new_trial(store, number) for number in range(4)]
    queue(store, ids[2])
    assert [t.id for t in store.trials.page(1, limit=2)] == ids[:2]
    assert [t.id for t in store.trials.page(1, after=ids[1])] == ids[2:]
    assert [t.id for t in store.trials.page(1, states=[TrialState.QUEUED])] == [ids[2]]
    assert store.trials.page(1, states=[]) == []
    assert store.trials.move(ids[0], TrialState.WAITING, 0, TrialState.CANCELLED, now=3.0)
    assert [t.id for t in store.trials.live()] == ids[1:]
    assert store.counts.states(1) == {TrialState.CANCELLED: 1, TrialState.QUEUED: 1, TrialState.WAITING: 2}


def test_an_attempt_begins_with_its_trial_or_not_at_all(store: Store) -> None:
    trial_id = new_trial(store)
    assert not begin(store, trial_id), "it is WAITING"
    queue(store, trial_id)
    before = contents(store)
    assert not begin(store, trial_id, attempt=2), "the first attempt comes first"
    assert contents(store) == before
    assert begin(store, trial_id)
    assert not begin(store, trial_id) and not begin(store, trial_id, attempt=2)
    trial, (attempt,) = store.trials.get(trial_id), store.attempts.of_trial(trial_id)
    assert (trial.state, trial.attempt, trial.started_at) == (TrialState.RUNNING, 1, 4.0)
    assert trial.reason == attempt.placement_reason == "both on one node"
    assert (attempt.key, attempt.token, attempt.state) == (f"{trial_id}/1", "token-1", AttemptState.STARTING)
    assert (attempt.plan, attempt.devices, attempt.mib_per_rank) == (PLAN, ("n0/0", "n0/1"), 40)
    assert (attempt.prediction.predicted_bytes, attempt.checkpoint_step, attempt.outcome) == (30_000_000, -1, None)
    assert store.attempts.open() == [attempt]


def test_a_trial_keeps_the_start_of_its_first_attempt(store: Store) -> None:
    trial_id = run(store)
    retry(store, trial_id, 2)
    trial = store.trials.get(trial_id)
    assert (trial.attempt, trial.started_at) == (2, 4.0)
    assert [(a.attempt, a.state) for a in store.attempts.of_trial(trial_id)] == [
        (1, AttemptState.ENDED),
        (2, AttemptState.RUNNING),
    ]
    assert [a.attempt for a in store.attempts.open()] == [2]


def test_a_candidate_begins_with_the_newest_checkpoint_of_its_parent_unless_that_trains_now(store: Store) -> None:
    parent = run(store, 0)
    token = store.attempts.of_trial(parent)[0].token
    assert store.reports.add(Report(parent, 1, token, checkpoint_step=20), now=5.0)
    assert store.trials.create(1, [(1, {"lr": 0.2})], parents={1: 0}, now=6.0) == 1
    assert store.trials.move(parent, TrialState.RUNNING, 1, TrialState.PRUNED, now=7.0)
    assert store.trials.create(1, [(2, {"lr": 0.3})], parents={2: 0}, now=8.0) == 1
    assert store.reports.end(parent, 1, token, Outcome.STOPPED, "", now=9.0)
    assert store.trials.create(1, [(3, {"lr": 0.4}), (4, {"lr": 0.5})], parents={4: 0}, now=10.0) == 2
    assert (
        store.trials.create(1, [(5, {"lr": 0.6})], parents={5: 3}, reasons={5: "why"}, now=11.0) == 1
    )  # no checkpoint
    _, running, stopping, none, child, orphan = store.trials.page(1)
    assert child.parent == CheckpointName(parent, 20)
    assert child.parent_number == 0
    assert not child.is_copy
    assert [row.parent for row in (running, stopping, none, orphan)] == [None] * 4
    assert (child.proposal_reason, orphan.proposal_reason) == ("", "why")
    parent_of = {
        event.data["number"]: event.data["parent_number"] for event in store.events.page() if event.kind == "trial"
    }
    assert parent_of == {0: None, 1: None, 2: None, 3: None, 4: 0, 5: None}


def test_a_candidate_begins_with_the_best_checkpoint_of_a_parent_that_counts_by_its_best_report(store: Store) -> None:
    parent = run(store, 0)
    token = store.attempts.of_trial(parent)[0].token
    rows = [metric(parent, seq, step, acc) for seq, (step, acc) in enumerate([(10, 0.6), (20, 0.9), (30, 0.7)])]
    sent = Report(parent, 1, token, metrics=rows, checkpoint_step=30, objectives=("acc",), best_of="maximize")
    assert store.reports.add(sent, now=5.0)
    assert store.trials.move(parent, TrialState.RUNNING, 1, TrialState.COMPLETED, now=7.0)
    assert store.reports.end(parent, 1, token, Outcome.DONE, "", now=9.0)
    assert store.trials.create(1, [(1, {"lr": 0.5})], parents={1: 0}, now=10.0) == 1
    assert store.trials.page(1)[1].parent == CheckpointName(parent, 20)


def test_a_copy_takes_the_place_of_a_paused_trial_once(store: Store) -> None:
    paused, donor = run(store, 0), run(store, 1)
    assert store.trials.move(paused, TrialState.RUNNING, 1, TrialState.PAUSED, now=6.0)
    before = store.trials.get(paused)
    changes: dict[str, Any] = {"reason": "gives way", "step": 20, "now": 7.0}
    assert store.trials.branch(before, store.trials.get(donor), {"lr": 0.2}, **changes)
    assert not store.trials.branch(before, store.trials.get(donor), {"lr": 0.3}, **changes)
    ended, _, copy = store.trials.page(1)
    assert (ended.state, ended.reason, ended.finished_at) == (TrialState.PRUNED, "gives way", 7.0)
    assert (copy.number, copy.state, copy.origin, copy.params) == (2, TrialState.WAITING, Origin.BRANCH, {"lr": 0.2})
    assert (copy.parent, copy.parent_number, copy.judged_step) == (CheckpointName(donor, 20), 1, 20)
    assert [store.events.page()[-1].data[name] for name in ("number", "parent_number")] == [2, 1]
    assert store.trials.create(1, [(2, {"lr": 0.4})], now=8.0) == 1  # the sampler's third candidate
    assert [trial.number for trial in store.trials.page(1)] == [0, 1, 2, 3]


def test_repeats_count_in_the_value_of_the_trial_that_they_repeat(store: Store) -> None:
    objective, first = Objective(metric="acc"), run(store, 0)
    assert report(store, metric(first, 0, 10, 0.5))
    assert store.trials.repeat(store.trials.get(first), 2, reason="waits", now=6.0)
    assert not store.trials.repeat(store.trials.get(first), 2, reason="waits", now=6.0)
    assert store.trials.create(1, [(1, {"lr": 0.4})], now=6.5) == 1  # the sampler's second candidate
    for number, value in ((1, 0.75), (2, 1.0)):
        repeat = store.trials.numbered(1, number)
        assert (repeat.origin, repeat.parent_number, repeat.parent) == (Origin.REPEAT, 0, None)
        queue(store, repeat.id)
        assert begin(store, repeat.id)
        assert report(store, metric(repeat.id, 0, 10, value))
        assert store.trials.move(repeat.id, TrialState.RUNNING, 1, TrialState.COMPLETED, now=7.0)
    trial = store.trials.get(first)
    assert (trial.state, trial.waits_for) == (TrialState.PAUSED, WaitsFor.REPEATS)
    assert (trial.value, trial.repeats, trial.deviations) == (0.75, ((0.5,), (0.75,), (1.0,)), [0.25])
    assert store.events.page()[-1].data["value"] == 0.75
    assert [leader.number for leader in store.trials.leaders(1, objective)] == [0], "not the luckiest seed"
    assert store.trials.complete_scores(1, Objectives((objective,))) == {0: (TrialState.PAUSED, (0.75,))}
    assert [trial.number for trial in store.trials.page(1)] == [0, 1, 2, 3]
    assert store.trials.move(first, TrialState.PAUSED, 1, TrialState.COMPLETED, now=8.0)
    for number, mean in ((1, 0.75), (2, 0.5)):
        store.attempts.move(
            store.trials.numbered(1, number).id, 1, [AttemptState.STARTING], AttemptState.ENDED, now=8.0
        )
        store.trials.delete(1, number, now=9.0)
        assert store.trials.get(first).value == mean
    assert store.trials.get(first).repeats == ()


def test_a_curve_comes_in_pages_by_step(store: Store) -> None:
    trial_id = run(store)
    assert report(store, *(metric(trial_id, n, 10 * n, 0.1) for n in range(5)))
    assert [m.step for m in store.reports.metrics(trial_id)] == [0, 10, 20, 30, 40]
    assert [m.step for m in store.reports.metrics(trial_id, limit=2)] == [0, 10]
    assert [m.step for m in store.reports.metrics(trial_id, after=10, limit=2)] == [20, 30]


@pytest.mark.full
@pytest.mark.sample
def test_rungs_hold_every_trial_of_the_study_and_no_other(store: Store) -> None:
    first, second = run(store, 0), run(store, 1)
    other = store.studies.create(SPEC, now=1.0)
    store.trials.create(other.id, [(0, {})], now=2.0)
    stranger = store.trials.page(other.id)[0].id
    queue(store, stranger)
    assert begin(store, stranger)
    for trial_id in (first, second, stranger):
        assert report(store, metric(trial_id, 1, 10, trial_id / 10))
    assert store.reports.rungs(1, ["acc"], [10]) == {10: {0: (first / 10,), 1: (second / 10,)}}
    assert store.reports.rungs(1, ["unknown"], [10]) == {10: {}}
    every_step = range(1, 70_001)  # more than a statement takes
    for only in (None, [first, second]):
        assert (
            store.reports.rungs(1, ["acc"], every_step, trial_ids=only)[10] == store.reports.rungs(1, ["acc"], [10])[10]
        )
    assert store.reports.rungs(1, ["acc"], []) == {}


def test_an_attempt_moves_by_compare_and_set(store: Store) -> None:
    trial_id = run(store)
    before = contents(store)
    assert not store.attempts.move(trial_id, 1, [AttemptState.STARTING], AttemptState.STOPPING, now=6.0)
    assert not store.attempts.move(trial_id, 2, [AttemptState.RUNNING], AttemptState.STOPPING, now=6.0)
    assert contents(store) == before
    with pytest.raises(AssertionError):
        store.attempts.move(trial_id, 1, [AttemptState.ENDED], AttemptState.RUNNING, now=6.0)


def test_log_lines_are_followed_by_row_and_tailed(store: Store) -> None:
    trial_id = run(store)
    lines = [LogLine(trial_id, 1, 0, seq, 6.0, f"line {seq}") for seq in range(5)]
    assert store.reports.add(Report(trial_id, 1, "token-1", logs=lines[:3]), now=6.0)
    seen = store.reports.logs(trial_id, limit=2)
    assert store.reports.add(Report(trial_id, 1, "token-1", logs=lines[3:]), now=6.0)
    assert [line for _, line in seen + store.reports.logs(trial_id, after=seen[-1][0])] == lines
    assert [line for _, line in store.reports.logs(trial_id, after=-1, limit=2)] == lines[-2:]


def test_files_are_stored_by_content(store: Store) -> None:
    data = bytes(range(256)) * 100
    assert store.blobs.put(data) == store.blobs.put(data)
    assert store.blobs.get(store.blobs.put(data)) == data
    assert store.blobs.get(store.blobs.put(b"")) == b""
    with pytest.raises(InvalidInput, match=r"64\.0 MiB.*leave out data"):
        store.blobs.put(bytes(MAX_BLOB_BYTES + 1))


def test_the_cluster_is_an_event_only_when_it_changed(store: Store) -> None:
    assert store.cluster.recorded() is None
    ready = RecordedCluster("ready", "", (RecordedDevice(Device("n/0", "n", 0, "virtual", 96)),))
    store.cluster.record(ready, now=10.0)
    store.cluster.record(ready, now=10.5)
    assert store.cluster.recorded() == (ready, 10.0)
    store.cluster.record(ready, now=12.0)
    assert store.cluster.recorded() == (ready, 12.0)
    lost = replace(ready, devices=())
    store.cluster.record(lost, now=12.1)
    assert store.cluster.recorded() == (lost, 12.1)
    events = [(event.kind, event.data) for event in store.events.page()]
    assert events == [("cluster", ready.to_json()), ("cluster", lost.to_json())]


def test_a_database_has_a_name_that_stays(store: Store) -> None:
    assert len(store.identity()) == 8 and store.identity() == store.identity()


def test_every_move_tells_of_itself(store: Store) -> None:
    trial_id = run(store)
    assert store.reports.end(trial_id, 1, "token-1", Outcome.DONE, "", now=6.0)
    assert store.trials.move(trial_id, TrialState.RUNNING, 1, TrialState.COMPLETED, reason="all steps", now=7.0)
    assert store.attempts.move(trial_id, 1, [AttemptState.RUNNING], AttemptState.ENDED, now=8.0)
    assert store.studies.move(1, [StudyState.RUNNING], StudyState.COMPLETED, now=9.0)
    events = store.events.page()
    assert [(event.kind, event.data["state"]) for event in events] == [
        ("study", "RUNNING"),
        ("trial", "WAITING"),
        ("trial", "QUEUED"),
        ("trial", "RUNNING"),
        ("attempt", "STARTING"),
        ("attempt", "RUNNING"),
        ("attempt", "RUNNING"),
        ("trial", "COMPLETED"),
        ("attempt", "ENDED"),
        ("study", "COMPLETED"),
    ]
    assert all(event.study_id == 1 for event in events)
    assert {event.trial_id for event in events} == {None, trial_id}
    assert events[0].data == {"id": 1, "name": "digits", "state": "RUNNING"}
    row = {"id": trial_id, "number": 0, "state": "COMPLETED", "attempt": 1, "step": 0, "value": None}
    assert events[7].data == {**row, "reason": "all steps", "parent_number": None}
    gang = {"devices": ["n0/0", "n0/1"], "mib_per_rank": 40, "outcome": "DONE", "detail": ""}
    assert events[8].data == {"trial": trial_id, "attempt": 1, "state": "ENDED", **gang}


def test_events_are_replayed_from_any_id(store: Store) -> None:
    assert store.events.last_id() == 0
    for _ in range(3):
        store.studies.create(SPEC, now=1.0)
    ids = [event.id for event in store.events.page()]
    assert ids == sorted(set(ids)) and store.events.last_id() == ids[-1]
    assert [event.id for event in store.events.page(after=ids[0], limit=1)] == ids[1:2]
    assert [event.id for event in store.events.page(study_id=3)] == ids[2:]


def test_a_reader_that_has_seen_an_event_never_finds_an_older_one(store: Store, monkeypatch: Any) -> None:
    """The first writer lingers between its event and its commit; the second must not get ahead of it."""
    has_told, tell = threading.Event(), WritingPart._emit

    def linger(part: WritingPart, connection: Any, change: StudyChange, *rest: Any) -> None:
        tell(part, connection, change, *rest)
        if change.name == "slow":
            has_told.set()
            time.sleep(0.3)

    monkeypatch.setattr(WritingPart, "_emit", linger)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(store.studies.create, {**SPEC, "name": "slow"}, now=1.0)
        assert has_told.wait(PATIENCE_SECONDS)
        pool.submit(store.studies.create, {**SPEC, "name": "fast"}, now=1.0)
        seen: list[int] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < 2 and time.monotonic() < deadline:
            seen += [event.id for event in store.events.page(after=seen[-1] if seen else 0)]
    assert seen == [event.id for event in store.events.page()] and len(seen) == 2


def test_of_many_threads_one_begins_the_attempt(store: Store) -> None:
    for number in range(5):
        trial_id = new_trial(store, number)
        queue(store, trial_id)
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(lambda _, trial_id=trial_id: begin(store, trial_id), range(6)))
        assert won.count(True) == 1
        assert len(store.attempts.of_trial(trial_id)) == 1


class Broken(Exception):
    pass


def break_at_event(*_: object) -> None:
    raise Broken


_WRITES: dict[str, Callable[[Store, int, int], object]] = {
    "create_study": lambda store, *_: store.studies.create(SPEC, idempotency_key="k", now=9.0),
    "move_study": lambda store, *_: store.studies.move(1, [StudyState.RUNNING], StudyState.STOPPING, now=9.0),
    "move_trial": lambda store, run, _: store.trials.move(run, TrialState.RUNNING, 1, TrialState.PAUSED, now=9.0),
    "begin_attempt": lambda store, _, queued: begin(store, queued),
    "move_attempt": lambda store, run, _: store.attempts.move(
        run, 1, [AttemptState.RUNNING], AttemptState.STOPPING, now=9.0
    ),
    "report": lambda store, run, _: report(store, metric(run, 1, 10, 0.5)),
    "report_outcome": lambda store, run, _: store.reports.end(run, 1, "token-1", Outcome.DONE, "", now=9.0),
    "record_cluster": lambda store, *_: store.cluster.record(RecordedCluster("ready", ""), now=9.0),
}


@pytest.mark.parametrize("write", _WRITES)
def test_a_crash_within_a_transaction_leaves_no_half_of_it(store: Store, write: str, monkeypatch: Any) -> None:
    running, queued = run(store, 0), new_trial(store, 1)
    queue(store, queued)
    before = contents(store)
    with monkeypatch.context() as patch:
        patch.setattr(WritingPart, "_emit", break_at_event)
        with pytest.raises(Broken):
            _WRITES[write](store, running, queued)
    assert contents(store) == before
    assert _WRITES[write](store, running, queued) is not False, "nothing stands in the way of another try"
    assert contents(store) != before


@contextmanager
def script(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own; it says ``ready`` and begins when it is told to."""
    prelude = "import sys; from scamp_service.store.store import *; from scamp_service.model import *\n"
    prelude += "from tests.values import new_attempt\n"
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + code, *args],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


_RACE = """
store = Store(sys.argv[1])
print("ready", flush=True); sys.stdin.readline()
for trial_id in range(1, 31):
    print(int(store.attempts.begin(new_attempt(trial_id, token=sys.argv[2]))), flush=True)
store.close()
"""


@pytest.mark.full
@pytest.mark.sample
def test_of_two_processes_one_begins_each_attempt(shared_url: str) -> None:
    store = Store(shared_url)
    try:
        for number in range(30):
            queue(store, new_trial(store, number))
        with script(_RACE, shared_url, "a") as first, script(_RACE, shared_url, "b") as other:
            results = race(first, other)
        assert [sum(pair) for pair in zip(*results, strict=True)] == [1] * 30
        holders = [store.attempts.of_trial(trial.id)[0].token for trial in store.trials.page(1)]
        assert holders == ["a" if won else "b" for won in results[0]]
    finally:
        store.close()


def race(*processes: subprocess.Popen[str]) -> list[list[int]]:
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    return [[int(line) for line in process.communicate(timeout=PATIENCE_SECONDS)[0].split()] for process in processes]


_WRITER = """
store, trial_id = Store(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True); sys.stdin.readline()
for seq in range(1, 1_000_000):
    report = Report(trial_id, 1, "token-1", metrics=[Metric(trial_id, 1, seq, seq, {"acc": 0.5}, 1.0)],
                    logs=[LogLine(trial_id, 1, 0, seq, 1.0, "line")], objectives=["acc"])
    assert store.reports.add(report, now=1.0)
    print(seq, flush=True)
"""


@pytest.mark.full
@pytest.mark.sample
def test_what_was_acknowledged_survives_sigkill_of_the_writer(shared_url: str) -> None:
    store = Store(shared_url)
    trial_id = run(store)
    store.close()
    with script(_WRITER, shared_url, str(trial_id)) as writer:
        assert writer.stdout and writer.stdout.readline() == "ready\n"
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
        acknowledged = [int(writer.stdout.readline()) for _ in range(40)]
        time.sleep(0.05)
        writer.kill()
        acknowledged += [int(line) for line in writer.stdout.read().split()]
    store = Store(shared_url)
    try:
        seqs = [row.seq for row in store.reports.metrics(trial_id)]
        assert seqs[: len(acknowledged)] == acknowledged
        assert len(seqs) <= len(acknowledged) + 1, "at most the one in flight was committed unseen"
        assert [line.seq for _, line in store.reports.logs(trial_id)] == seqs
        assert store.trials.get(trial_id).step == seqs[-1]
        steps = [event.data["step"] for event in store.events.page(limit=1_000_000) if event.kind == "metrics"]
        assert steps == seqs, "row, event and trial are one transaction"
        assert report(store, metric(trial_id, seqs[-1] + 1, seqs[-1] + 1, 0.9)), "the next writer goes on"
    finally:
        store.close()
