"""The stream of events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.sse import EventSourceResponse

from api.access.allowed import TheAccess
from api.routes.answers import problems
from api.routes.parameters import LARGEST_ID, TheHub, Whole
from api.sse import EventStream
from scamp_service.errors import InvalidInput

_STREAM = {
    "type": "string",
    "contentMediaType": "text/event-stream",
    "contentSchema": {"$ref": "#/components/schemas/EventView"},
}
router = APIRouter(prefix="/v1", tags=["events"])


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {"description": "A stream of EventView", "content": {"text/event-stream": {"schema": _STREAM}}},
        **problems(422),
    },
)
def follow_events(
    hub: TheHub,
    access: TheAccess,
    after: Annotated[Whole | None, Query(ge=0, le=LARGEST_ID, description="replay the events after this id")] = None,
    study_id: Annotated[Whole | None, Query(ge=1, le=LARGEST_ID, description="only events of this study")] = None,
    last_event_id: Annotated[
        str | None, Header(description="overrides `after`; set by browsers on a reconnect")
    ] = None,
) -> EventSourceResponse:
    """Follow the events of all studies that you may read, as server-sent events. After a reconnect with
    `Last-Event-ID`, no event is missed or repeated. Without `after`, the stream begins with the next event."""
    seen = after
    if last_event_id:
        short = len(last_event_id) <= len(str(LARGEST_ID))  # Python refuses to read a number of 5,000 digits
        if not (short and last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) <= LARGEST_ID):
            raise InvalidInput("Last-Event-ID must be the id of an event of this stream, a number")
        seen = int(last_event_id)
    hub.check_room()
    return EventStream(hub.follow(seen, study_id, access.projects))
