"""Health checks: whether the process answers, and whether a study that is submitted now would run."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.routes.parameters import TheReadyProbe
from api.views.process import Health, Readiness

router = APIRouter(tags=["process"])


@router.get("/healthz")
async def is_alive() -> Health:  # not in a thread: it must answer also when all threads are busy
    """Liveness: answers 200 whenever the process runs."""
    return Health(status="ok")


@router.get(
    "/readyz",
    responses={
        503: {"description": "Not ready; `database`, `data_directory` and `controller` say why", "model": Readiness}
    },
)
async def is_ready(response: Response, probe: TheReadyProbe) -> Readiness:
    """Readiness: the database stores a write, the data directory can hold more, and a controller is running."""
    readiness = await probe.readiness()
    response.status_code = 200 if readiness.status == "ready" else 503
    return readiness
