"""Studies: submit, list, read, stop and delete them."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from api.access.allowed import TheAccess
from api.problems import read_body
from api.routes.answers import page_of, problems
from api.routes.drafts import STUDY_BODY
from api.routes.parameters import After, StudyId, TheAdmission, TheSettings, TheStore, Whole
from api.submission import MAX_BODY_BYTES, check_content_type, check_idempotency_key
from api.views.studies import (
    Clone,
    Description,
    Enqueued,
    EnqueuedView,
    Limits,
    Priority,
    ProvenanceView,
    Retried,
    RetriedView,
    StudyDetail,
    StudyView,
    provenance_of,
    study_detail,
    study_view,
)
from api.views.view import Page
from scamp_service.access.model import Access, Role
from scamp_service.errors import Conflict, NotFound
from scamp_service.host import package_versions
from scamp_service.lifecycle import StudyState
from scamp_service.model import Study
from scamp_service.store.store import Store
from scamp_service.store.summary import LearnedMemory, learned_of, study_summary
from scamp_service.study.objectives import Objectives
from scamp_service.study.parse import parse_study, study_text
from scamp_service.study.spec import StudySpec

router = APIRouter(prefix="/v1", tags=["studies"])

IdempotencyKey = Annotated[
    str | None, Header(description="any unique text; a repeated request with the same key has one effect")
]

Provenance = Annotated[
    str | None,
    Header(
        alias="Scamp-Provenance",
        max_length=4000,
        description="where it comes from, as JSON: `command`, git `commit`, and `is_changed` since that commit",
    ),
]


@router.post(
    "/studies",
    status_code=201,
    response_model=StudyDetail,
    responses=problems(408, 409, 413, 415, 422),
    openapi_extra=STUDY_BODY,
)
async def create_study(
    request: Request,
    response: Response,
    store: TheStore,
    admission: TheAdmission,
    access: TheAccess,
    idempotency_key: IdempotencyKey = None,
    provenance: Provenance = None,
) -> StudyDetail:
    """Submit a study, as JSON or as a form. It starts by itself. `Location` has its address."""
    content_type = check_content_type(request.headers)
    key, source = _key_of(access, idempotency_key), provenance_of(provenance)
    with admission.room_for(request.headers.get("content-length")):
        body = await read_body(request, MAX_BODY_BYTES)
        study = await admission.submit(body, content_type, key, store, access)
    await run_in_threadpool(lambda: store.studies.note_provenance(study.id, source | {"packages": package_versions()}))
    response.headers["Location"] = f"/v1/studies/{study.id}"
    return await run_in_threadpool(_detail, store, study)


@router.get("/studies", responses=problems(422))
def list_studies(
    request: Request,
    response: Response,
    store: TheStore,
    access: TheAccess,
    after: After = 0,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    live: Annotated[bool, Query(description="only studies that are RUNNING, PAUSED or STOPPING")] = False,
    sort: Annotated[
        Literal["id", "name", "owner", "project", "state"],
        Query(description="order; by state, those that run are first"),
    ] = "id",
    newest_first: Annotated[bool, Query(description="the reverse order: by id, the newest are first")] = False,
    owner: Annotated[str | None, Query(description="only studies that this user has submitted")] = None,
    project: Annotated[str | None, Query(description="only studies of this project")] = None,
    state: Annotated[
        list[StudyState] | None, Query(description="only studies in this state; repeatable; PAUSED counts as RUNNING")
    ] = None,
    tag: Annotated[str | None, Query(description="only studies with this tag")] = None,
    words: Annotated[
        str, Query(description="only studies with each of these words in name, tags, note, owner or project")
    ] = "",
    archived: Annotated[Literal["no", "only", "all"], Query(description="whether to list archived studies")] = "no",
) -> Page[StudyView]:
    """List all studies that you may read, by ascending id or as `sort` says."""
    projects = access.projects
    if project is not None:
        projects = [project] if access.may(Role.VIEWER, project) else []
    studies = store.studies.page(
        after=after,
        limit=limit + 1,
        live=live,
        sort=sort,
        newest_first=newest_first,
        owner=owner,
        projects=projects,
        states=state and [StudyState.RUNNING if each is StudyState.PAUSED else each for each in state],
        tag=tag,
        words=words,
        archived=None if archived == "all" else archived == "only",
    )
    now = time.time()
    return page_of(request, response, studies, limit, lambda study: study.id, lambda study: _view(store, study, now))


@router.get("/studies/{study_id}", responses=problems(404))
def get_study(study_id: StudyId, store: TheStore) -> StudyDetail:
    """Get one study: its spec, state, trials by state, best trial, and a summary."""
    return _detail(store, store.studies.get(study_id))


@router.get(
    "/studies/{study_id}/study.yaml",
    responses={200: {"content": {"application/yaml": {}}}, **problems(404, 409)},
    response_class=Response,
)
def get_study_file(study_id: StudyId, store: TheStore) -> Response:
    """Get the study as a file to submit again: in YAML, without most of what is the default anyway."""
    text = study_text(_spec_to_run_again(store.studies.get(study_id)))
    return Response(text, media_type="application/yaml")


@router.get(
    "/studies/{study_id}/files.zip",
    responses={200: {"content": {"application/zip": {}}}, **problems(404)},
    response_class=Response,
)
def get_study_code(study_id: StudyId, store: TheStore) -> Response:
    """Get the user's own files that were submitted with the study, as a zip."""
    study = store.studies.get(study_id)
    if study.code is None:
        raise NotFound(f"study {study_id} was submitted without files")
    headers = {"Content-Disposition": f'attachment; filename="study-{study_id}.zip"'}
    return Response(store.blobs.get(study.code), media_type="application/zip", headers=headers)


