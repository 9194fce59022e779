"""``/v1``: studies, trials, their metrics and logs, the cluster and the events. Each answer is read from the study
database, and the only writes are a new study and the wish to stop one; the controller does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.concurrency import run_in_threadpool

from api import views
from api.problems import MEDIA_TYPE, read_body
from api.sse import EventHub, EventStream
from api.submission import MAX_BODY_BYTES, check_content_type, check_idempotency_key, parse_submission
from scamp_service.errors import InvalidInput, Unavailable
from scamp_service.lifecycle import StudyState, TrialState
from scamp_service.model import Attempt, Study, Trial
from scamp_service.settings import Settings
from scamp_service.store.store import Store
from scamp_service.store.summary import learned_of, lesson_json, study_summary

LARGEST_ID = 2**63 - 1
CONTROLLER_LEASE = "controller"
MOST_WAITING = 200
WAITING_STATES = frozenset({TrialState.WAITING, TrialState.QUEUED, TrialState.PAUSED})

Item = TypeVar("Item")
StudyId = Annotated[int, Path(ge=1, le=LARGEST_ID, description="the study's id")]
Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="the trial's number in its study, from 0")]
After = Annotated[int, Query(ge=0, le=LARGEST_ID, description="`next` of the page before; 0: from the first")]


def store_of(request: Request) -> Store:
    found: Store = request.app.state.store
    return found


def settings_of(request: Request) -> Settings:
    found: Settings = request.app.state.settings
    return found


def hub_of(request: Request) -> EventHub:
    found: EventHub = request.app.state.hub
    return found


TheStore = Annotated[Store, Depends(store_of)]
TheSettings = Annotated[Settings, Depends(settings_of)]
TheHub = Annotated[EventHub, Depends(hub_of)]


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    words = {
        404: "No such study or trial",
        409: "The idempotency key was used for another study",
        413: "The body is too large",
        415: "The body is not application/json",
        422: "The study or a parameter is not valid; nothing was stored",
        503: "The database cannot be reached",
    }
    return {status: {"description": words[status], "content": content} for status in (*statuses, 503)}


router = APIRouter(prefix="/v1", generate_unique_id_function=lambda route: route.name)


# --- studies ---------------------------------------------------------------------------------------------------------


@router.post(
    "/studies",
    status_code=201,
    response_model=views.StudyDetail,
    responses=_problems(409, 413, 415, 422),
    tags=["studies"],
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/NewStudy"}}},
        }
    },
)
async def create_study(
    request: Request,
    response: Response,
    store: TheStore,
    idempotency_key: Annotated[
        str | None, Header(description="any text of your own; the same key and body give the same study, once")
    ] = None,
) -> views.StudyDetail:
    """Submit a study. It begins by itself; its address is in `Location`."""
    check_content_type(request.headers)
    key = check_idempotency_key(idempotency_key)
    body = await read_body(request, MAX_BODY_BYTES)
    detail = await run_in_threadpool(_create, store, body, key)
    response.headers["Location"] = f"/v1/studies/{detail.id}"
    return detail


def _create(store: Store, body: bytes, key: str | None) -> views.StudyDetail:
    spec, code = parse_submission(body)
    sha256 = store.put_blob(code) if code is not None else None
    study = store.create_study(spec.to_json(), code=sha256, idempotency_key=key, now=time.time())
    return _detail(store, study)


@router.get("/studies", responses=_problems(422), tags=["studies"])
def list_studies(
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    live: Annotated[bool, Query(description="only those RUNNING or STOPPING")] = False,
    newest_first: Annotated[bool, Query(description="by descending id")] = False,
) -> views.Page[views.StudyView]:
    """All studies, by ascending id."""
    found = store.studies(after=after, limit=limit + 1, live=live, newest_first=newest_first)
    now = time.time()
    return _page(request, response, found, limit, lambda study: study.id, lambda study: _view(store, study, now))


@router.get("/studies/{study_id}", responses=_problems(404), tags=["studies"])
def get_study(study_id: StudyId, store: TheStore) -> views.StudyDetail:
    """One study: its spec, state, trials by state, best trial, and a summary."""
    return _detail(store, store.study(study_id))


@router.post("/studies/{study_id}:stop", responses=_problems(404), tags=["studies"])
def stop_study(study_id: StudyId, store: TheStore) -> views.StudyDetail:
    """Stop a study: trials that have not ended are cancelled, what was reported stays. No effect once it has ended."""
    store.study(study_id)
    store.move_study(study_id, [StudyState.RUNNING], StudyState.STOPPING, reason="stopped by the user", now=time.time())
    return _detail(store, store.study(study_id))


def _view(store: Store, study: Study, now: float) -> views.StudyView:
    best = store.best_trial(study.id, study.spec["objective"]["direction"])
    return views.study_view(study, store.trial_counts(study.id), best, store.device_seconds(study.id, now=now))


def _detail(store: Store, study: Study) -> views.StudyDetail:
    event_id = store.last_event_id()  # first: what happens while the rest is read is told once more, not missed
    return views.study_detail(study, study_summary(store, study.id, now=time.time()), event_id)


# --- trials ----------------------------------------------------------------------------------------------------------


@router.get("/studies/{study_id}/trials", responses=_problems(404, 422), tags=["trials"])
def list_trials(
    study_id: StudyId,
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    state: Annotated[list[TrialState] | None, Query(description="only these; may be given several times")] = None,
) -> views.Page[views.TrialView]:
    """The trials of a study, by number."""
    store.study(study_id)
    found = store.trials(study_id, after=after, limit=limit + 1, states=state)
    return _page(request, response, found, limit, lambda trial: trial.id, views.trial_view)


@router.get("/studies/{study_id}/peaks", responses=_problems(404, 422), tags=["trials"])
def list_peaks(
    study_id: StudyId,
    request: Request,
    response: Response,
    store: TheStore,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> views.Page[views.PeaksView]:
    """Predicted against measured peak memory of every attempt, by trial; only trials that have been measured."""
    store.study(study_id)
    rows = store.measured_attempts(study_id, after=after, num_trials=limit + 1)
    found = [list(group) for _, group in groupby(rows, key=lambda row: row[1].trial_id)]
    return _page(request, response, found, limit, lambda group: group[0][1].trial_id, _peaks)


def _peaks(group: list[tuple[int, Attempt]]) -> views.PeaksView:
    return views.peaks_view(group[0][0], [attempt for _, attempt in group])


@router.get("/studies/{study_id}/learned", responses=_problems(404), tags=["studies"])
def list_learned(study_id: StudyId, store: TheStore) -> list[views.LessonView]:
    """What has been learned of the memory of the study's families, that of most trials first."""
    store.study(study_id)
    return [views.LessonView(**lesson_json(*item)) for item in learned_of(store, study_id).items()]


