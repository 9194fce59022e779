"""Events that clients and the controller follow. Every part writes those about its changes (see ``part``)."""

from __future__ import annotations

from scamp_service.model import Event
from scamp_service.store import queries
from scamp_service.store.parts.part import Part


class Events(Part):
    """Reads of events."""

    def page(self, *, after: int = 0, limit: int = 1000, study_id: int | None = None) -> list[Event]:
        """Events with id > ``after``, in commit order: a reader of event n never later finds an event < n."""
        filters = {} if study_id is None else {"study_id": study_id}
        return self._all(Event, queries.events(bool(filters)), after=after, limit=limit, **filters)

    def changed_since(self, event_id: int, *, limit: int = 1000) -> list[tuple[int, int | None]]:
        """(event id, trial id) of the events after ``event_id``; None for an event that names no trial."""
        return [(row.id, row.trial_id) for row in self._rows(queries.CHANGED_SINCE, after=event_id, limit=limit)]

    def last_id(self) -> int:
        """Id of the newest event; 0 while there is none."""
        return int(self._value(queries.LAST_EVENT) or 0)