@router.get("/studies/{study_id}/provenance", responses=problems(404))
def get_provenance(study_id: StudyId, store: TheStore) -> ProvenanceView:
    """Get where a study comes from: command, git commit, and the packages that the service had."""
    store.studies.get(study_id)
    return ProvenanceView(**store.studies.provenance(study_id))


@router.post("/studies/{study_id}:stop", responses=problems(404))
def stop_study(study_id: StudyId, store: TheStore, access: TheAccess) -> StudyDetail:
    """Stop a study: trials that have not ended are cancelled, what they reported is kept. No effect after its end."""
    store.studies.get(study_id)
    reason = f"stopped by {access.name or 'the user'}"
    store.studies.move(study_id, [StudyState.RUNNING], StudyState.STOPPING, reason=reason, now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.post("/studies/{study_id}:pause", responses=problems(404, 409))
def pause_study(study_id: StudyId, store: TheStore) -> StudyDetail:
    """Pause a study: its running trials stop and keep their last checkpoints, and none starts until it is resumed."""
    store.requests.pause(study_id, paused=True, now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.post("/studies/{study_id}:resume", responses=problems(404, 409))
def resume_study(study_id: StudyId, store: TheStore) -> StudyDetail:
    """Resume a paused study: its trials continue from their last checkpoints, as devices are free."""
    store.requests.pause(study_id, paused=False, now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.post("/studies/{study_id}:extend", responses=problems(404, 409, 422))
def extend_study(study_id: StudyId, limits: Limits, store: TheStore) -> StudyDetail:
    """Change limits of a study's budget. A completed study runs again, with the trials that its limit has cancelled.

    One that was stopped or has failed answers 409, and so does one that would end at once or have nothing to do. The
    limits are those of the whole study, so a repeated request changes nothing.
    """
    store.requests.extend(study_id, limits.changes, now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.patch("/studies/{study_id}", responses=problems(404, 422))
def describe_study(study_id: StudyId, description: Description, store: TheStore) -> StudyDetail:
    """Change the name, tags or note of a study, or archive it."""
    store.requests.describe(study_id, description.model_dump(exclude_none=True), now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.post("/studies/{study_id}:prioritize", responses=problems(404, 409, 422))
def prioritize_study(
    study_id: StudyId, body: Priority, store: TheStore, settings: TheSettings, access: TheAccess
) -> StudyDetail:
    """Give a study another priority, at most the largest of its project and yours. The next trial that starts follows
    it."""
    store.studies.get(study_id)
    settings.expect_priority(store.studies.project(study_id), body.priority)
    store.users.expect_priority(access.name, body.priority)
    store.requests.prioritize(study_id, body.priority, now=time.time())
    return _detail(store, store.studies.get(study_id))


@router.post("/studies/{study_id}:retry", responses=problems(404, 409, 422))
def retry_trials(study_id: StudyId, retried: Retried, store: TheStore) -> RetriedView:
    """Let failed trials be planned again, and run from their last checkpoints. A completed or failed study runs again;
    one that was stopped, or that has reached a limit of its budget, answers 409."""
    return RetriedView(numbers=store.requests.retry(study_id, retried.numbers, now=time.time()))


@router.post("/studies/{study_id}:clone", status_code=201, responses=problems(404, 409, 422))
def clone_study(
    study_id: StudyId,
    clone: Clone,
    response: Response,
    store: TheStore,
    settings: TheSettings,
    access: TheAccess,
    idempotency_key: IdempotencyKey = None,
    provenance: Provenance = None,
) -> StudyDetail:
    """Submit a study again, with the same spec and files, and a name of its own if one is given."""
    original, source = store.studies.get(study_id), provenance_of(provenance)
    spec = _spec_to_run_again(original, clone.name)
    settings.expect_priority(spec.project, spec.priority)
    store.users.expect_priority(access.name, spec.priority)
    settings.expect_receivers(spec.notify)
    key = _key_of(access, idempotency_key)
    study = store.studies.create(
        spec.to_json(), code=original.code, idempotency_key=key, warnings=original.warnings, now=time.time()
    )
    files = {name: value for name, value in store.studies.provenance(study_id).items() if name != "command"}
    store.studies.note_provenance(study.id, files | source | {"packages": package_versions()})
    response.headers["Location"] = f"/v1/studies/{study.id}"
    return _detail(store, study)


@router.post("/studies/{study_id}/trials", status_code=201, responses=problems(404, 409, 422))
def enqueue_trials(
    study_id: StudyId, enqueued: Enqueued, store: TheStore, idempotency_key: IdempotencyKey = None
) -> EnqueuedView:
    """Add candidates to a study, in addition to its budget. Parameters that are left out are random.

    A completed study runs again for them; one that was stopped, has failed, or has reached a limit answers 409. With
    `values` the candidates, with all parameters, are results that were measured elsewhere: they are not trained.
    """
    from scamp_service.search.enqueued import (  # imported here: it imports Optuna, which takes long
        completed_candidate,
        told_results,
    )

    study = store.studies.get(study_id)
    key = check_idempotency_key(idempotency_key) or str(uuid.uuid4())
    salt = 1 + sum(store.counts.states(study_id).values())
    is_ours = "directions" not in study.spec
    is_known = is_ours and study.state in (StudyState.RUNNING, StudyState.COMPLETED)  # otherwise the store refuses it
    candidates = [
        completed_candidate(study.spec, params, salt + index) if is_known else params
        for index, params in enumerate(enqueued.candidates)
    ]
    results = told_results(study.spec, enqueued.candidates, candidates, enqueued.values) if is_known else ()
    numbers = store.requests.enqueue(study_id, candidates, key, results=results, now=time.time())
    return EnqueuedView(numbers=numbers)


@router.delete("/studies/{study_id}", status_code=204, responses=problems(404, 409))
def delete_study(study_id: StudyId, store: TheStore) -> None:
    """Delete a study that has ended, with its trials, metrics, logs, events and checkpoints. A repeated request gets
    the same answer. The study is gone at once; the controller then frees the space."""
    store.requests.delete(study_id, now=time.time())


@router.get("/studies/{study_id}/learned", responses=problems(404))
def list_learned(study_id: StudyId, store: TheStore) -> list[LearnedMemory]:
    """List what was learned about the memory of the study's families, by layout; the largest family first."""
    store.studies.get(study_id)
    return learned_of(store, store.counts.counted(study_id).families)


def _spec_to_run_again(study: Study, name: str | None = None) -> StudySpec:
    """Raises ``Conflict`` for a study of other programs."""
    if "directions" in study.spec:
        raise Conflict(f"study {study.id} was run by other programs; ScaMP has no workload to run it with")
    return parse_study({**study.spec, "name": name or study.name, "paused": False})


def _key_of(access: Access, key: str | None) -> str | None:
    """The idempotency key as it is stored: each user has keys of one's own. Raises ``InvalidInput``."""
    key = check_idempotency_key(key)
    return f"{access.name}/{key}" if key and access.name else key


def _view(store: Store, study: Study, now: float) -> StudyView:
    best = store.trials.leading(study.id, Objectives.of_spec(study.spec))
    return study_view(study, store.counts.states(study.id), best, store.counts.device_seconds(study.id, now=now))


def _detail(store: Store, study: Study) -> StudyDetail:
    event_id = store.events.last_id()  # read first: events that arrive while the rest is read are repeated, not missed
    return study_detail(study, study_summary(store, study.id, now=time.time()), event_id)
