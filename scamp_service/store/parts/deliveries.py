"""Notices on their way to receivers (an outbox), and how far the notifier has read the events.

New deliveries and the cursor are written in one transaction, so a notifier that is killed neither forgets a notice nor
makes it twice. What is sent is noted afterwards: it may be sent again, with the same ``webhook_id``.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam, func, select

from scamp_service.lifecycle import DeliveryState, StudyState
from scamp_service.model import Delivery, Event, Json
from scamp_service.store import queries, schema
from scamp_service.store import statements as sql
from scamp_service.store.events import StudyChange, TrialChange
from scamp_service.store.parts.part import WritingPart
from scamp_service.store.rows import select_fields

_D, _N, _E = schema.deliveries, schema.notifier, schema.events
_ROW = select(_N.c.cursor, _N.c.secret)
_SET_CURSOR = sa.update(_N).where(_N.c.cursor < bindparam("_cursor")).values(cursor=bindparam("_cursor"))
_IS_READ = sa.or_(_E.c.kind == StudyChange.kind, _E.c.kind == TrialChange.kind)
_NEW_EVENTS = (
    select_fields(_E, Event)
    .where(_E.c.id > bindparam("after"), _E.c.id <= bindparam("last"), _IS_READ)
    .order_by(_E.c.id)
    .limit(bindparam("limit"))
)
_is_due = sa.and_(_D.c.state == DeliveryState.WAITING, _D.c.next_at <= bindparam("now"))
_DUE = select(_D.c.address).where(_is_due).group_by(_D.c.address).order_by(func.min(_D.c.next_at))
_DUE_TO = (
    select_fields(_D, Delivery)
    .where(_is_due, _D.c.address == bindparam("address"))
    .order_by(_D.c.id)
    .limit(bindparam("limit"))
)
_NAMED = (
    select_fields(_D, Delivery).where(_D.c.webhook_id.in_(bindparam("webhook_ids", expanding=True))).order_by(_D.c.id)
)
_UNTRIED = select(_D.c.id).where(_D.c.state == DeliveryState.WAITING, _D.c.num_attempts == 0).limit(1)
_UNREAD = select(_E.c.id).where(_E.c.id > bindparam("after"), _IS_READ).limit(1)
_RECENT = (
    select(_D.c.address, _D.c.kind, _D.c.study_id, func.count())
    .where(_D.c.created_at > bindparam("since"))
    .group_by(_D.c.address, _D.c.kind, _D.c.study_id)
)
_LAST_ABOUT = (
    select(_D.c.address, _D.c.topic, func.max(_D.c.created_at))
    .where(_D.c.topic != "")
    .group_by(_D.c.address, _D.c.topic)
)
_NOTE = (
    sa.update(_D)
    .where(_D.c.id == bindparam("_id"), _D.c.state == DeliveryState.WAITING)
    .values({name: bindparam(f"_{name}") for name in ("state", "num_attempts", "next_at", "answer", "ended_at")})
)
_REMOVE_OLD = sa.delete(_D).where(_D.c.created_at < bindparam("_before"), _D.c.state != DeliveryState.WAITING)


class Deliveries(WritingPart):
    """The methods of the store for deliveries."""

    def begin(self) -> tuple[int, str]:
        """(last event that was looked at, secret that signs webhooks); the first call makes both.

        Nobody is told of events before that.
        """
        if (row := self._row(_ROW)) is None:
            last = self._value(queries.LAST_EVENT) or 0
            secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
            with self._write() as connection:
                connection.execute(self._insert_new(_N, "id"), {"id": 1, "secret": secret, "cursor": last})
            row = self._row(_ROW)
        return row.cursor, row.secret

    def new_events(self, after: int, *, limit: int = 500) -> tuple[list[Event], int]:
        """Events about studies and trials after ``after``, and the last event that was looked at for them."""
        last = int(self._value(queries.LAST_EVENT) or 0)
        events = self._all(Event, _NEW_EVENTS, after=after, last=last, limit=limit)
        return events, events[-1].id if len(events) == limit else max(after, last)

    def add(self, deliveries: Sequence[Json], cursor: int = 0) -> None:
        """Store new deliveries, but those about deleted studies, and that events up to ``cursor`` were looked at."""
        with self._write() as connection:
            study_ids = {delivery["study_id"] for delivery in deliveries} - {None}
            states = {key: connection.execute(sql.LOCK_STUDY, {"study_id": key}).scalar() for key in sorted(study_ids)}
            gone = {key for key, state in states.items() if state in (None, StudyState.DELETED)}
            if rows := [delivery for delivery in deliveries if delivery["study_id"] not in gone]:
                connection.execute(sa.insert(_D), rows)
                for key in sorted(study_ids - gone) or [None]:
                    self._record(connection, "test receivers", key)  # nobody asks for other deliveries
            if cursor:
                connection.execute(_SET_CURSOR, {"_cursor": cursor})

    def due_addresses(self, now: float) -> list[str]:
        """Addresses that something is to be sent to now, the one that has waited longest first."""
        return self._values(_DUE, now=now)

    def due_to(self, address: str, now: float, *, limit: int = 20) -> list[Delivery]:
        """The oldest deliveries to send to this address now."""
        return self._all(Delivery, _DUE_TO, address=address, now=now, limit=limit)

    def named(self, webhook_ids: Sequence[str]) -> list[Delivery]:
        """The deliveries with these ids that exist, by the order in which they were stored."""
        return self._all(Delivery, _NAMED, webhook_ids=list(webhook_ids))

    def note(self, tried: Delivery) -> None:
        """Store what came of an attempt; no effect if the delivery has ended or is gone."""
        names = ("id", "state", "num_attempts", "next_at", "answer", "ended_at")
        with self._write() as connection:
            connection.execute(_NOTE, {f"_{name}": getattr(tried, name) for name in names})

    def page(
        self, *, after: int = 0, limit: int = 100, study_id: int | None = None, newest_first: bool = False
    ) -> list[Delivery]:
        """Deliveries with id > ``after`` by ascending id, or with ``newest_first`` those with id < ``after`` (0: all)
        by descending id; with ``study_id`` only those about this study."""
        statement = select_fields(_D, Delivery).order_by(_D.c.id.desc() if newest_first else _D.c.id).limit(limit)
        if after:
            statement = statement.where(_D.c.id < after if newest_first else _D.c.id > after)
        return self._all(Delivery, statement if study_id is None else statement.where(_D.c.study_id == study_id))

    def recent(self, since: float) -> Mapping[tuple[str, str, int | None], int]:
        """Number of deliveries since then by address, kind and study."""
        return {(row[0], row[1], row[2]): row[3] for row in self._rows(_RECENT, since=since)}

    def last_about(self) -> Mapping[tuple[str, str], float]:
        """When each address was last told about each lasting condition, by address and topic."""
        return {(row[0], row[1]): row[2] for row in self._rows(_LAST_ABOUT)}

    def is_behind(self) -> bool:
        """Whether events are still to be looked at, or deliveries to be tried for the first time."""
        return bool(self._value(_UNREAD, after=self.begin()[0]) or self._value(_UNTRIED))

    def remove_old(self, before: float) -> None:
        """Remove deliveries that have ended and were due before then."""
        with self._write() as connection:
            connection.execute(_REMOVE_OLD, {"_before": before})


def new_delivery(row: Json) -> dict[str, Any]:
    """The row of a new delivery, with an id that no other one has."""
    return {**row, "webhook_id": f"msg_{secrets.token_hex(12)}", "state": DeliveryState.WAITING}
