"""Trials of a study, with their memory peaks, metrics and logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.access.allowed import TheAccess
from api.routes.answers import page_of, problems
from api.routes.parameters import (
    LARGEST_ID,
    After,
    Descending,
    Number,
    Numbers,
    SortColumn,
    States,
    StudyId,
    TheSettings,
    TheStore,
    Where,
    Whole,
)
from api.trial_table import MEDIA_TYPES, FileFormat, TrialTable
from api.views.timeline import TimelineView, timeline_view
from api.views.trials import (
    ChangedTrial,
    LogLineView,
    MetricView,
    PeaksView,
    TrialDetail,
    TrialView,
    log_view,
    metric_view,
    peaks_view,
    trial_detail,
    trial_view,
)
from api.views.view import Page
from scamp_service.model import Attempt, Trial
from scamp_service.store.parts.trials import Trials
from scamp_service.study.objectives import Objectives
from workloads.training.checkpoints.outbox import late_words

router = APIRouter(prefix="/v1", tags=["trials"])


@router.get("/studies/{study_id}/trials", responses=problems(404, 422))
def list_trials(
    study_id: StudyId,
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    state: States = None,
    number: Numbers = None,
) -> Page[TrialView]:
    """List the trials of a study, by number. With `number`, these trials are one page, and nothing else counts."""
    objectives = Objectives.of_spec(store.studies.get(study_id).spec)
    if number:
        trials = store.trials.with_numbers(study_id, number)
    else:
        trials = store.trials.page(study_id, after=after, limit=limit + 1, states=state)
    metrics = store.reports.counted_metrics([trial.id for trial in trials])

    def view(trial: Trial) -> TrialView:
        return trial_view(trial, objectives, metrics.get(trial.id, {}))

    if number:
        return Page(items=[view(trial) for trial in trials])
    return page_of(request, response, trials, limit, lambda trial: trial.id, view)


@router.get(
    "/studies/{study_id}/trials.{file_format}",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "A row for each trial",
            "content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()},
        },
        **problems(404, 422),
    },
)
def download_trials(
    study_id: StudyId,
    file_format: Annotated[FileFormat, Path(description="format of the file")],
    store: TheStore,
    by: SortColumn = "number",
    descending: Descending = False,
    state: States = None,
    where: Where = "",
) -> StreamingResponse:
    """Download trials as CSV or Parquet, with a column for each parameter, such as `params.layers.0.width`, and each
    metric, or as JSON lines."""
    table = TrialTable(store, study_id, by, descending, state, where)
    headers = {"Content-Disposition": f'attachment; filename="study-{study_id}.{file_format}"'}
    return StreamingResponse(table.parts(file_format), media_type=MEDIA_TYPES[file_format], headers=headers)


@router.get("/studies/{study_id}/peaks", responses=problems(404, 422))
def list_peaks(
    study_id: StudyId,
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    number: Numbers = None,
    points: Annotated[
        Whole | None, Query(ge=10, le=10_000, description="thin to this number of trials, as one page")
    ] = None,
) -> Page[PeaksView]:
    """List predicted and measured peak memory and step seconds of every attempt, by trial; only measured trials.

    With `number`, these trials are one page. With `points`, so are the trials that a chart of all needs: the worst
    errors, those that ran out of memory, and some of all others.
    """
    store.studies.get(study_id)
    ids: list[int] = []
    if number:
        ids = [trial.id for trial in store.trials.with_numbers(study_id, number)]
    elif points:
        ids = store.attempts.measured_trials(study_id, points)
    if number or points:
        view = _peaks_view(store.trials, ids)
        return Page(items=[view(group) for group in _by_trial(store.attempts.measured_of(ids))])
    rows = store.attempts.measured(study_id, after=after, num_trials=limit + 1)
    peaks = _by_trial(rows)
    view = _peaks_view(store.trials, [group[0][1].trial_id for group in peaks])
    return page_of(request, response, peaks, limit, lambda group: group[0][1].trial_id, view)


def _by_trial(rows: list[tuple[int, Attempt]]) -> list[list[tuple[int, Attempt]]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row[1].trial_id)]


def _peaks_view(trials: Trials, trial_ids: Sequence[int]) -> Callable[[list[tuple[int, Attempt]]], PeaksView]:
    """The function that makes the view of the attempts of one of these trials."""
    states = trials.states(trial_ids)

    def view(group: list[tuple[int, Attempt]]) -> PeaksView:
        (number, first), *_ = group
        return peaks_view(number, states[first.trial_id], [attempt for _, attempt in group])

    return view


@router.get("/studies/{study_id}/trials/{number}", responses=problems(404))
def get_trial(study_id: StudyId, number: Number, store: TheStore, settings: TheSettings) -> TrialDetail:
    """Get one trial with all its attempts, and the plans that were compared for it."""
    event_id = store.events.last_id()
    trial = store.trials.numbered(study_id, number)
    objectives = Objectives.of_spec(store.studies.get(study_id).spec)
    metrics = store.reports.counted_metrics([trial.id]).get(trial.id, {})
    attempts = store.attempts.of_trial(trial.id)
    sharing = store.attempts.sharing_with(attempts[-1], study_id) if attempts else []
    others = [each for each in sharing if each != number]
    unstored = late_words(settings.checkpoints, trial.id) if settings.checkpoint_url else ""
    options = store.trials.options(trial.id)
    return trial_detail(trial, objectives, metrics, attempts, others, options, event_id, unstored)


@router.post("/studies/{study_id}/trials/{number}:stop", responses=problems(404, 409))
def stop_trial(
    study_id: StudyId, number: Number, store: TheStore, settings: TheSettings, access: TheAccess
) -> TrialDetail:
    """Stop one trial: it ends as `CANCELLED`, and what it reported is kept. No effect once it has ended."""
    store.trials.stop(study_id, number, reason=f"stopped by {access.name or 'the user'}", now=time.time())
    return get_trial(study_id, number, store, settings)


@router.patch("/studies/{study_id}/trials/{number}", responses=problems(404, 409, 422))
def change_trial(
    study_id: StudyId, number: Number, changed: ChangedTrial, store: TheStore, settings: TheSettings
) -> TrialDetail:
    """Pause or resume one trial, or let it start before or after the others of its study that wait."""
    changes: Any = changed.model_dump(exclude_none=True)
    store.trials.change(study_id, number, changes, now=time.time())
    return get_trial(study_id, number, store, settings)


@router.delete("/studies/{study_id}/trials/{number}", status_code=204, responses=problems(404, 409))
def delete_trial(study_id: StudyId, number: Number, store: TheStore) -> None:
    """Delete one trial that has ended, with its metrics, log, files and checkpoints. A repeated request gets the same
    answer. Its number is not given again, and it still counts in the study's budget."""
    store.trials.delete(study_id, number, now=time.time())


