"""How long devices and memory were held, by day, owner and project, and how busy the devices were. Pure.

Quotas limit the time, and reports show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime, timedelta

DAY_SECONDS = 86_400.0
_FIRST = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds × devices that attempts have held, and seconds × MiB that were reserved on them.

    In ``watched_seconds`` of the device time it was measured how busy they were; the measured shares of it add up to
    ``busy_seconds``.
    """

    device_seconds: float = 0.0
    mib_seconds: float = 0.0
    watched_seconds: float = 0.0
    busy_seconds: float = 0.0

    def __add__(self, other: DeviceTime) -> DeviceTime:
        return DeviceTime(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def busy_share(self) -> float | None:
        """The measured mean (0 to 1); None where nothing was measured."""
        return self.busy_seconds / self.watched_seconds if self.watched_seconds else None

    @classmethod
    def of_gang(cls, seconds: float, num_devices: int, mib: int, load: Sequence[Watch] = ()) -> DeviceTime:
        """The time of a gang that has reserved ``mib`` MiB on each of its devices. ``load`` is that of this time."""
        held = seconds * num_devices
        watched = min(sum(watch.seconds for watch in load), seconds)
        return cls(held, held * mib, watched * num_devices, watched * num_devices * (busy_share(load) or 0.0))


@dataclass(frozen=True, slots=True)
class Watch:
    """How busy the first rank of a gang was in the ``seconds`` until ``ended`` (since the epoch).

    ``busy_share`` (0 to 1) is the share of the time in which its GPU computed, or on a CPU its own process.
    ``mib`` is the memory that it had at the end, in torch's allocator on a GPU and in the process on a CPU.
    """

    ended: float
    seconds: float
    busy_share: float
    mib: float

    @classmethod
    def from_json(cls, data: Sequence[float]) -> Watch:
        return cls(*data)

    def to_json(self) -> tuple[float, ...]:
        return round(self.ended), round(self.seconds, 1), round(self.busy_share, 4), round(self.mib, 1)

    def __add__(self, later: Watch) -> Watch:
        seconds = self.seconds + later.seconds
        busy = self.busy_share * self.seconds + later.busy_share * later.seconds
        return Watch(later.ended, seconds, busy / seconds, max(self.mib, later.mib))


MOST_WATCHES = 128


def with_watch(load: Sequence[Watch], new: Watch) -> tuple[Watch, ...]:
    """The load with a new watch. Once there are ``MOST_WATCHES``, those of the first half are joined in pairs."""
    if len(load) >= MOST_WATCHES:
        half = MOST_WATCHES // 2
        load = [*(a + b for a, b in zip(load[:half:2], load[1:half:2], strict=True)), *load[half:]]
    return *load, new


def of_day(load: Iterable[Watch], day: date) -> list[Watch]:
    """The watches of a load that ended on a day (UTC)."""
    return [watch for watch in load if day_of(watch.ended) == day]


def busy_share(load: Iterable[Watch]) -> float | None:
    """The mean (0 to 1) of a load; None if it is empty."""
    seconds, busy = 0.0, 0.0
    for watch in load:
        seconds, busy = seconds + watch.seconds, busy + watch.busy_share * watch.seconds
    return busy / seconds if seconds else None


@dataclass(frozen=True, slots=True)
class IdleRule:
    """A gang is idle once its first rank was less busy than ``share`` (0 to 1) in every watch of ``seconds``."""

    share: float
    seconds: float

    def idle_seconds(self, load: Sequence[Watch]) -> float:
        """For how long a gang has been idle; 0 unless that is at least ``seconds``."""
        idle = 0.0
        for watch in reversed(load):
            if watch.busy_share >= self.share:
                break
            idle += watch.seconds
        return idle if idle >= self.seconds else 0.0


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
