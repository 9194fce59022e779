"""Deliveries are stored with the cursor in the events, noted after each attempt, and deleted with their study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scamp_service.errors import Deposed
from scamp_service.lifecycle import CONTROLLER_LEASE, DeliveryState, StudyState, TrialState
from scamp_service.model import Delivery
from scamp_service.store.parts.deliveries import new_delivery
from scamp_service.store.store import Store
from tests.scamp_service.store.parts.test_requests import SPEC, end


def row(study_id: int | None = None, address: str = "https://a", now: float = 5.0, **changes: Any) -> dict[str, Any]:
    values = {
        "kind": "study.ended", "topic": "", "study_id": study_id, "address": address, "receiver": {"webhook": address},
        "body": {"data": {"text": "over"}}, "created_at": now, "next_at": now,
    }  # fmt: skip
    return new_delivery({**values, **changes})


def ended_study(store: Store) -> int:
    study = store.studies.create(SPEC, now=1.0).id
    store.trials.create(study, [(0, {})], now=1.0)
    end(store, store.trials.page(study)[0].id, TrialState.COMPLETED, value=0.5)
    assert store.studies.move(study, [StudyState.RUNNING], StudyState.COMPLETED, now=3.0)
    return study


def test_nobody_is_told_of_what_was_before_the_first_notifier(store: Store) -> None:
    ended_study(store)
    cursor, secret = store.deliveries.begin()
    assert cursor == store.events.last_id() and secret.startswith("whsec_")
    ended_study(store)
    assert store.deliveries.begin() == (cursor, secret), "made once"


def test_new_events_are_those_about_studies_and_trials(store: Store) -> None:
    cursor, _ = store.deliveries.begin()
    ended_study(store)
    events, last = store.deliveries.new_events(cursor)
    assert [event.kind for event in events] == ["study", "trial", "trial", "study"]
    assert last == store.events.last_id() and store.deliveries.new_events(last) == ([], last)
    some, at = store.deliveries.new_events(cursor, limit=3)
    assert at == some[-1].id and store.deliveries.new_events(at) == (events[3:], last)


def test_the_cursor_is_stored_with_the_deliveries_and_never_goes_back(store: Store) -> None:
    store.deliveries.begin()
    store.deliveries.add([row(), row()], cursor=7)
    store.deliveries.add([], cursor=5)
    assert store.deliveries.begin()[0] == 7 and len(store.deliveries.page()) == 2
    ids = [delivery.webhook_id for delivery in store.deliveries.page()]
    assert len(set(ids)) == 2 and [each.webhook_id for each in store.deliveries.named(ids)] == ids


def test_a_notifier_that_was_deposed_stores_nothing(store: Store) -> None:
    lease = store.leases.take(CONTROLLER_LEASE, "a", None, now=1.0)
    assert lease is not None
    fenced = store.fenced(CONTROLLER_LEASE, lease)
    store.deliveries.begin()
    store.leases.take(CONTROLLER_LEASE, "b", lease, now=2.0)
    with pytest.raises(Deposed):
        fenced.deliveries.add([row()], cursor=7)
    assert store.deliveries.page() == [] and store.deliveries.begin()[0] == 0


def test_what_is_due_comes_by_address_the_longest_wait_first(store: Store) -> None:
    store.deliveries.add([row(now=5.0), row(address="b@c", now=4.0), row(now=6.0), row(address="d@e", now=9.0)])
    assert store.deliveries.due_addresses(6.0) == ["b@c", "https://a"]
    assert [each.created_at for each in store.deliveries.due_to("https://a", 6.0)] == [5.0, 6.0]
    assert len(store.deliveries.due_to("https://a", 6.0, limit=1)) == 1


def test_an_attempt_is_noted_unless_the_delivery_has_ended(store: Store) -> None:
    store.deliveries.add([row()])
    (delivery,) = store.deliveries.page()
    done = replace(delivery, state=DeliveryState.DELIVERED, num_attempts=1, answer="HTTP 200", ended_at=6.0)
    store.deliveries.note(done)
    store.deliveries.note(replace(delivery, num_attempts=2, answer="HTTP 500"))
    assert store.deliveries.page() == [done] and store.deliveries.due_addresses(99.0) == []


def test_deliveries_come_in_pages_of_all_or_of_one_study(store: Store) -> None:
    study = ended_study(store)
    store.deliveries.add([row(), row(study), row()])
    first, second, third = store.deliveries.page()

    def page(**options: Any) -> list[Delivery]:
        return store.deliveries.page(**options)

    assert page(after=first.id, limit=1) == [second] and page(study_id=study) == [second]
    assert page(newest_first=True, limit=2) == [third, second]
    assert page(newest_first=True, after=second.id) == [first]


def test_a_deleted_study_has_no_deliveries_and_gets_none(store: Store) -> None:
    study, other = ended_study(store), ended_study(store)
    store.deliveries.add([row(study), row(other), row()])
    store.requests.delete(study, now=9.0)
    store.deliveries.add([row(study), row(other)])
    assert [delivery.study_id for delivery in store.deliveries.page()] == [other, None, other]


def test_numbers_and_times_are_those_of_each_address(store: Store) -> None:
    study = ended_study(store)
    store.deliveries.add([row(study, now=5.0), row(study, now=6.0), row(study, address="b@c"), row(topic="idle")])
    assert store.deliveries.recent(5.5) == {("https://a", "study.ended", study): 1}
    assert store.deliveries.last_about() == {("https://a", "idle"): 5.0}


def test_only_deliveries_that_have_ended_become_too_old(store: Store) -> None:
    store.deliveries.add([row(now=5.0), row(now=5.0), row(now=8.0)])
    first = store.deliveries.page()[0]
    store.deliveries.note(replace(first, state=DeliveryState.GIVEN_UP, num_attempts=1, ended_at=6.0))
    store.deliveries.remove_old(7.0)
    assert [delivery.id for delivery in store.deliveries.page()] == [first.id + 1, first.id + 2]


def test_a_notifier_is_behind_until_it_has_read_and_tried_everything(store: Store) -> None:
    cursor, _ = store.deliveries.begin()
    assert not store.deliveries.is_behind()
    ended_study(store)
    assert store.deliveries.is_behind()
    store.deliveries.add([row()], cursor=store.deliveries.new_events(cursor)[1])
    assert store.deliveries.is_behind(), "its delivery was not tried"
    (delivery,) = store.deliveries.page()
    store.deliveries.note(replace(delivery, num_attempts=1, next_at=99.0))
    assert not store.deliveries.is_behind(), "it waits for its next try"