@router.get("/studies/{study_id}/trials/{number}/timeline", responses=problems(404))
def get_timeline(study_id: StudyId, number: Number, store: TheStore) -> TimelineView | None:
    """Get one simulated optimizer step of the trial's plan, if that has a pipeline; otherwise null.

    It is also null for trials that were planned before ScaMP recorded what it takes, and where the trial was begun
    with a wider plan than the one that was simulated.
    """
    trial = store.trials.numbered(study_id, number)
    pipeline = store.trials.pipeline(trial.id)
    return timeline_view(pipeline) if pipeline and pipeline.step.plan == trial.plan else None


@router.get("/studies/{study_id}/trials/{number}/metrics", responses=problems(404, 422))
def list_metrics(
    study_id: StudyId,
    number: Number,
    request: Request,
    response: Response,
    store: TheStore,
    after: Annotated[Whole, Query(ge=-1, le=LARGEST_ID, description="only later steps; -1: all")] = -1,
    limit: Annotated[Whole, Query(ge=1, le=10_000)] = 1000,
) -> Page[MetricView]:
    """List the metrics of a trial, by step. If a resumed attempt repeats a step, the newest attempt counts."""
    trial = store.trials.numbered(study_id, number)
    metrics = store.reports.metrics(trial.id, after=after, limit=limit + 1)
    return page_of(request, response, metrics, limit, lambda metric: metric.step, metric_view)


@router.get("/studies/{study_id}/trials/{number}/logs", responses=problems(404, 422))
def list_logs(
    study_id: StudyId,
    number: Number,
    request: Request,
    response: Response,
    store: TheStore,
    after: Annotated[
        Whole, Query(ge=-1, le=LARGEST_ID, description="only later lines; -1: the last `limit` lines")
    ] = 0,
    limit: Annotated[Whole, Query(ge=1, le=10_000)] = 1000,
    search: Annotated[
        str, Query(description="only lines that contain this text, in small or capital letters", max_length=200)
    ] = "",
) -> Page[LogLineView]:
    """List the lines that the ranks of a trial printed, in the order of their arrival."""
    trial = store.trials.numbered(study_id, number)
    if search:
        lines = store.reports.logs(trial.id, after=max(0, after), limit=limit + 1, search=search)
        return page_of(request, response, lines, limit, lambda row: row[0], log_view)
    if after == -1:
        return Page(items=[log_view(row) for row in store.reports.logs(trial.id, after=-1, limit=limit)])
    logs = store.reports.logs(trial.id, after=after, limit=limit + 1)
    return page_of(request, response, logs, limit, lambda row: row[0], log_view)
