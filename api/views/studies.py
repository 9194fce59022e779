"""Views of a study: as it is submitted, listed, and shown with its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.views.view import Count, LastEvent, Time, View
from scamp_service.errors import InvalidInput
from scamp_service.lifecycle import StudyState, TrialState, has_no_success, seen_state, state_text
from scamp_service.model import Study, Trial
from scamp_service.store.summary import Best, Summary
from scamp_service.study.spec import StudySpec

CodeOf = Annotated[int | None, Field(description="id of a study whose files are used too; yours replace them")]


class NewStudy(View):
    """A study to run. `code_zip` holds your own files when `workload` is `FILE.py:Class`."""

    spec: StudySpec
    code_zip: Annotated[str | None, Field(description="a zip in base64, at most 64 MiB before and after unpacking")] = (
        None
    )
    code_of: CodeOf = None


class ProvenanceView(View):
    """Where a study comes from; null: not known."""

    command: Annotated[str | None, Field(max_length=2000, description="that has submitted it")] = None
    commit: Annotated[str | None, Field(max_length=100, description="of git, of the folder of its files")] = None
    is_changed: Annotated[bool | None, Field(description="whether tracked files differed from the commit")] = None
    packages: Annotated[dict[str, str], Field(description="versions of Python and packages of the service")] = Field(
        default_factory=dict
    )


def provenance_of(text: str | None) -> dict[str, Any]:
    """Read the header that says where a study comes from. Raises ``InvalidInput``."""
    try:
        source = ProvenanceView.model_validate_json(text or "{}")
    except ValidationError:
        raise InvalidInput("Scamp-Provenance must be JSON with command, commit and is_changed") from None
    return source.model_dump(exclude={"packages"}, exclude_none=True)


class NewStudyForm(View):
    """A study to run, as a form: its file, and your own files as they are."""

    spec: Annotated[str, Field(description="the study, as YAML or JSON")]
    files: Annotated[
        list[bytes],
        Field(description="your own files when `workload` is `FILE.py:Class`; the name of each is its path"),
    ] = Field(default_factory=list)
    code_of: CodeOf = None
    paused: Annotated[bool, Field(description="predict and plan, but train nothing until the study is resumed")] = False


class RequestBody(BaseModel):
    """The body of a request. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Limits(RequestBody):
    """Limits of a study's budget that change: those of the whole study, not what is added. The others stay."""

    trials: Annotated[int | None, Field(ge=1, description="number of trials in all")] = None
    seconds: Annotated[float | None, Field(gt=0, description="seconds that it may run")] = None
    device_hours: Annotated[float | None, Field(gt=0, description="hours × devices")] = None
    target: Annotated[
        float | dict[str, float] | None,
        Field(description="value of the objective at which it ends; with several, a mapping from metrics to values"),
    ] = None
    max_concurrent: Annotated[int | None, Field(ge=1, description="trials that may run at once")] = None
    drop: Annotated[
        list[Literal["seconds", "device_hours", "target", "terminator", "max_concurrent"]],
        Field(description="limits that the study no longer has"),
    ] = []

    @property
    def changes(self) -> dict[str, Any]:
        """New values of limits; None for those that are dropped."""
        return self.model_dump(exclude_none=True, exclude={"drop"}) | dict.fromkeys(self.drop)


class Priority(RequestBody):
    """The priority of a study."""

    priority: Annotated[int, Field(ge=-100, le=100, description="trials of a higher one start first")]


Tag = Annotated[str, Field(min_length=1, max_length=50)]


class Description(RequestBody):
    """How people know a study; what is left out stays."""

    name: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    tags: Annotated[list[Tag] | None, Field(max_length=20)] = None
    note: Annotated[str | None, Field(max_length=10_000)] = None
    archived: Annotated[bool | None, Field(description="whether it is listed only on demand")] = None


class Clone(RequestBody):
    """How a clone differs from its original."""

    name: Annotated[str | None, Field(description="name of the new study; default: the same")] = None


class Enqueued(RequestBody):
    """Candidates to try in a study that runs or has completed."""

    candidates: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, max_length=100, description="parameters; those that are left out are random"),
    ]
    values: Annotated[
        list[float | list[float]] | None,
        Field(max_length=100, description="result of each, measured elsewhere, one number for each objective"),
    ] = None


class EnqueuedView(View):
    """The trials that were added."""

    numbers: Annotated[list[int], Field(description="number of the trial of each candidate")]


class Retried(RequestBody):
    """Which failed trials run again."""

    numbers: Annotated[list[int] | None, Field(description="their numbers; default: all that have failed")] = None


class RetriedView(View):
    """The failed trials that run again."""

    numbers: Annotated[list[int], Field(description="their numbers; trials that have not ended are left out")]


StateText = Annotated[str, Field(description="the state in words", examples=["Completed, no trial succeeded"])]
NoSuccess = Annotated[bool, Field(description="the study has completed, but none of its trials did")]


class StudyView(View):
    """A study as it is listed."""

    id: int
    name: str
    state: StudyState
    state_text: StateText
    no_success: NoSuccess
    reason: Annotated[str, Field(description="why the study failed or was stopped; empty otherwise")]
    warnings: Annotated[
        list[str], Field(description="what was doubtful when it was submitted: parameters that may not be read, say")
    ]
    spec: Annotated[dict[str, Any], Field(description="the StudySpec with all defaults filled in")]
    has_files: Annotated[bool, Field(description="whether a user's own files were submitted with it")]
    trials: Annotated[
        dict[TrialState, Count],
        Field(description="number of trials in each state that has any", examples=[{"COMPLETED": 12}]),
    ]
    best: Annotated[Best | None, Field(description="null with several objectives, see `front`")]
    device_seconds: Annotated[float, Field(description="seconds × devices that its attempts have held so far")]
    owner: Annotated[str, Field(description="user who submitted it; empty if there were no users")]
    project: str
    tags: list[str]
    note: str
    archived: Annotated[bool, Field(description="whether it is listed only on demand")]
    created_at: Time
    finished_at: Time | None


class StudyDetail(StudyView):
    """A study with its summary."""

    summary: Summary
    last_event_id: LastEvent


def study_view(study: Study, counts: Mapping[TrialState, int], best: Trial | None, device_seconds: float) -> StudyView:
    """View of a study as it is listed. ``counts`` are its trials by state."""
    return StudyView(
        **_study_fields(study),
        state_text=state_text(seen_state(study.state, study.spec), counts),
        no_success=has_no_success(study.state, counts),
        trials={state: counts[state] for state in TrialState if counts.get(state)},
        best=Best.of(best) if best else None,
        device_seconds=device_seconds,
    )


def study_detail(study: Study, summary: Summary, last_event_id: int) -> StudyDetail:
    """View of a study with its summary."""
    return StudyDetail(
        **_study_fields(study),
        state_text=summary.state_text,
        no_success=summary.no_success,
        trials=dict(summary.trials),
        best=summary.best,
        device_seconds=summary.device_seconds,
        summary=summary,
        last_event_id=last_event_id,
    )


def _study_fields(study: Study) -> dict[str, Any]:
    names = ("id", "name", "reason", "spec", "owner", "project", "note", "archived", "created_at", "finished_at")
    fields = {name: getattr(study, name) for name in names} | {"state": seen_state(study.state, study.spec)}
    return fields | {"warnings": list(study.warnings), "tags": list(study.tags), "has_files": study.code is not None}
