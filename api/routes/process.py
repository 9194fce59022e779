"""Health checks: whether the process answers, and whether a study that is submitted now would run."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.routes.parameters import TheSettings, TheStore
from api.views.process import Health, Readiness
from scamp_service.errors import Unavailable
from scamp_service.lifecycle import CONTROLLER_LEASE

router = APIRouter(tags=["process"])


@router.get("/healthz")
async def is_alive() -> Health:  # not in a thread: it must answer also when all threads are busy
    """Liveness: answers 200 whenever the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz",
    responses={503: {"description": "Not ready; `database` and `controller` say which", "model": Readiness}},
)
def is_ready(response: Response, store: TheStore, settings: TheSettings) -> Readiness:
    """Readiness: the database can be reached, and a controller is running."""
    try:
        age = store.lease_age(CONTROLLER_LEASE)
    except Unavailable as error:
        response.status_code = 503
        return Readiness(status="not ready", database=str(error), controller="unknown")
    if age is None:
        controller = "no controller holds the lease"
    elif age > settings.lease_seconds:
        controller = f"silent for {age:.0f} s"
    else:
        return Readiness(status="ready", database="ok", controller="ok")
    response.status_code = 503
    return Readiness(status="not ready", database="ok", controller=controller)
