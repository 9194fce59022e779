"""Series for charts, thinned so that a study of many trials or steps is drawn as soon as a small one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.routes.answers import problems
from api.routes.parameters import (
    LARGEST_ID,
    Descending,
    Numbers,
    NumPoints,
    SortColumn,
    States,
    StudyId,
    TheImportances,
    TheStore,
    Where,
    Whole,
)
from api.views.candidates import Candidates, CandidatesView, ImportancesView, ImportanceView, candidates_view
from api.views.charts import (
    CurveView,
    FrontView,
    HistoryView,
    OrderView,
    curve_views,
    front_view,
    history_view,
    leading,
    thinned_history,
)
from api.views.lineage import LineageView, chosen, lineage_view
from api.views.view import Page
from scamp_service.study.objective import Objective
from scamp_service.study.objectives import Objectives

router = APIRouter(prefix="/v1", tags=["charts"])

MOST_ROWS = 200_000
"""Evaluations that one answer is made of: reading them takes about a second."""


@router.get("/studies/{study_id}/history", responses=problems(404, 422))
def get_history(
    study_id: StudyId, store: TheStore, state: States = None, where: Where = "", points: NumPoints = 1500
) -> HistoryView:
    """Get the objective by trial number, thinned: no best value so far, no running trial and no spike is left out."""
    last_event_id = store.events.last_id()
    objective = Objective.of_spec(store.studies.get(study_id).spec)
    series = store.table.series(study_id, states=state, where=where)
    trials = store.trials.history(study_id, thinned_history(series, objective, points))
    return history_view(trials, len(series), leading(series, objective), last_event_id)


@router.get("/studies/{study_id}/front", responses=problems(404, 422))
def get_front(study_id: StudyId, store: TheStore, points: NumPoints = 1500) -> FrontView:
    """Get the trials by the values of their objectives, and which are on the Pareto front; empty with one objective.

    Thinned: no trial of the front and none that runs is left out.
    """
    last_event_id = store.events.last_id()
    objectives = Objectives.of_spec(store.studies.get(study_id).spec)
    scores = store.trials.scores(study_id) if objectives.has_several else []
    return front_view(scores, objectives, points, last_event_id)


@router.get("/studies/{study_id}/curves", responses=problems(404, 422))
def list_curves(
    study_id: StudyId,
    store: TheStore,
    number: Numbers = None,
    metric: Annotated[str, Query(max_length=200, description="only this metric; default: all")] = "",
    points: NumPoints = 200,
    after: Annotated[Whole, Query(ge=-1, le=LARGEST_ID, description="`next` of the previous page; -1: the first")] = -1,
) -> Page[CurveView]:
    """List learning curves of the trials with these numbers, thinned, by number. If a resumed attempt repeats a step,
    the newest attempt counts. A page ends before a trial with which more than 200,000 evaluations would be read."""
    store.studies.get(study_id)
    trials = [trial for trial in store.trials.with_numbers(study_id, number or []) if trial.number > after]
    lengths = store.reports.curve_lengths([trial.id for trial in trials])
    num_rows, fitting = 0, 0
    for trial in trials:
        num_rows += lengths.get(trial.id, 0)
        if fitting and num_rows > MOST_ROWS:
            break
        fitting += 1
    read_trials = trials[:fitting]
    points_of = store.reports.curves([trial.id for trial in read_trials])
    items = [
        view
        for trial in read_trials
        for view in curve_views(trial.id, trial.number, points_of[trial.id], metric, points)
    ]
    return Page(items=items, next=read_trials[-1].number if fitting < len(trials) else None)


@router.get("/studies/{study_id}/order", responses=problems(404, 422))
def get_order(
    study_id: StudyId,
    store: TheStore,
    by: SortColumn,
    descending: Descending = False,
    state: States = None,
    where: Where = "",
    limit: Annotated[
        Whole | None, Query(ge=1, le=100_000, description="only so many of the first; default: all")
    ] = None,
) -> OrderView:
    """Get the numbers of the study's trials in the order of a column. Fetch the trials themselves by number."""
    store.studies.get(study_id)
    ordered = store.table.order(study_id, by, descending=descending, states=state, where=where, limit=limit)
    return OrderView(number=ordered.numbers, num_trials=ordered.num_trials)


@router.get("/studies/{study_id}/candidates", responses=problems(404, 422))
def get_candidates(
    study_id: StudyId,
    store: TheStore,
    param: Annotated[
        list[str] | None,
        Query(description="only this parameter, such as `lr` or `layers.0.width`; repeatable", max_length=100),
    ] = None,
    state: States = None,
    where: Where = "",
    points: NumPoints = 1500,
) -> CandidatesView:
    """Get the values of parameters by trial, as columns, of trials that have a value of the objective; thinned."""
    last_event_id = store.events.last_id()
    spec = store.studies.get(study_id).spec
    series = store.table.series(study_id, states=state, where=where)
    candidates = Candidates.of(series, Objective.of_spec(spec), points)
    params = store.table.params(study_id, candidates.number)
    return candidates_view(candidates, params, spec, param or [], last_event_id)


@router.get("/studies/{study_id}/importances", responses=problems(404))
def get_importances(study_id: StudyId, store: TheStore, cache: TheImportances) -> ImportancesView:
    """Get how much each parameter matters to be among the best tenth of the trials, by PED-ANOVA."""
    importances = cache.of(store.studies.get(study_id))
    items = [ImportanceView(name=name, share=share) for name, share in importances.shares.items()]
    return ImportancesView(
        num_ended=importances.num_ended, num_trials=importances.num_trials, is_rough=importances.is_rough, items=items
    )


@router.get("/studies/{study_id}/lineage", responses=problems(404, 422))
def get_lineage(
    study_id: StudyId,
    store: TheStore,
    trials: Annotated[Whole, Query(ge=1, le=1000, description="about how many trials; the best ones stay")] = 200,
) -> LineageView:
    """Get which trials began as copies of others, or with their weights, and what was changed in each."""
    objective = Objective.of_spec(store.studies.get(study_id).spec)
    num, relatives = chosen(store.table.relatives(study_id), objective, trials)
    return lineage_view(num, relatives, store.table.params(study_id, [relative.number for relative in relatives]))
