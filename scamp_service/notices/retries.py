"""When a delivery that has failed is tried again: after pauses that grow threefold, for about a day."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scamp_service.lifecycle import DeliveryState
from scamp_service.model import Delivery


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one attempt. ``is_final``: to try again would not help."""

    is_delivered: bool
    words: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Retries:
    """12 attempts: pauses of 5 s, 15 s, 45 s, … 3 h, and three of 6 h make 22.6 hours."""

    first_seconds: float = 5.0
    factor: float = 3.0
    longest_seconds: float = 6 * 3600.0
    most_attempts: int = 12

    def after(self, delivery: Delivery, answer: Answer, now: float, chance: float) -> Delivery:
        """The delivery after one more attempt.

        ``chance`` (0 to 1) draws its pause within ±25 %, so that many deliveries to a receiver that was away do not
        come at once. A test is tried once: somebody waits for its answer.
        """
        tried = replace(delivery, num_attempts=delivery.num_attempts + 1, answer=answer.words)
        if answer.is_delivered:
            return replace(tried, state=DeliveryState.DELIVERED, ended_at=now)
        if answer.is_final or delivery.kind == "test" or tried.num_attempts >= self.most_attempts:
            return replace(tried, state=DeliveryState.GIVEN_UP, ended_at=now)
        pause = min(self.longest_seconds, self.first_seconds * self.factor**delivery.num_attempts)
        return replace(tried, next_at=now + pause * (0.75 + 0.5 * chance))