@router.get("/studies/{study_id}/trials/{number}", responses=_problems(404), tags=["trials"])
def get_trial(study_id: StudyId, number: Number, store: TheStore) -> views.TrialDetail:
    """One trial with all its attempts."""
    event_id = store.last_event_id()
    trial = store.trial_by_number(study_id, number)
    return views.trial_detail(trial, store.attempts(trial.id), event_id)


@router.get("/studies/{study_id}/trials/{number}/metrics", responses=_problems(404, 422), tags=["trials"])
def list_metrics(
    study_id: StudyId,
    number: Number,
    request: Request,
    response: Response,
    store: TheStore,
    after: Annotated[int, Query(ge=-1, le=LARGEST_ID, description="steps after this one; -1: from the first")] = -1,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> views.Page[views.MetricView]:
    """The learning curve, by step. Where an attempt resumed and repeated a step, the newest attempt counts."""
    trial = store.trial_by_number(study_id, number)
    found = store.metrics(trial.id, after=after, limit=limit + 1)
    return _page(request, response, found, limit, lambda metric: metric.step, views.metric_view)


@router.get("/studies/{study_id}/trials/{number}/logs", responses=_problems(404, 422), tags=["trials"])
def list_logs(
    study_id: StudyId,
    number: Number,
    request: Request,
    response: Response,
    store: TheStore,
    after: Annotated[int, Query(ge=-1, le=LARGEST_ID, description="lines after this id; -1: the last `limit`")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> views.Page[views.LogLineView]:
    """What the ranks have printed, in the order in which it arrived."""
    trial = store.trial_by_number(study_id, number)
    if after == -1:
        return views.Page(items=[views.log_view(row) for row in store.logs(trial.id, after=-1, limit=limit)])
    found = store.logs(trial.id, after=after, limit=limit + 1)
    return _page(request, response, found, limit, lambda row: row[0], views.log_view)


def _page(
    request: Request, response: Response, found: list[Any], limit: int, cursor: Any, view: Any
) -> views.Page[Any]:
    """``found`` has one item more than asked for when there is a next page."""
    items = found[:limit]
    following = cursor(items[-1]) if len(found) > limit else None
    if following is not None:
        url = request.url.include_query_params(after=following)
        response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
    return views.Page(items=[view(item) for item in items], next=following)


# --- the cluster -----------------------------------------------------------------------------------------------------


@router.get("/cluster", responses=_problems(), tags=["cluster"])
def get_cluster(store: TheStore, settings: TheSettings) -> views.ClusterView:
    """The devices with the gangs that hold them, in MiB, and the trials that wait for devices."""
    now = time.time()
    event_id = store.last_event_id()
    recorded = store.cluster()
    state, confirmed = recorded if recorded else ({}, None)
    silent = controller_silent_seconds(store, confirmed, now)
    alive = silent is not None and silent <= settings.lease_seconds
    names = {study.id: study.name for study in _live(store)}
    trials = {trial.id: trial for trial in store.live_trials()}
    gangs = [_gang(store, attempt, trials, names) for attempt in store.open_attempts()]
    waiting = [trial for trial in trials.values() if trial.state in WAITING_STATES]
    shown = waiting[:MOST_WAITING]
    return views.ClusterView(
        status=state.get("status", "starting") if alive else "starting",
        detail=state.get("detail", "") if alive else _why_silent(silent),
        controller_alive=alive,
        controller_silent_seconds=silent,
        devices=[views.device_view(device, gangs) for device in state.get("devices", [])],
        gangs=gangs,
        waiting=[views.waiting_view(trial, _name(store, names, trial.study_id)) for trial in shown],
        num_waiting=len(waiting),
        last_event_id=event_id,
    )


def controller_silent_seconds(store: Store, confirmed: float | None, now: float) -> float | None:
    """Since the controller last renewed its lease; without a holder, since it last described the cluster."""
    age = store.lease_age(CONTROLLER_LEASE, now=now)
    return age if age is not None or confirmed is None else max(0.0, now - confirmed)


def _why_silent(silent: float | None) -> str:
    return "no controller has reported yet" if silent is None else f"the controller is silent for {silent:.0f} s"


def _live(store: Store) -> Iterable[Study]:
    after = 0
    while page := store.studies(live=True, after=after):
        yield from page
        after = page[-1].id


def _gang(store: Store, attempt: Any, trials: dict[int, Trial], names: dict[int, str]) -> views.GangView:
    # A gang may still be stopping after its trial and study have ended.
    trial = trials.get(attempt.trial_id) or store.trial(attempt.trial_id)
    return views.gang_view(attempt, trial, _name(store, names, trial.study_id))


def _name(store: Store, names: dict[int, str], study_id: int) -> str:
    if study_id not in names:
        names[study_id] = store.study(study_id).name
    return names[study_id]


# --- events ----------------------------------------------------------------------------------------------------------


@router.get(
    "/events",
    response_class=Response,
    responses={
        200: {"description": "A stream of EventView", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
        **_problems(422),
    },
    tags=["events"],
)
def follow_events(
    hub: TheHub,
    after: Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="replay what came after this event")] = None,
    study_id: Annotated[int | None, Query(ge=1, le=LARGEST_ID, description="only of this study")] = None,
    last_event_id: Annotated[str | None, Header(description="as `after`, and stronger: set on a reconnect")] = None,
) -> EventSourceResponse:
    """Follow what happens, as server-sent events. `id` is the event's id: reconnect with `Last-Event-ID`, and nothing
    is missed or told twice. Without `after`, only what happens from now on is told."""
    seen = after
    if last_event_id:
        if not (last_event_id.isascii() and last_event_id.isdecimal() and int(last_event_id) <= LARGEST_ID):
            raise InvalidInput("Last-Event-ID must be the id of an event of this stream, a number")
        seen = int(last_event_id)
    return EventStream(hub.follow(seen, study_id))


# --- the process -----------------------------------------------------------------------------------------------------

process_router = APIRouter(generate_unique_id_function=lambda route: route.name, tags=["process"])


@process_router.get("/healthz")
def is_alive() -> views.Health:
    """The process answers."""
    return views.Health(status="ok")


@process_router.get(
    "/readyz",
    responses={503: {"description": "Not ready; `database` and `controller` say which", "model": views.Readiness}},
)
def is_ready(response: Response, store: TheStore, settings: TheSettings) -> views.Readiness:
    """The database can be reached, and a controller is at work."""
    try:
        age = store.lease_age(CONTROLLER_LEASE, now=time.time())
    except Unavailable as error:
        response.status_code = 503
        return views.Readiness(status="not ready", database=str(error), controller="unknown")
    if age is None:
        controller = "no controller holds the lease"
    elif age > settings.lease_seconds:
        controller = f"silent for {age:.0f} s"
    else:
        return views.Readiness(status="ready", database="ok", controller="ok")
    response.status_code = 503
    return views.Readiness(status="not ready", database="ok", controller=controller)
