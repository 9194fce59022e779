"""The use of devices; ``access`` has the tests of users and tokens."""

from __future__ import annotations

from datetime import date

import sqlalchemy as sa

from scamp_service.store import schema
from tests.services.serving import InProcess


def test_the_first_week_of_a_month_is_whole_although_it_begins_in_the_month_before(api: InProcess) -> None:
    days = [date(2026, 10, 25), date(2026, 10, 27), date(2026, 11, 1), date(2026, 11, 3)]
    rows = [{"day": day, "owner": "bob", "project": "vision", "device_seconds": 3600.0} for day in days]
    with api.store._database.write() as connection:
        for row in rows:
            connection.execute(sa.insert(schema.usage).values(mib_seconds=0.0, **row))
    weeks = api.get("/v1/usage?by=week&last=2026-11-03").json()
    assert [(week["period"], week["device_hours"]) for week in weeks] == [("2026-10-26", 2.0), ("2026-11-02", 1.0)]
    (month,) = api.get("/v1/usage?last=2026-11-03").json()
    assert (month["period"], month["device_hours"]) == ("2026-11-01", 2.0)
