"""The result of a simulated study: what ran where and when, why trials waited, and the figures that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from placement.model import Cluster
from scamp_service.lifecycle import TrialState

PLAN, VERDICT = "plan", "verdict"
"""Trials that are not queued wait for their plan, or until a stopping rule has compared them with others."""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt on its devices, from its launch until its ranks are gone, in seconds since the study began.

    ``communication_share`` (0 to 1) of its time ranks wait for messages; None where that is not known.
    """

    study: int
    trial: int
    attempt: int
    devices: tuple[str, ...]
    mib_per_rank: int
    start: float
    end: float
    plan: str
    ending: str
    communication_share: float | None = None

    @property
    def device_seconds(self) -> float:
        """Devices × seconds."""
        return (self.end - self.start) * len(self.devices)


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulation that has ended. ``waited`` are the trial-seconds that trials waited, by what they lacked: a
    ``Blocked`` of a policy, ``PLAN`` or ``VERDICT``.

    ``why_unfinished`` says why not every study has ended; it is empty if they have.
    """

    cluster: Cluster
    spans: Sequence[Span]
    waited: Mapping[str, float]
    states: Mapping[TrialState, int]
    reasons: Sequence[str] = ()  # of trials that failed or fit nowhere
    why_unfinished: str = ""
    assumed: Sequence[str] = field(default=())

    @property
    def makespan(self) -> float:
        """Seconds from the first submission until the last device is free."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def device_seconds(self) -> float:
        """Seconds × devices that attempts have held; devices that several share count for each."""
        return sum(span.device_seconds for span in self.spans)

    @property
    def busy_device_seconds(self) -> float:
        """Seconds × devices with at least one attempt."""
        intervals: dict[str, list[tuple[float, float]]] = {}
        for span in self.spans:
            for device in span.devices:
                intervals.setdefault(device, []).append((span.start, span.end))
        return sum(_covered(spans) for spans in intervals.values())

    @property
    def utilisation(self) -> float:
        """Share (0 to 1) of all devices' time until the makespan in which they hold an attempt."""
        device_seconds = self.makespan * len(self.cluster.devices)
        return self.busy_device_seconds / device_seconds if device_seconds else 0.0

    @property
    def communication_share(self) -> float:
        """Share (0 to 1) of the attempts' device time in which ranks wait for messages."""
        shares = [(span.device_seconds, span.communication_share or 0.0) for span in self.spans]
        total_seconds = sum(seconds for seconds, _ in shares)
        return sum(seconds * share for seconds, share in shares) / total_seconds if total_seconds else 0.0

    @property
    def trials_by_devices(self) -> Mapping[int, int]:
        """How many trials had their first attempt on each number of devices."""
        first = [span for span in self.spans if span.attempt == 1]
        return dict(sorted(Counter(len(span.devices) for span in first).items()))

    def to_json(self) -> dict[str, Any]:
        """All figures, and the log of attempts in the order of their ends."""
        return {
            "makespan_seconds": self.makespan,
            "device_hours": self.device_seconds / 3600,
            "busy_device_hours": self.busy_device_seconds / 3600,
            "utilisation": self.utilisation,
            "communication_share": self.communication_share,
            "trials": {state.value: count for state, count in self.states.items()},
            "trials_by_devices": {str(devices): count for devices, count in self.trials_by_devices.items()},
            "waited_seconds": dict(self.waited),
            "reasons": list(self.reasons),
            "why_unfinished": self.why_unfinished,
            "assumed": list(self.assumed),
            "attempts": [asdict(span) for span in self.spans],
        }


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    covered, last = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, last))
        last = max(last, end)
    return covered
