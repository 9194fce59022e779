"""How long devices and memory were held, by day, owner and project. Quotas limit this, and reports show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

DAY_SECONDS = 86_400.0
_FIRST = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds × devices that attempts have held, and seconds × MiB that were reserved on them."""

    device_seconds: float = 0.0
    mib_seconds: float = 0.0

    def __add__(self, other: DeviceTime) -> DeviceTime:
        return DeviceTime(self.device_seconds + other.device_seconds, self.mib_seconds + other.mib_seconds)

    @classmethod
    def of_gang(cls, seconds: float, num_devices: int, mib: int) -> DeviceTime:
        """The time of a gang that has reserved ``mib`` MiB on each of its devices."""
        return cls(seconds * num_devices, seconds * num_devices * mib)


@dataclass(frozen=True, slots=True)
class DayOfUse:
    """Device time of the studies of one owner in one project on one day."""

    day: date
    owner: str
    project: str
    time: DeviceTime


def seconds_by_day(began: float, ended: float) -> Iterator[tuple[date, float]]:
    """Each day (UTC) of a span of time since the epoch, with its seconds on that day."""
    while began < ended:
        day = day_of(began)
        until = min(ended, began_at(day + timedelta(days=1)))
        yield day, until - began
        began = until


def day_of(time: float) -> date:
    """The day (UTC) of a time since the epoch."""
    return _FIRST + timedelta(days=time // DAY_SECONDS)


def began_at(day: date) -> float:
    """Seconds since the epoch at which a day begins."""
    return (day - _FIRST).days * DAY_SECONDS


def month_began(now: float) -> float:
    """Seconds since the epoch at which the calendar month (UTC) began."""
    return datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()
