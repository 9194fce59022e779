"""Studies that are being written: checks them and screens their spaces, and submits nothing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from api.access.allowed import TheAccess
from api.problems import read_body
from api.routes.answers import problems
from api.routes.parameters import TheAdmission, TheScreenings, Whole
from api.submission import MAX_BODY_BYTES, MAX_SPEC_BYTES, check_content_type, parse_submission
from api.views.drafts import DraftView, ScreeningView, parameter_view

router = APIRouter(prefix="/v1", tags=["studies"])
STUDY_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/NewStudy"}},
            "multipart/form-data": {"schema": {"$ref": "#/components/schemas/NewStudyForm"}},
        },
    }
}


@router.post("/studies:check", responses=problems(408, 413, 415, 422), openapi_extra=STUDY_BODY)
async def check_study(request: Request) -> DraftView:
    """Check a study without its files and without submitting it, and get its space. The body is that of a new study."""
    content_type = check_content_type(request.headers)
    body = await read_body(request, MAX_SPEC_BYTES)
    spec = (await run_in_threadpool(parse_submission, body, content_type)).spec
    parameters = [parameter_view(name, dimension) for name, dimension in spec.space.items()]
    return DraftView(name=spec.name, workload=spec.workload, project=spec.project, parameters=parameters)


@router.post("/studies:screen", responses=problems(408, 413, 415, 422), openapi_extra=STUDY_BODY)
async def screen_study(
    request: Request,
    admission: TheAdmission,
    screenings: TheScreenings,
    access: TheAccess,
    candidates: Annotated[Whole, Query(ge=1, le=1000, description="how many random ones")] = 100,
) -> ScreeningView:
    """Predict which part of a study's space fits on the cluster, as `scamp screen`. Nothing is submitted.

    The body is that of a new study. The first answer for a workload may take minutes, later ones seconds.
    """
    content_type = check_content_type(request.headers)
    with admission.room_for(request.headers.get("content-length")):
        spec, code = await admission.parsed(await read_body(request, MAX_BODY_BYTES), content_type, access)
    return ScreeningView(**await screenings.screen(spec, code, candidates, request.is_disconnected))
