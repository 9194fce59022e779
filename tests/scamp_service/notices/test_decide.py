"""Which events and conditions people are told of, in which words, and how often."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from placement.packing.device_time import DeviceTime, IdleRule, Watch
from placement.packing.projects import Quota
from scamp_service.lifecycle import StudyState, TrialState, WaitsFor
from scamp_service.model import Event, Study, WaitingTrials
from scamp_service.notices.decide import (
    IDLE_AGAIN_SECONDS,
    IDLE_SECONDS,
    MOST_AN_HOUR,
    Notice,
    deliveries_of,
    devices_idle,
    gangs_idle,
    quota_near,
    study_ended,
    trial_ended,
)
from scamp_service.receivers import Receiver
from tests.values import attempt, trial

SPEC = {"objective": {"metric": "loss", "direction": "minimize"}, "objectives": []}
STUDY = Study(3, "digits", StudyState.COMPLETED, SPEC, 1.0, finished_at=9.0)
COUNTS = {TrialState.COMPLETED: 4, TrialState.FAILED: 1}
ALL = ["study.ended", "trial.failed", "trial.healed", "trial.best", "quota.near", "devices.idle", "trial.idle"]
HOOK = Receiver.model_validate({"webhook": "https://example.org/a", "on": ALL})
MAIL = Receiver.model_validate({"email": "ada@example.org", "on": ["study.ended"]})


def event(time: float = 9.0, **data: Any) -> Event:
    return Event(7, time, "study", 3, None, data)


def test_the_end_of_a_study_says_how_it_went() -> None:
    best = trial(number=2, state=TrialState.COMPLETED, value=0.12345)
    notice = study_ended(event(), STUDY, COUNTS, best)
    assert notice is not None and notice.kind == "study.ended" and notice.study_id == 3 and notice.concerns == {3}
    assert notice.text == ("Study 3 “digits”: Completed. Trials: 4 completed, 1 failed. Best loss 0.1235, of trial 2.")
    assert notice.data["best"] == {"number": 2, "value": 0.12345}


def test_the_end_of_a_study_says_why_it_failed() -> None:
    failed = replace(STUDY, state=StudyState.FAILED, reason="its code is gone")
    notice = study_ended(event(), failed, {}, None)
    assert notice is not None and notice.text == "Study 3 “digits”: Failed (its code is gone). Trials: none."


@pytest.mark.parametrize("study", [replace(STUDY, finished_at=None), replace(STUDY, finished_at=8.0)])
def test_another_change_of_a_study_is_not_its_end(study: Study) -> None:
    assert study_ended(event(), study, COUNTS, None) is None


def kinds(is_best: bool = False, **fields: Any) -> list[str]:
    ended = trial(**{"number": 4, "finished_at": 9.0, "reason": "no disk", **fields})
    return [notice.kind for notice in trial_ended(event(), STUDY, ended, is_best)]


def test_a_trial_is_worth_a_notice_when_it_fails_is_healed_or_is_the_best() -> None:
    assert kinds(state=TrialState.FAILED) == ["trial.failed"]
    assert kinds(state=TrialState.FAILED, num_oom=1) == ["trial.failed"]
    assert kinds(state=TrialState.PRUNED, num_oom=2) == ["trial.healed"]
    assert kinds(state=TrialState.COMPLETED, value=0.1) == []
    assert kinds(True, state=TrialState.COMPLETED, value=0.1) == ["trial.best"]
    assert kinds(True, state=TrialState.COMPLETED, value=0.1, num_oom=1) == ["trial.healed", "trial.best"]
    assert kinds(state=TrialState.FAILED, finished_at=8.0) == []


def test_a_value_that_is_not_finite_is_null_in_the_data() -> None:
    diverged = trial(number=4, finished_at=9.0, state=TrialState.FAILED, value=float("nan"))
    (notice,) = trial_ended(event(), STUDY, diverged, False)
    assert notice.data["trial"]["value"] is None


def test_a_project_or_user_near_its_quota_is_told_at_80_and_at_100_percent() -> None:
    quotas = {"vision": Quota(mib_hours=100), "user bob": Quota(device_hours=10), "new": Quota(mib_hours=10)}
    used = {"vision": DeviceTime(0, 80 * 3600), "user bob": DeviceTime(10.1 * 3600, 1e9)}
    near, full = quota_near(quotas, used, {"vision": frozenset({3})}, 5.0)
    assert (near.topic, near.concerns) == ("quota vision mib_hours 80 100", frozenset({3}))
    assert near.text == ("Project “vision” has used 80 % of 100 MiB·hours; at 100 % no other trial of it starts.")
    assert (full.topic, full.concerns) == ("quota user bob device_hours 100 10 1970-01", frozenset())
    assert full.text.startswith("User “bob” has used 101 % of 10 device-hours of this month; no other")
    assert quota_near(quotas, {"vision": DeviceTime(0, 79 * 3600)}, {}, 5.0) == []


def test_idle_devices_are_told_after_ten_minutes_while_trials_wait_that_could_run() -> None:
    waits = [
        WaitingTrials(3, WaitsFor.DEVICES, 2, "waits for 4 free devices"),
        WaitingTrials(5, WaitsFor.RESUME, 9, ""),
    ]
    (notice,) = devices_idle(["n/0", "n/1"], waits, IDLE_SECONDS, 5.0)
    assert notice.text == (
        "2 devices have been idle for 10 minutes while 2 trials wait. One of study 3 waits for 4 free devices."
    )
    assert notice.concerns == {3} and notice.data["devices"] == ["n/0", "n/1"]
    assert devices_idle(["n/0"], waits, IDLE_SECONDS - 1, 5.0) == []
    assert devices_idle([], waits, IDLE_SECONDS, 5.0) == []
    assert devices_idle(["n/0"], waits[1:], IDLE_SECONDS, 5.0) == [], "a user has paused it"


def test_a_trial_that_does_not_use_its_devices_is_told_again_and_again() -> None:
    busy, idle = Watch(60.0, 60.0, 1.0, 80.0), Watch(1860.0, 1800.0, 0.024, 80.0)
    rule = IdleRule(0.1, 1800.0)
    (notice,) = gangs_idle([(STUDY, trial(number=4), attempt(load=(busy, idle)))], rule, 1861.0)
    assert notice.text.startswith("Study 3 “digits”, trial 4 has used 2 % of its device for 30 minutes.")
    assert notice.data["busy_share"] == 0.024 and notice.topic == "idle 1/1" and notice.again_seconds < math.inf
    assert gangs_idle([(STUDY, trial(number=4), attempt(load=(idle, busy)))], rule, 1861.0) == []


def ended(number: int = 1) -> Notice:
    return Notice("study.ended", f"over {number}", {}, 9.0, study_id=3, concerns=frozenset({3}))


def rows_of(
    notices: Sequence[Notice],
    receivers: Sequence[Receiver],
    recent: Mapping[Any, int] | None = None,
    last: dict[tuple[str, str], float] | None = None,
    now: float = 10.0,
) -> list[dict[str, Any]]:
    return deliveries_of(notices, lambda notice: receivers, recent or {}, last or {}, now)


def test_each_address_that_asks_for_it_gets_a_notice_once() -> None:
    rows = rows_of([ended()], [HOOK, MAIL, HOOK.model_copy(update={"format": "slack"})])
    assert [row["address"] for row in rows] == ["https://example.org/a", "ada@example.org"]
    assert rows[0]["body"] == {"type": "study.ended", "timestamp": "1970-01-01T00:00:09Z", "data": {"text": "over 1"}}
    failed = Notice("trial.failed", "", {}, 9.0, study_id=3)
    assert [row["address"] for row in rows_of([failed], [HOOK, MAIL])] == ["https://example.org/a"]


def test_an_address_gets_only_some_notices_of_a_kind_within_an_hour_and_the_last_says_so() -> None:
    recent = {("https://example.org/a", "study.ended", 3): MOST_AN_HOUR - 2}
    rows = rows_of([ended(1), ended(2), ended(3)], [HOOK], recent)
    assert [row["body"]["data"]["text"] for row in rows] == [
        "over 1",
        f"over 2 There were {MOST_AN_HOUR} such notices within an hour: more are left out.",
    ]
    assert len(rows_of([ended(3)], [MAIL], recent)) == 1, "another address"


def test_a_lasting_condition_is_told_once_or_after_a_while_again() -> None:
    quota = Notice("quota.near", "", {}, 9.0, topic="quota a")
    idle = Notice("devices.idle", "", {}, 9.0, topic="idle", again_seconds=IDLE_AGAIN_SECONDS)
    last = {(HOOK.address, "quota a"): 0.0, (HOOK.address, "idle"): 0.0}
    assert [row["topic"] for row in rows_of([quota, idle], [HOOK])] == ["quota a", "idle"]
    assert rows_of([quota, idle], [HOOK], last=last) == []
    assert [row["topic"] for row in rows_of([quota, idle], [HOOK], last=last, now=IDLE_AGAIN_SECONDS)] == ["idle"]
