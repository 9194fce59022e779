"""An event of the stream."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.views.view import Time, View


class EventView(View):
    """The `data` of a server-sent event; `id` and `event` (the kind) are fields of the stream as well."""

    id: int
    time: Time
    kind: Annotated[str, Field(description="study, trial, attempt, metrics or cluster")]
    study_id: int | None
    trial_id: int | None
    data: Annotated[dict[str, Any], Field(description="what has changed")]
