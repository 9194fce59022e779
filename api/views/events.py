"""An event of the stream, as clients receive it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.views.view import Time, View


class EventView(View):
    """The `data` of a server-sent event. The stream's own fields `id` and `event` repeat its id and kind."""

    id: int
    time: Time
    kind: Annotated[str, Field(description="study, trial, attempt, metrics or cluster")]
    study_id: int | None
    trial_id: int | None
    data: Annotated[dict[str, Any], Field(description="the fields that changed")]
