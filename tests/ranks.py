"""Stand-ins for the sink and the store that a rank talks to, for tests without Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from estimators.model import Candidate, Plan
from scamp_service.control.executor import Order
from scamp_service.model import Report

ORDER = Order(
    candidate=Candidate("vit_digits", None, {}), plan=Plan(1), seed=0, steps=10, report_every=1, trial_id=1, attempt=1,
    resume=None, metrics=["accuracy"], objectives=["accuracy"], study_id=1, token="token", devices=("d",),
    mib_per_rank=1,
)  # fmt: skip


class FakeSink:
    """Gives each answer that it was told to give, and keeps what it was asked and the reports that it acknowledged."""

    def __init__(self, flush: Callable[[Report], bool] = lambda report: True, *, started: bool = True) -> None:
        self.flush, self.is_started = flush, started
        self.accepted: list[Report] = []
        self.outcomes: list[tuple[Any, ...]] = []
        self.phases: list[str] = []

    def ask(self, method: str, *args: Any, give_up: Any = None) -> Any:
        """Answer as ``Sink`` does."""
        match method:
            case "flush":
                if accepted := self.flush(args[0]):
                    self.accepted.append(args[0])
                return accepted
            case "started":
                return self.is_started
            case "outcome":
                self.outcomes.append(args[3:5])
                self.phases.append(args[5])
                return True
            case _:
                return None
