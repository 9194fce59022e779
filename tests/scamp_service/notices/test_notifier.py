"""The notifier tells the receivers of the settings and of studies what happens, and a slow receiver holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from placement.model import Device
from placement.packing.device_time import DeviceTime, Watch
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import DeliveryState, StudyState, TrialState, WaitsFor
from scamp_service.model import Delivery, Report, TrialChanges
from scamp_service.notices import notifier as module
from scamp_service.notices.notifier import Notifier, add_tests
from scamp_service.notices.retries import Answer, Retries
from scamp_service.notices.sending import Means
from scamp_service.receivers import Receiver
from scamp_service.settings import ProjectSettings, Settings
from scamp_service.store.recorded_cluster import RecordedCluster, RecordedDevice
from scamp_service.store.store import Store
from tests.scamp_service.store.parts.test_requests import SPEC
from tests.scamp_service.store.trials import run
from tests.values import new_attempt, sized
from tests.waiting import until

ALL = ["study.ended", "trial.failed", "trial.healed", "trial.best", "quota.near", "devices.idle", "trial.idle"]
OURS = Receiver.model_validate({"webhook": "https://ours.test/", "on": ALL})


class Sent:
    """Sends nothing, and keeps what was to be sent; ``answer`` says what comes of it."""

    def __init__(self, answer: Callable[[Delivery], Answer] = lambda delivery: Answer(True, "HTTP 200")) -> None:
        self.deliveries: list[Delivery] = []
        self._answer = answer

    def __call__(self, delivery: Delivery, means: Means) -> Answer:
        self.deliveries.append(delivery)
        return self._answer(delivery)

    @property
    def texts(self) -> list[str]:
        return [delivery.body["data"]["text"] for delivery in self.deliveries]


@pytest.fixture
def opened(store: Store) -> Iterator[Callable[..., tuple[Notifier, Sent]]]:
    notifiers = list[Notifier]()

    def open_notifier(sent: Sent | None = None, **settings: Any) -> tuple[Notifier, Sent]:
        sent = sent or Sent()
        notifier = Notifier(store, Settings(**settings), send=sent, retries=Retries(0.0), pause_seconds=0.01)
        notifiers.append(notifier)
        notifier.turn()
        return notifier, sent

    yield open_notifier
    for notifier in notifiers:
        until(partial(is_at_rest, notifier), "nothing is being sent")


def is_at_rest(notifier: Notifier) -> bool:
    return not any(thread.is_alive() for thread in notifier._busy.values())


def study(store: Store, *receivers: Mapping[str, Any], **spec: Any) -> int:
    return store.studies.create({**SPEC, **spec, "notify": receivers}, now=store.now()).id


def ended_trial(store: Store, study_id: int, state: TrialState, value: float | None = None, num_oom: int = 0) -> None:
    number = sum(store.counts.states(study_id).values())
    store.trials.create(study_id, [(number, {})], now=store.now())
    trial = store.trials.page(study_id)[-1]
    store.trials.move(trial.id, TrialState.WAITING, 0, TrialState.QUEUED, sized=sized(), now=store.now())
    store.attempts.begin(new_attempt(trial.id))
    changes = TrialChanges(num_oom=num_oom) if value is None else TrialChanges(value=value, num_oom=num_oom)
    move = store.trials.move
    assert move(trial.id, TrialState.RUNNING, 1, state, reason="no disk", changes=changes, now=store.now())


def told(store: Store, notifier: Notifier, number: int) -> list[Delivery]:
    """All deliveries, once so many have ended."""

    def of_turn() -> list[Delivery] | None:
        notifier.turn()
        ended = [each for each in store.deliveries.page() if each.state is not DeliveryState.WAITING]
        return ended if len(ended) >= number else None

    return until(of_turn, "deliveries end") if number else (of_turn() or [])


def test_receivers_of_the_settings_and_of_the_study_are_told_what_they_ask_for(store: Store, opened: Any) -> None:
    notifier, sent = opened(notify=[OURS])
    mine = study(store, {"email": "ada@example.org", "on": ["trial.failed"]})
    other = study(store)
    for value in (0.5, 0.7, 0.4):
        ended_trial(store, mine, TrialState.COMPLETED, value)
        told(store, notifier, 0)
    ended_trial(store, mine, TrialState.FAILED)
    ended_trial(store, other, TrialState.PRUNED, 0.1, num_oom=1)
    for study_id in (mine, other):
        store.studies.move(study_id, [StudyState.RUNNING], StudyState.COMPLETED, now=store.now())
    deliveries = told(store, notifier, 6)
    assert sorted((each.address, each.kind, each.study_id) for each in deliveries) == [
        ("ada@example.org", "trial.failed", mine),
        ("https://ours.test/", "study.ended", mine),
        ("https://ours.test/", "study.ended", other),
        ("https://ours.test/", "trial.best", mine),
        ("https://ours.test/", "trial.failed", mine),
        ("https://ours.test/", "trial.healed", other),
    ]
    assert f"Study {mine} “digits”, trial 2 is better than all before: loss 0.4." in sent.texts


def test_another_notifier_continues_after_the_last_event_that_was_looked_at(store: Store, opened: Any) -> None:
    first, _ = opened(notify=[OURS])
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    assert len(told(store, first, 1)) == 1
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    second, sent = opened(notify=[OURS])
    assert len(told(store, second, 2)) == 2 and len(sent.deliveries) == 1


def test_a_change_of_an_ended_study_is_not_its_end_again(store: Store, opened: Any) -> None:
    notifier, _ = opened(notify=[OURS])
    ended = study(store)
    store.studies.move(ended, [StudyState.RUNNING], StudyState.COMPLETED, now=store.now())
    store.requests.prioritize(ended, 5, now=store.now() + 1)
    told(store, notifier, 1)
    assert len(told(store, notifier, 1)) == 1


def test_a_failed_delivery_is_tried_again_with_the_same_id(store: Store, opened: Any) -> None:
    answers = [Answer(True, "HTTP 200"), Answer(False, "HTTP 500"), Answer(False, "no answer")]
    notifier, sent = opened(Sent(lambda delivery: answers.pop()), notify=[OURS])
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    (delivery,) = told(store, notifier, 1)
    assert (delivery.num_attempts, delivery.answer, delivery.state) == (3, "HTTP 200", DeliveryState.DELIVERED)
    assert len({each.webhook_id for each in sent.deliveries}) == 1


def test_a_slow_receiver_holds_up_no_other(store: Store, opened: Any) -> None:
    goes_on = threading.Event()

    def answer(delivery: Delivery) -> Answer:
        if "slow" in delivery.address:
            assert goes_on.wait(900)
        return Answer(True, "HTTP 200")

    receivers = [Receiver(webhook=f"https://{name}.test/") for name in ("slow", "quick")]
    notifier, _ = opened(Sent(answer), notify=receivers)
    for _ in range(3):
        store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    assert {each.address for each in told(store, notifier, 3)} == {"https://quick.test/"}
    goes_on.set()
    assert len(told(store, notifier, 6)) == 6


def test_what_cannot_be_noted_is_not_sent_again_meanwhile(
    store: Store, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NOTE_SECONDS", 0.01)
    notifier, sent = opened(notify=[OURS])
    note, failures = store.deliveries.note, iter([Unavailable("its disk is full")] * 3)

    def full_at_first(delivery: Delivery) -> None:
        if failure := next(failures, None):
            raise failure
        note(delivery)

    monkeypatch.setattr(store.deliveries, "note", full_at_first)
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    told(store, notifier, 1)
    assert len(sent.deliveries) == 1


def test_an_error_of_ours_counts_as_an_attempt(store: Store, opened: Any) -> None:
    def fail(delivery: Delivery) -> Answer:
        raise KeyError("bug")

    notifier, _ = opened(Sent(fail), notify=[OURS])
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    (delivery,) = told(store, notifier, 1)
    assert delivery.state is DeliveryState.GIVEN_UP and delivery.answer == "an error of ScaMP: KeyError"


def test_a_test_is_sent_to_each_receiver_of_a_study_or_of_the_settings(store: Store, opened: Any) -> None:
    notifier, sent = opened(notify=[OURS])
    mine = study(store, {"email": "ada@example.org"})
    tests = add_tests(store, Settings(notify=[OURS]), store.studies.get(mine)) + add_tests(
        store, Settings(notify=[OURS]), None
    )
    assert [each.id for each in told(store, notifier, 2)] == [each.id for each in tests]
    assert {(each.address, each.study_id) for each in tests} == {
        ("ada@example.org", mine),
        ("https://ours.test/", None),
    }
    assert f"This is a test of the notices of study {mine} “digits”: they arrive here." in sent.texts


def test_a_project_near_its_quota_is_told_once(store: Store, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    projects = {"vision": ProjectSettings(mib_hours=1.0)}
    study(store, {"email": "ada@example.org", "on": ["quota.near"]}, project="vision")
    notifier, sent = opened(notify=[OURS], projects=projects)
    monkeypatch.setattr(type(store.usage), "of_holders", lambda usage, now: {"vision": DeviceTime(0.0, 0.9 * 3600)})
    told(store, notifier, 2)
    assert len(told(store, notifier, 2)) == 2 and {each.kind for each in sent.deliveries} == {"quota.near"}


def test_a_trial_that_does_not_use_its_devices_is_told(
    store: Store, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    trial_id = run(store)
    load = (Watch(store.now(), 3600.0, 0.0, 80.0),)
    assert store.reports.add(Report(trial_id, 1, "token-1", load=load), now=store.now())
    notifier, sent = opened(notify=[OURS])
    told(store, notifier, 1)
    assert len(told(store, notifier, 1)) == 1 and sent.deliveries[0].body["data"]["idle_seconds"] == 3600.0


def test_idle_devices_are_told_while_trials_wait(store: Store, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr("scamp_service.notices.decide.IDLE_SECONDS", 0.0)
    devices = tuple(RecordedDevice(Device(f"n/{index}", "n", index, "virtual", 96)) for index in range(2))
    store.cluster.record(RecordedCluster("ready", "", devices), now=store.now())
    waiting = study(store)
    store.trials.create(waiting, [(0, {})], now=store.now())
    trial = store.trials.page(waiting)[0]
    move = store.trials.move
    move(
        trial.id, TrialState.WAITING, 0, TrialState.QUEUED, reason="waits", waits_for=WaitsFor.DEVICES, now=store.now()
    )
    notifier, sent = opened(notify=[OURS])
    told(store, notifier, 1)
    assert len(told(store, notifier, 1)) == 1 and sent.deliveries[0].body["data"]["devices"] == ["n/0", "n/1"]


def test_a_notifier_ends_while_a_receiver_is_slow(store: Store) -> None:
    sending, goes_on = threading.Event(), threading.Event()

    def answer(delivery: Delivery) -> Answer:
        sending.set()
        assert goes_on.wait(900)
        return Answer(True, "HTTP 200")

    store.deliveries.begin()
    store.studies.move(study(store), [StudyState.RUNNING], StudyState.FAILED, now=store.now())
    notifier = Notifier(store, Settings(notify=[OURS]), send=Sent(answer), pause_seconds=0.01)
    notifier.start()
    assert sending.wait(900)
    notifier.close()
    assert not notifier._thread.is_alive()
    goes_on.set()
    until(lambda: is_at_rest(notifier), "what was being sent is noted")
    assert store.deliveries.page()[0].state is DeliveryState.DELIVERED
