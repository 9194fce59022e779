"""Remembers the devices on which ranks do not start, so that they are tried ever less often, and not used meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FIRST_SECONDS = 1.0
"""Pause after the first failure. Each one that follows doubles it."""

LONGEST_SECONDS = 60.0

CLOSED_AFTER = 4
"""Failures in a row after which no gang is placed on the device until a rank has started there."""


@dataclass(slots=True)
class _Device:
    failures: int = 0
    why: str = ""
    next_try: float = 0.0


class StartFailures:
    """Failed starts by device. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def record_failure(self, device: str, why: str, now: float) -> None:
        """Note that a rank did not start on ``device``. Starts that fail within one pause count once."""
        record = self._devices.setdefault(device, _Device())
        record.why = why
        if now >= record.next_try:
            record.failures += 1
            record.next_try = now + min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** (record.failures - 1))

    def record_start(self, device: str) -> None:
        """Note that a rank has started on ``device``."""
        self._devices.pop(device, None)

    def may_try(self, device: str, now: float) -> bool:
        """Whether a rank may start on ``device`` now."""
        record = self._devices.get(device)
        return record is None or now >= record.next_try

    def closed(self) -> Mapping[str, str]:
        """Devices on which no gang is placed, and why."""
        return {
            device: f"{record.failures} times in a row no rank started on it; tried again at least once a minute: "
            f"{record.why}"
            for device, record in self._devices.items()
            if record.failures >= CLOSED_AFTER
        }
