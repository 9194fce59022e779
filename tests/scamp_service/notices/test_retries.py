"""A delivery that fails is tried again after growing pauses, for about a day, and then given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scamp_service.lifecycle import DeliveryState
from scamp_service.model import Delivery
from scamp_service.notices.retries import Answer, Retries

NEW = Delivery(1, "msg_1", "study.ended", "", 3, "https://example.org", {}, {}, DeliveryState.WAITING, 0.0, 0.0)
FAILED = Answer(False, "HTTP 500")


def test_pauses_grow_for_about_a_day_until_a_delivery_is_given_up() -> None:
    delivery, pauses = NEW, list[float]()
    while delivery.state is DeliveryState.WAITING:
        now = delivery.next_at
        delivery = Retries().after(delivery, FAILED, now, chance=0.5)
        pauses.append(delivery.next_at - now)
    assert pauses[:4] == [5.0, 15.0, 45.0, 135.0] and pauses[-2] == 6 * 3600
    assert delivery.state is DeliveryState.GIVEN_UP and delivery.num_attempts == 12 and delivery.answer == "HTTP 500"
    assert delivery.ended_at is not None and 22 < delivery.ended_at / 3600 < 24


def test_pauses_differ_between_deliveries() -> None:
    early, late = (Retries().after(NEW, FAILED, 0.0, chance).next_at for chance in (0.0, 1.0))
    assert (early, late) == (3.75, 6.25)


def test_a_delivery_that_arrives_has_ended() -> None:
    done = Retries().after(NEW, Answer(True, "HTTP 204"), 8.0, 0.5)
    assert (done.state, done.ended_at, done.num_attempts) == (DeliveryState.DELIVERED, 8.0, 1)


@pytest.mark.parametrize(
    ("delivery", "answer"), [(NEW, replace(FAILED, is_final=True)), (replace(NEW, kind="test"), FAILED)]
)
def test_a_forbidden_address_and_a_test_are_tried_once(delivery: Delivery, answer: Answer) -> None:
    assert Retries().after(delivery, answer, 8.0, 0.5).state is DeliveryState.GIVEN_UP
