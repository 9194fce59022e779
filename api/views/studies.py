"""A study: as it is submitted, listed, and shown with its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from api.views.view import Count, LastEvent, Time, View
from scamp_service.lifecycle import StudyState, TrialState, has_no_success, state_text
from scamp_service.model import Study, Trial
from scamp_service.store.summary import Summary
from scamp_service.study.spec import StudySpec


class NewStudy(View):
    """A study to run. ``code_zip`` holds the user's own files, when ``workload`` is ``FILE.py:Class``."""

    spec: StudySpec
    code_zip: Annotated[str | None, Field(description="a zip in base64, at most 64 MiB before and after unpacking")] = (
        None
    )


StateText = Annotated[str, Field(description="the state in words", examples=["Completed, no trial succeeded"])]
NoSuccess = Annotated[bool, Field(description="the study has completed, but none of its trials has")]


class BestView(View):
    """The leading trial: the best completed one, or else the best that still runs."""

    trial: Annotated[int, Field(description="its number in the study")]
    value: float | None
    params: dict[str, Any]
    plan: Annotated[str, Field(description="the plan in words", examples=["FSDP over 2 ranks, micro-batch 2 × 16"])]


class StudyView(View):
    id: int
    name: str
    state: StudyState
    state_text: StateText
    no_success: NoSuccess
    reason: Annotated[str, Field(description="why it failed or was stopped; empty otherwise")]
    spec: Annotated[dict[str, Any], Field(description="the StudySpec with all defaults filled in")]
    trials: Annotated[
        dict[TrialState, Count], Field(description="trials by state, without zeros", examples=[{"COMPLETED": 12}])
    ]
    best: BestView | None
    device_seconds: Annotated[float, Field(description="seconds × devices held by its attempts so far")]
    created_at: Time
    finished_at: Time | None


class LessonView(View):
    """What the newest trials of a family teach of its memory: bytes that its next candidate is predicted with, beyond
    its trace and the constant margin. A family is a workload with its code and all parameters but the numbers that a
    study searches."""

    family: str
    extra_bytes: Annotated[int, Field(description="reserved beyond trace and margin")]
    bias_bytes: Annotated[int, Field(description="of these, tensors that the median trial has and its trace does not")]
    num_trials: Annotated[int, Field(description="trials that are evidence")]
    num_out_of_memory: Annotated[int, Field(description="those of them that went out of memory")]
    studies: Annotated[list[int], Field(description="studies whose trials needed more than their trace")]


class OutOfMemoryView(View):
    attempts: Annotated[int, Field(description="how many ended so")]
    least_excess_pct: Annotated[
        float | None, Field(description="the worst needed so much more than predicted, or beyond")
    ]


class SummaryView(View):
    """The study in a few numbers, the same as `scamp run --json` prints."""

    study: int
    name: str
    state: StudyState
    state_text: StateText
    no_success: NoSuccess
    trials: dict[TrialState, Count]
    best: BestView | None
    degrees: Annotated[dict[str, Count], Field(description="ranks of a gang → trials that ran so")]
    colocated: Annotated[int, Field(description="most gangs of the study at once on one device")]
    healed: Annotated[int, Field(description="trials that ended well after an out-of-memory")]
    spared: Annotated[
        int, Field(description="trials that ran with memory learned from earlier trials, and did not run out of it")
    ]
    prediction_error_pct: Annotated[
        dict[str, float | None],
        Field(description="predicted against measured peak, where that is exact: median and max, absolute"),
    ]
    out_of_memory: OutOfMemoryView
    device_seconds: float
    wall_seconds: float
    best_metrics: Annotated[dict[str, float | None], Field(description="the last evaluation of the best trial")]
    learned: list[LessonView]


class StudyDetail(StudyView):
    summary: SummaryView
    last_event_id: LastEvent


def study_view(study: Study, counts: Mapping[TrialState, int], best: Trial | None, device_seconds: float) -> StudyView:
    leading = None
    if best is not None:
        leading = BestView(trial=best.number, value=best.value, params=dict(best.params), plan=str(best.plan or ""))
    return StudyView(
        **_study_fields(study),
        state_text=state_text(study.state, counts),
        no_success=has_no_success(study.state, counts),
        trials={state: counts[state] for state in TrialState if counts.get(state)},
        best=leading,
        device_seconds=device_seconds,
    )


def study_detail(study: Study, summary: Summary, last_event_id: int) -> StudyDetail:
    told = SummaryView.model_validate(summary.to_json())
    return StudyDetail(
        **_study_fields(study),
        state_text=told.state_text,
        no_success=told.no_success,
        trials=told.trials,
        best=told.best,
        device_seconds=told.device_seconds,
        summary=told,
        last_event_id=last_event_id,
    )


def _study_fields(study: Study) -> dict[str, Any]:
    names = ("id", "name", "state", "reason", "spec", "created_at", "finished_at")
    return {name: getattr(study, name) for name in names}
