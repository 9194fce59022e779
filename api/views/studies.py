"""Views of a study: as it is submitted, listed, and shown with its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.views.view import Count, LastEvent, Time, View
from scamp_service.lifecycle import StudyState, TrialState, has_no_success, seen_state, state_text
from scamp_service.model import Study, Trial
from scamp_service.store.summary import Summary
from scamp_service.study.spec import StudySpec

CodeOf = Annotated[int | None, Field(description="id of a study whose files are used too; yours replace them")]


class NewStudy(View):
    """A study to run. `code_zip` holds your own files when `workload` is `FILE.py:Class`."""

    spec: StudySpec
    code_zip: Annotated[str | None, Field(description="a zip in base64, at most 64 MiB before and after unpacking")] = (
        None
    )
    code_of: CodeOf = None


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


class Clone(RequestBody):
    """How a clone differs from its original."""

    name: Annotated[str | None, Field(description="name of the new study; default: the same")] = None


class Enqueued(RequestBody):
    """Candidates to try in a study that runs or has completed."""

    candidates: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, max_length=100, description="parameters; those that are left out are random"),
    ]


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


class BestView(View):
    """The best completed trial; while there is none, the best running trial."""

    trial: Annotated[int, Field(description="number of the trial in the study")]
    value: Annotated[float | None, Field(description="its objective")]
    params: dict[str, Any]
    plan: Annotated[str, Field(description="the plan in words", examples=["FSDP over 2 ranks, micro-batch 2 × 16"])]


class FrontTrialView(View):
    """A trial on the Pareto front of a study with several objectives."""

    trial: Annotated[int, Field(description="number of the trial in the study")]
    values: Annotated[list[float], Field(description="value of each objective, in the order of `spec.objectives`")]
    params: dict[str, Any]
    plan: Annotated[str, Field(description="the plan in words")]


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
    best: Annotated[BestView | None, Field(description="null with several objectives, see `front`")]
    device_seconds: Annotated[float, Field(description="seconds × devices that its attempts have held so far")]
    created_at: Time
    finished_at: Time | None


class LearnedView(View):
    """Memory correction learned from the newest trials of a family that ran with one layout: bytes that are added to
    the prediction of its next candidate with this layout, beyond its trace and the constant margin. A family is a
    workload with its code and all parameters except the numbers that a study searches."""

    family: str
    layout: Annotated[str, Field(description="how the model was spread over ranks", examples=["fsdp2+recompute"])]
    extra_bytes: Annotated[int, Field(description="bytes reserved beyond trace and margin")]
    bias_bytes: Annotated[int, Field(description="part of extra_bytes: tensors that the trace misses, by the median")]
    num_trials: Annotated[int, Field(description="trials that the correction was learned from")]
    num_out_of_memory: Annotated[int, Field(description="number of them that ran out of memory")]
    num_halvings: Annotated[int, Field(description="how often finished trials have halved what failures ask for")]
    studies: Annotated[list[int], Field(description="studies whose trials needed more than their trace")]


class OutOfMemoryView(View):
    """Attempts that ran out of memory, whose true peak is unknown."""

    attempts: Annotated[int, Field(description="number of attempts that ran out of memory")]
    least_excess_pct: Annotated[
        float | None, Field(description="the worst attempt needed at least this many percent more than predicted")
    ]


class SummaryView(View):
    """The study in a few numbers, as `scamp run --json` prints them."""

    study: int
    name: str
    state: StudyState
    state_text: StateText
    no_success: NoSuccess
    trials: dict[TrialState, Count]
    best: BestView | None
    degrees: Annotated[dict[str, Count], Field(description="number of trials by the number of ranks they ran on")]
    colocated: Annotated[int, Field(description="largest number of gangs of the study on one device at once")]
    healed: Annotated[int, Field(description="trials that completed or were pruned after running out of memory")]
    spared: Annotated[
        int, Field(description="trials that ran with memory learned from earlier trials and did not run out of memory")
    ]
    is_uneven: Annotated[
        bool, Field(description="whether samples differ in size, so that peaks are predicted for the largest of them")
    ]
    prediction_error_pct: Annotated[
        dict[str, float | None],
        Field(
            description="`median` and `max` absolute error of predicted peaks, over exactly measured trials; null if "
            "samples differ in size"
        ),
    ]
    step_error_pct: Annotated[
        dict[str, float | None],
        Field(description="the same for predicted seconds of a step, over the last timed attempt of each trial"),
    ]
    out_of_memory: OutOfMemoryView
    device_seconds: float
    wall_seconds: float
    front: Annotated[
        list[FrontTrialView],
        Field(
            description="completed trials on the Pareto front (while none has completed, of those that run), the best"
            " of the first objective first; at most 100, evenly chosen. Empty with one objective"
        ),
    ]
    regret_bound: Annotated[
        float | None,
        Field(
            description="with `budget.terminator`, how much better than the best found any candidate may be, with high"
            " probability; null while it is not known"
        ),
    ]
    best_metrics: Annotated[dict[str, float | None], Field(description="metrics of the best trial's last evaluation")]
    learned: list[LearnedView]


class StudyDetail(StudyView):
    """A study with its summary."""

    summary: SummaryView
    last_event_id: LastEvent


def study_view(study: Study, counts: Mapping[TrialState, int], best: Trial | None, device_seconds: float) -> StudyView:
    """View of a study as it is listed. ``counts`` are its trials by state."""
    leading = None
    if best is not None:
        leading = BestView(trial=best.number, value=best.value, params=dict(best.params), plan=str(best.plan or ""))
    return StudyView(
        **_study_fields(study),
        state_text=state_text(seen_state(study.state, study.spec), counts),
        no_success=has_no_success(study.state, counts),
        trials={state: counts[state] for state in TrialState if counts.get(state)},
        best=leading,
        device_seconds=device_seconds,
    )


def study_detail(study: Study, summary: Summary, last_event_id: int) -> StudyDetail:
    """View of a study with its summary."""
    view = SummaryView.model_validate(summary.to_json())
    return StudyDetail(
        **_study_fields(study),
        state_text=view.state_text,
        no_success=view.no_success,
        trials=view.trials,
        best=view.best,
        device_seconds=view.device_seconds,
        summary=view,
        last_event_id=last_event_id,
    )


def _study_fields(study: Study) -> dict[str, Any]:
    names = ("id", "name", "reason", "spec", "created_at", "finished_at")
    fields = {name: getattr(study, name) for name in names} | {"state": seen_state(study.state, study.spec)}
    return fields | {"warnings": list(study.warnings), "has_files": study.code is not None}
