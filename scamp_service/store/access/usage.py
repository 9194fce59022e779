"""Reads what the studies of whom have held of the devices, and when; ``Attempts.move`` adds to it as attempts end.

It stays when a study is deleted: otherwise one could take back what one has used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import date

from sqlalchemy import bindparam, case, func, select

from placement.packing.device_time import DayOfUse, DeviceTime, day_of, month_began, of_day, seconds_by_day
from placement.packing.projects import person
from scamp_service.lifecycle import OPEN_ATTEMPTS
from scamp_service.store import schema
from scamp_service.store.parts.part import Part
from scamp_service.store.schema import one_of

_U, _A, _T, _S = schema.usage.c, schema.attempts.c, schema.trials.c, schema.studies.c
_DAYS = select(schema.usage).where(_U.day >= bindparam("first"), _U.day <= bindparam("last"))
_of_month = case((_U.day >= bindparam("first"), _U.device_seconds), else_=0.0)
_HOLDERS = select(_U.owner, _U.project, func.sum(_of_month), func.sum(_U.mib_seconds)).group_by(_U.owner, _U.project)
_OPEN = (
    select(_S.owner, _S.project, _A.created_at, _A.devices, _A.choice, _A.load)
    .join(schema.trials, _T.id == _A.trial_id)
    .join(schema.studies, _S.id == _T.study_id)
    .where(one_of(_A.state, *sorted(OPEN_ATTEMPTS)))
)


class Usage(Part):
    """Device time by day, owner and project."""

    def of_days(self, first: date, last: date, *, now: float) -> list[DayOfUse]:
        """Device time on each of these days (UTC); attempts that are open count up to ``now``."""
        times: defaultdict[tuple[date, str, str], DeviceTime] = defaultdict(DeviceTime)
        for row in self._rows(_DAYS, first=first, last=last):
            times[row.day, row.owner, row.project] += DeviceTime(*(getattr(row, name) for name in schema.DEVICE_TIME))
        for day, owner, project, time in self._of_open(now):
            if first <= day <= last:
                times[day, owner, project] += time
        return [DayOfUse(*key, time) for key, time in sorted(times.items(), key=lambda item: item[0])]

    def of_holders(self, now: float) -> dict[str, DeviceTime]:
        """Holder of quotas → device time of this calendar month, and memory over all time, of attempts that have
        ended."""
        times: defaultdict[str, DeviceTime] = defaultdict(DeviceTime)
        for owner, project, *seconds in self._rows(_HOLDERS, first=day_of(month_began(now))):
            times[project] += DeviceTime(*seconds)
            times[person(owner)] += DeviceTime(*seconds)
        return times

    def _of_open(self, now: float) -> Iterator[tuple[date, str, str, DeviceTime]]:
        for row in self._rows(_OPEN):
            for day, seconds in seconds_by_day(row.created_at, now):
                mib = row.choice.prediction.reserved_mib
                time = DeviceTime.of_gang(seconds, len(row.devices), mib, of_day(row.load, day))
                yield day, row.owner, row.project, time
