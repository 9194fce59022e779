"""Events of the stream, as clients receive them: one model for each kind, around what the store wrote."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel

from api.views.view import Time, View
from scamp_service.store.events import AttemptChange, ClusterState, NewMetrics, StudyChange, TrialChange


class _Event(View):
    id: int
    time: Time


class StudyEvent(_Event):
    """Something about a study has changed."""

    kind: Literal["study"]
    study_id: int
    trial_id: None
    data: StudyChange


class TrialEvent(_Event):
    """Something about a trial has changed."""

    kind: Literal["trial"]
    study_id: int
    trial_id: int
    data: TrialChange


class AttemptEvent(_Event):
    """Something about an attempt has changed."""

    kind: Literal["attempt"]
    study_id: int
    trial_id: int
    data: AttemptChange


class MetricsEvent(_Event):
    """A trial has reported metrics."""

    kind: Literal["metrics"]
    study_id: int
    trial_id: int
    data: NewMetrics


class ClusterEvent(_Event):
    """Something about the cluster has changed."""

    kind: Literal["cluster"]
    study_id: None
    trial_id: None
    data: ClusterState


class EventView(
    RootModel[
        Annotated[StudyEvent | TrialEvent | AttemptEvent | MetricsEvent | ClusterEvent, Field(discriminator="kind")]
    ]
):
    """The `data` of a server-sent event. The stream's own fields `id` and `event` repeat its id and kind."""
