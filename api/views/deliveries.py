"""Views of notices on their way to receivers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from api.views.view import Count, Time, View
from scamp_service.lifecycle import DeliveryState
from scamp_service.model import Delivery
from scamp_service.notices.notifier import shown


class DeliveryView(View):
    """A notice on its way to one receiver."""

    id: int
    webhook_id: Annotated[str, Field(description="`webhook-id` of every attempt")]
    kind: Annotated[str, Field(examples=["study.ended"])]
    study_id: int | None
    to: Annotated[str, Field(description="the e-mail address, or the URL without its path, which may be a secret")]
    text: str
    state: DeliveryState
    num_attempts: Count
    answer: Annotated[str, Field(description="what came of the last attempt", examples=["HTTP 200"])]
    created_at: Time
    next_at: Annotated[float | None, Field(description="when it is tried next; null once it has ended")]
    ended_at: Time | None


def delivery_view(delivery: Delivery) -> DeliveryView:
    """The view of a delivery."""
    names = ("id", "webhook_id", "kind", "study_id", "state", "num_attempts", "answer", "created_at", "ended_at")
    return DeliveryView(
        **{name: getattr(delivery, name) for name in names},
        to=shown(delivery),
        text=delivery.body["data"]["text"],
        next_at=delivery.next_at if delivery.state is DeliveryState.WAITING else None,
    )
